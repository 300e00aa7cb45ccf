"""A link that fails: a TCP proxy in a thread of its own, between messagers and their server."""

import asyncio
import random
import threading
from concurrent.futures import Future
from queue import SimpleQueue


class Proxy:
    """A proxy of `config`'s server, with faults that a test sets.

    `cut_replies` is the chance (0 to 1) that a reply is lost and its connection cut. `swallow` takes all bytes of
    connections that are open, both ways, and says nothing: the peer looks alive. `black_hole` accepts new connections
    and never answers. `delay_s` holds each piece back. `lose` loses one chosen piece, `hold` holds one back until
    `let_go`; `answers` gets what the server says to that. `asked` counts the requests with a text that `count` has
    named. Use it as a context manager; `config` leads to the proxy.
    """

    def __init__(self, config, seed=0):
        self.target = config
        self.cut_replies = 0.0
        self.black_hole = False
        self.delay_s = 0.0
        self.cuts = 0
        self.accepted = 0
        self.held = 0  # requests
        self.asked = 0
        self._counted = None  # the text of requests that are counted
        self.answers = SimpleQueue()
        self._hold = None, False  # the text of a request that is held; whether its repeats are held, too
        self._random = random.Random(seed)
        self._left = None  # pieces until the one that is lost; its direction; what happens then
        self._swallowed = set()  # writers whose bytes vanish
        self._open = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._ready = Future()

    def __enter__(self):
        self._thread.start()
        port = self._ready.result(timeout=60)
        self.config = self.target.model_copy(update={"port": port})
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    @property
    def connections(self):
        """Return how many sockets are open, to both sides."""
        return len(self._open)

    def swallow(self):
        """Let the open connections go silent; new ones work."""
        self._loop.call_soon_threadsafe(lambda: self._swallowed.update(self._open))

    def cut(self):
        """Cut the open connections."""
        self._loop.call_soon_threadsafe(self._abort_all)

    def lose(self, nth, *, up, then=None):
        """Lose the nth piece from now on, to the server or from it: call `then`, and cut the piece's connection."""
        self._left = nth, up, then

    def hold(self, text, *, repeats=False):
        """Hold the next request with a text back, and all later ones of its connection."""
        self._hold = text, repeats

    def count(self, text):
        """Count the requests with a text from now on."""
        self._counted, self.asked = text, 0

    def let_go(self):
        """Send what is held; its answer goes to `answers` alone, as its caller is gone."""
        self._loop.call_soon_threadsafe(self._let_go.set)

    def lose_some(self, pieces, then):
        """Lose a piece again and again, at random, one of about so many; call `then` at each."""

        def again():
            then()
            self.lose_some(pieces, then)

        self.lose(self._random.randrange(1, 2 * pieces), up=self._random.random() < 0.5, then=again)

    def spare(self):
        """Lose nothing more, once a loss that is under way has ended; return whether the chosen piece was lost."""
        spared = Future()
        self._loop.call_soon_threadsafe(lambda: spared.set_result(self._spare()))
        return spared.result(timeout=60)

    def _spare(self):
        left, self._left, self.cut_replies = self._left, None, 0.0
        return left is None

    def _loses(self, up):
        if self._left is None or self._left[1] != up:
            return False
        nth, _, then = self._left
        self._left = (nth - 1, up, then) if nth > 1 else None
        if nth == 1 and then is not None:
            then()  # it may choose the next piece
        return nth == 1

    def _run(self):
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self):
        self._end, self._let_go = asyncio.Event(), asyncio.Event()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self._ready.set_result(server.sockets[0].getsockname()[1])
        await self._end.wait()
        self._let_go.set()
        # Accept no more, and close only then: a connection that asyncio has accepted, and not handed over, stays open.
        self._loop.remove_reader(server.sockets[0])
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            self._abort_all()
            await asyncio.wait(tasks, timeout=0.1)
        server.close()

    def _abort_all(self):
        for writer in list(self._open):
            writer.transport.abort()

    async def _accept(self, reader, writer):
        self.accepted += 1
        self._open.add(writer)
        far_writer = None
        try:
            if self.black_hole:
                await self._end.wait()
                return
            far_reader, far_writer = await asyncio.open_connection(self.target.server, self.target.port)
            self._open.add(far_writer)
            held = []
            pumps = [asyncio.ensure_future(self._pump(reader, far_writer, held, up=True))]
            pumps.append(asyncio.ensure_future(self._pump(far_reader, writer, held, up=False)))
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            pass  # the server is away: who connected is told by the cut
        finally:
            for side in (writer, far_writer):
                if side is not None:
                    side.transport.abort()
                    self._open.discard(side)
                    self._swallowed.discard(side)

    async def _pump(self, reader, writer, held, *, up):
        while data := await reader.read(65536):
            if up and self._counted is not None:
                self.asked += data.count(self._counted)
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            if writer in self._swallowed:
                continue
            if self._loses(up) or (not up and self._random.random() < self.cut_replies):
                self.cuts += 1
                return
            if up and self._hold[0] is not None and self._hold[0] in data:
                self._hold = self._hold if self._hold[1] else (None, False)
                self.held += 1
                held.append(data)
                await self._let_go.wait()
            elif held and not up:
                self.answers.put(data)
                continue
            writer.write(data)
            await writer.drain()
            if held:
                await self._end.wait()
        if writer in self._swallowed:
            await self._end.wait()  # not even an end is passed on
