"""Blocking reads of streams, over a connection of their own."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ray_messaging.transports.connection.link import RedisLink
from ray_messaging.transports.connection.protocol import Wire
from ray_messaging.transports.connection.replica_guard import TooFewReplicasError

# A blocking read answers by itself before the socket's timeout can.
_MARGIN_S = 5.0
Commands = Sequence[Sequence[Any]]


class BlockingReads:
    """Blocking reads of streams; one at a time, because a read keeps the connection to itself while it waits."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._wire: Wire | None = None

    async def read(self, cursors: Mapping[str, str], count: int, block_s: float | None) -> Any:  # noqa: ANN401 - a reply
        """Return up to `count` entries of each stream (its key) after its cursor; wait for the first up to `block_s`.

        With None it does not wait. The reply is [[key, [[entry, [field, value, ...]], ...]], ...], bytes all of it.
        """
        return (await self.read_with(cursors, count, block_s))[0]

    async def read_with(
        self, cursors: Mapping[str, str], count: int, block_s: float | None, behind: Commands = ()
    ) -> list[Any]:
        """Return what `read` does, and the replies of commands that run right behind it, in the same round trip."""
        block = [] if block_s is None else ["BLOCK", max(1, int(block_s * 1000))]
        command = ["XREAD", "COUNT", count, *block, "STREAMS", *cursors, *cursors.values()]
        done = False
        try:
            timeout_s = (block_s or 0.0) + _MARGIN_S
            reply, *more = await self._link.persist(lambda: self._once([command, *behind], timeout_s, cursors))
            done = True
        finally:
            if not done:  # cancelled: its reply may still come, so this connection cannot be used again
                self.close()
        return [reply or [], *more]

    async def _once(self, commands: Commands, timeout_s: float, cursors: Mapping[str, str]) -> list[Any]:
        wire = self._wire
        if wire is None or not wire.is_open:
            wire = await self._opened(cursors)
        # A reply may be large, and the link slow: it may take as long as it takes, while it comes.
        guard = self._link.guard
        if guard is None and len(commands) == 1:
            return [await wire.call(commands[0], math.inf, timeout_s)]
        behind = () if guard is None else guard.behind
        try:
            replies = await asyncio.gather(*wire.calls([*commands, *behind], math.inf, timeout_s))
            if guard is not None:
                guard.check(replies)
        except TooFewReplicasError:
            self.close()  # it may be a primary no more, without knowing it
            raise
        return replies

    async def _opened(self, cursors: Mapping[str, str]) -> Wire:
        wire = await self._link.open_wire()
        try:
            if self._link.greet is not None:
                await self._link.greet(wire, cursors)
        except BaseException:
            wire.close()
            raise
        self._wire = wire
        return wire

    def close(self) -> None:
        """Let the connection go; the next read opens another one."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()
