"""News of an experiment's steps. They are in a stream, which is read once for all messagers of a process."""

import asyncio
from typing import Any
from weakref import WeakValueDictionary

from ray_messaging.transports.connection.blocking_reads import BlockingReads, Commands
from ray_messaging.transports.connection.link import RedisLink
from ray_messaging.transports.cursors import order
from ray_messaging.transports.step_values import News


class _Round:
    """The state that all readers of one stream in a process share: the latest news, and whether a read is under way.

    Each step wakes everybody who waits for it. With one read for all groups of a process, the server has to wake only
    one client in each process.
    """

    def __init__(self) -> None:
        self.newest = News("0-0")
        self.reading = False
        self.done = asyncio.Event()  # the event is set when a read has ended; each read gets a new event


# The `_Round` of each event loop, server and stream. A `_Round` is deleted with the last reader that uses it.
_ROUNDS: WeakValueDictionary[tuple[Any, ...], _Round] = WeakValueDictionary()


class StepNewsReader:
    """Reader of one stream of news about steps, for one messager.

    While another messager of the process reads the stream, this reader waits for the result of that read.

    Args: with `selected`, the stream has only some of the news. A caller's position may then be after the stream's last
    entry.
    """

    def __init__(self, link: RedisLink, stream: str, *, selected: bool = False) -> None:
        self._reads = BlockingReads(link, own_cursors=not selected)
        config = link.config
        named = config.sentinels, config.service, config.cluster
        self._server = config.server, config.port, config.db, *named, link.guard is None
        self._stream = stream
        self._round: _Round | None = None

    def close(self) -> None:
        """Close the connection. The next read opens a new one."""
        self._reads.close()

    async def wait(self, news: str, block_s: float, behind: Commands = (), replies: list[Any] | None = None) -> News:
        """Wait up to `block_s` seconds for entries after `news` in the stream of news; return the latest entry.

        If no entry comes in this time, return `News(news)`.

        Args: `news` is an entry id. `behind` are commands that run right after the read, in the same round trip. Their
        replies are put into `replies`, which stays empty if no entry comes, or if another messager of the process has
        read the news.
        """
        loop = asyncio.get_running_loop()
        if self._round is None:
            self._round = _ROUNDS.setdefault((loop, *self._server, self._stream), _Round())
        shared, deadline = self._round, loop.time() + block_s
        if order(news) > order(shared.newest.place):
            shared.newest = News(news)  # the caller has newer news from the answer to another call
        while order(shared.newest.place) <= order(news):
            left = deadline - loop.time()
            if left <= 0:
                return News(news)
            if not shared.reading:
                found = await self._read(shared, news, left, behind)
                if replies is not None:
                    replies[:] = found
                continue
            try:
                async with asyncio.timeout(left):
                    await shared.done.wait()
            except TimeoutError:
                return News(news)
        return shared.newest

    async def _read(self, shared: _Round, news: str, block_s: float, behind: Commands) -> list[Any]:
        shared.reading, shared.done = True, asyncio.Event()
        try:
            found, *replies = await self._reads.read({self._stream: news}, 1000, block_s, behind)
            if found:
                place, (_, _, _, opened, _, boxes, _, directory, _, blocked) = found[0][1][-1]
                shared.newest = News(place.decode(), int(opened), int(boxes), int(directory), blocked == b"1")
            # The commands `behind` read the beginning of a box. Without news, the box may still change, so the replies
            # to these commands are not used.
            return replies if found else []
        finally:
            shared.reading = False
            shared.done.set()
