"""What foreign Redis clients publish to our channels: at most once, as Pub/Sub is."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from ray_messaging.errors import ServerRefused
from ray_messaging.transports.base import Ingress
from ray_messaging.transports.redis_link import RedisLink

logger = logging.getLogger(__name__)

# A subscription of very many channels goes out in commands of this many.
_CHUNK = 5_000
_PAUSE_S = 0.2


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
        self._expected = 0
        self._ready: asyncio.Future[None] | None = None
        self._ours = False
        self._first: dict[bytes, bytes] = {}
        self.cuts = 0

    async def subscribe(self, channels: Sequence[str], globs: Sequence[str]) -> None:
        """Add channels and patterns; return when the server has confirmed all."""
        fresh = [channel for channel in dict.fromkeys(c.encode() for c in channels) if channel not in self._channels]
        patterns = [glob for glob in dict.fromkeys(g.encode() for g in globs) if glob not in self._globs]
        self._channels.update(fresh)
        self._globs += patterns
        self._ready = asyncio.get_running_loop().create_future()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="ray_messaging ingress")
        elif self._connection is not None and self._connection.is_connected:
            await self._ask(self._connection, fresh, patterns)
        await self._ready

    async def close(self) -> None:
        """Stop; what is published from now on does not arrive."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _ask(self, connection: AbstractConnection, channels: Sequence[bytes], globs: Sequence[bytes]) -> None:
        self._expected += len(channels) + len(globs)
        for start in range(0, len(channels), _CHUNK):
            await connection.send_command("SUBSCRIBE", *channels[start : start + _CHUNK])
        if globs:
            await connection.send_command("PSUBSCRIBE", *globs)

    async def _run(self) -> None:
        while True:
            connection = self._connection = self._link.dedicated()
            try:
                await connection.connect()
                self._ours, self._expected = False, 0
                await self._ask(connection, [self._brackets, *self._channels], self._globs)
                while True:
                    self._take(await connection.read_response(timeout=None))
            except (RedisError, OSError) as error:
                refused = self._link.translated(error)
                if isinstance(refused, ServerRefused):
                    if self._ready is not None and not self._ready.done():
                        self._ready.set_exception(refused)
                        return
                    raise refused from error
                self.cuts += 1
                logger.warning(
                    "the subscription at %s was cut (%s): what foreign clients publish until it is back is lost",
                    self._link.where,
                    type(error).__name__,
                )
            finally:
                await connection.disconnect(nowait=True)
            await asyncio.sleep(_PAUSE_S)

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
            if not self._ours and channel not in self._channels and self._first_of(channel, pattern):
                self._sink(Ingress(channel.decode(errors="replace"), data, pattern.decode()))
        else:
            self._expected -= 1
            if self._expected == 0 and self._ready is not None and not self._ready.done():
                self._ready.set_result(None)

    def _first_of(self, channel: bytes, pattern: bytes) -> bool:
        if len(self._globs) == 1:
            return True
        if len(self._first) > 100_000:  # foreign clients choose the channels' names
            self._first.clear()
        return self._first.setdefault(channel, pattern) == pattern
