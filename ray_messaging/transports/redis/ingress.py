"""What foreign Redis clients publish to our channels: at most once, as Pub/Sub is."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ray_messaging.errors import MessagingError, ServerRefused
from ray_messaging.loops import Loop
from ray_messaging.transports.base import Ingress
from ray_messaging.transports.redis.link import RedisLink

logger = logging.getLogger(__name__)

# A subscription of very many channels goes out in commands of this many.
_CHUNK = 5_000
_PAUSE_S = 0.2
# A link that died without a word brings nothing, as one does on which nobody says anything: after so much silence the
# server is asked, and is taken for gone where it does not answer for so long.
_SILENCE_S, _PONG_S = 5.0, 10.0


class RedisIngress:
    """Subscribe to exact channels, and to patterns only where the user wrote one.

    Our own send script publishes between two brackets on a channel of its own, and a script is atomic: what arrives
    between them is ours, and is dropped here. One channel that several subscriptions match is handed on once.
    """

    def __init__(self, link: RedisLink, brackets: str, sink: Callable[[Ingress], None]) -> None:
        self._link = link
        self._brackets = brackets.encode()
        self._sink = sink
        self._channels: set[bytes] = set()
        self._globs: list[bytes] = []
        self._connection: AbstractConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._commands: deque[tuple[str, list[bytes]]] = deque()
        self._asked = 0  # confirmations of the command under way that are still to come
        self._unconfirmed: set[bytes] = set()
        self._waiting: list[asyncio.Future[None]] = []
        self._ours = False
        self._first: dict[bytes, bytes] = {}
        self.cuts = 0

    async def subscribe(self, channels: Sequence[str], globs: Sequence[str]) -> None:
        """Add channels and patterns; return when the server has confirmed all."""
        fresh = [channel for channel in dict.fromkeys(c.encode() for c in channels) if channel not in self._channels]
        patterns = [glob for glob in dict.fromkeys(g.encode() for g in globs) if glob not in self._globs]
        self._channels.update(fresh)
        self._globs += patterns
        ready = asyncio.get_running_loop().create_future()
        self._waiting.append(ready)
        if self._task is None:
            self._unconfirmed.add(self._brackets)
            self._task = asyncio.create_task(self._run(), name="ray_messaging ingress")
        elif self._task.done():
            self._fail(ServerRefused(f"the server at {self._link.where} refused a subscription before"))
        self._unconfirmed.update(fresh, patterns)
        if self._connection is not None and self._connection.is_connected:
            self._plan(fresh, patterns)
            await self._ask(self._connection)
        self._confirm()
        await ready

    def loop(self) -> Loop:
        """Tell whether what is published still arrives."""
        return Loop("subscription", self._task is not None and not self._task.done(), busy=False, age_s=0.0)

    async def close(self) -> None:
        """Stop; what is published from now on does not arrive."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def _plan(self, channels: Sequence[bytes], globs: Sequence[bytes]) -> None:
        for start in range(0, len(channels), _CHUNK):
            self._commands.append(("SUBSCRIBE", [*channels[start : start + _CHUNK]]))
        if globs:
            self._commands.append(("PSUBSCRIBE", [*globs]))

    async def _ask(self, connection: AbstractConnection) -> None:
        """Send the next command, unless one is under way: the server drops whoever lets confirmations pile up."""
        if self._commands and not self._asked:
            command, names = self._commands.popleft()
            self._asked = len(names)
            await connection.send_command(command, *names)
            await asyncio.sleep(0)  # confirmations of very many channels must not keep everybody else waiting

    async def _run(self) -> None:
        while True:
            connection = self._connection = self._link.dedicated()
            try:
                await connection.connect()
                # It bounds a command; who listens waits for as long as nobody says anything.
                connection.socket_timeout = None
                self._ours = False
                self._unconfirmed = {self._brackets, *self._channels, *self._globs}
                self._commands.clear()
                self._asked = 0
                self._plan([self._brackets, *self._channels], self._globs)
                await self._listen(connection)
            except (RedisError, OSError) as error:
                refused = self._link.translated(error)
                if isinstance(refused, ServerRefused):
                    logger.error("what foreign clients publish will not arrive: %s", refused)  # noqa: TRY400 - no bug
                    self._fail(refused)
                    return
                self.cuts += 1
                logger.warning(
                    "the subscription at %s was cut (%s): what foreign clients publish until it is back is lost",
                    self._link.where,
                    type(error).__name__,
                )
            except Exception as error:
                logger.exception("what foreign clients publish will not arrive")
                self._fail(MessagingError(f"listening failed ({type(error).__name__}: {error}): please report this"))
                return
            finally:
                await connection.disconnect(nowait=True)
            await asyncio.sleep(_PAUSE_S)

    async def _listen(self, connection: AbstractConnection) -> None:
        asked = False
        while True:
            await self._ask(connection)
            reply = await connection.read_response(timeout=_PONG_S if asked else _SILENCE_S)
            if reply is not None:
                asked = False
                self._take(reply)
            elif asked:
                raise RedisTimeoutError("no answer to a PING")
            else:
                asked = True
                await connection.send_command("PING")

    def _take(self, reply: Any) -> None:  # noqa: ANN401 - a reply
        kind = reply[0]
        if kind == b"message":
            _, channel, data = reply
            if channel == self._brackets:
                self._ours = data == b"("
            elif not self._ours:
                self._sink(Ingress(channel.decode(errors="replace"), data, None))
        elif kind == b"pmessage":
            _, pattern, channel, data = reply
            # The first pattern that brought a channel is the one that goes on bringing it.
            if (
                channel != self._brackets
                and not self._ours
                and channel not in self._channels
                and self._first_of(channel, pattern)
            ):
                self._sink(Ingress(channel.decode(errors="replace"), data, pattern.decode()))
        elif kind != b"pong":
            self._asked -= 1
            self._unconfirmed.discard(reply[1])
            self._confirm()

    def _confirm(self) -> None:
        """Let those go on who wait for confirmations, when all are there."""
        if self._unconfirmed:
            return
        waiting, self._waiting = self._waiting, []
        for ready in waiting:
            if not ready.done():
                ready.set_result(None)

    def _fail(self, error: Exception) -> None:
        waiting, self._waiting = self._waiting, []
        for ready in waiting:
            if not ready.done():
                ready.set_exception(error)

    def _first_of(self, channel: bytes, pattern: bytes) -> bool:
        if len(self._globs) == 1:
            return True
        if len(self._first) > 100_000:  # foreign clients choose the channels' names
            self._first.clear()
        return self._first.setdefault(channel, pattern) == pattern
