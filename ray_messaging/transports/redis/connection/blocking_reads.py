"""Blocking reads of streams, over a connection of their own."""

import math
from collections.abc import Awaitable, Mapping
from typing import Any

from ray_messaging.transports.redis.connection.link import RedisLink
from ray_messaging.transports.redis.connection.protocol import Wire

# A blocking read answers by itself before the socket's timeout can.
_MARGIN_S = 5.0


class BlockingReads:
    """Blocking reads of streams; one at a time, because a read keeps the connection to itself while it waits."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._wire: Wire | None = None

    async def read(self, cursors: Mapping[str, str], count: int, block_s: float | None) -> Any:  # noqa: ANN401 - a reply
        """Return up to `count` entries of each stream (its key) after its cursor; wait for the first up to `block_s`.

        With None it does not wait. The reply is [[key, [[entry, [field, value, ...]], ...]], ...], bytes all of it.
        """
        block = [] if block_s is None else ["BLOCK", max(1, int(block_s * 1000))]
        command = ["XREAD", "COUNT", count, *block, "STREAMS", *cursors, *cursors.values()]
        done = False
        try:
            reply = await self._link.persist(lambda: self._once(command, (block_s or 0.0) + _MARGIN_S, cursors))
            done = True
        finally:
            if not done:  # cancelled: its reply may still come, so this connection cannot be used again
                self.close()
        return reply or []

    def _once(self, command: list[Any], timeout_s: float, cursors: Mapping[str, str]) -> Awaitable[Any]:
        wire = self._wire
        # A reply may be large, and the link slow: it may take as long as it takes, while it comes.
        return (
            self._opened(command, timeout_s, cursors)
            if wire is None or not wire.is_open
            else wire.call(command, math.inf, timeout_s)
        )

    async def _opened(self, command: list[Any], timeout_s: float, cursors: Mapping[str, str]) -> Any:  # noqa: ANN401 - a reply
        wire = await Wire.open(self._link.dedicated())
        try:
            if self._link.greet is not None:
                await self._link.greet(wire, cursors)
        except BaseException:
            wire.close()
            raise
        self._wire = wire
        return await wire.call(command, math.inf, timeout_s)

    def close(self) -> None:
        """Let the connection go; the next read opens another one."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()


def after(entry: str) -> str:
    """Return the smallest entry id above one."""
    milliseconds, _, number = entry.partition("-")
    return f"{milliseconds}-{int(number) + 1}"
