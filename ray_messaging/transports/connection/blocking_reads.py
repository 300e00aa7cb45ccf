"""Blocking reads of streams. They have a separate connection."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ray_messaging.transports.connection.link import RedisLink
from ray_messaging.transports.connection.protocol import Wire
from ray_messaging.transports.connection.replica_guard import TooFewReplicasError

# The server answers a blocking read when the read ends. So the time limit for the answer is this much longer than the
# read, in seconds.
_MARGIN_S = 5.0
Commands = Sequence[Sequence[Any]]


class BlockingReads:
    """Blocking reads of streams, one read at a time, because nothing else can use the connection during a read.

    Args: `own_cursors` says that each cursor is the id of an entry of its stream. Then a cursor after the stream's last
    entry shows that the server has lost entries. Without `own_cursors`, such a cursor shows nothing.
    """

    def __init__(self, link: RedisLink, *, own_cursors: bool = True) -> None:
        self._link = link
        self._own_cursors = own_cursors
        self._wire: Wire | None = None

    @property
    def waited_s(self) -> float:
        """Return for how many seconds the last read waited until the first byte of its answer."""
        return 0.0 if self._wire is None else self._wire.waited_s

    async def read(
        self, cursors: Mapping[str, str], count: int, block_s: float | None, behind: Commands = ()
    ) -> list[Any]:
        """Read up to `count` entries of each stream after its cursor; wait up to `block_s` for the first entry.

        If `block_s` is None, do not wait. `cursors` maps the key of each stream to the last entry that was read.

        Returns: the reply, [[key, [[entry, [field, value, ...]], ...]], ...], in which all values are bytes; then the
        replies of the commands in `behind`, which run right after the read.
        """
        block = [] if block_s is None else ["BLOCK", max(1, int(block_s * 1000))]
        command = ["XREAD", "COUNT", count, *block, "STREAMS", *cursors, *cursors.values()]
        done = False
        try:
            timeout_s = (block_s or 0.0) + _MARGIN_S
            reply, *more = await self._link.persist(partial(self._once, [command, *behind], timeout_s, cursors))
            done = True
        finally:
            # The read failed or was cancelled, but its reply may still arrive. So the connection cannot be used again.
            if not done:
                self.close()
        return [reply or [], *more]

    async def _once(self, commands: Commands, timeout_s: float, cursors: Mapping[str, str]) -> list[Any]:
        wire = self._wire
        if wire is None or not wire.is_open:
            wire = await self._opened(cursors)
        # While bytes of a reply arrive there is no time limit, because a large reply over a slow link takes long.
        guard = self._link.guard
        if guard is None and len(commands) == 1:
            return [await wire.call(commands[0], math.inf, timeout_s)]
        behind = () if guard is None else guard.behind
        try:
            replies = await asyncio.gather(*wire.calls([*commands, *behind], math.inf, timeout_s))
            if guard is not None:
                guard.check(replies)
        except TooFewReplicasError:
            self.close()  # the server may no longer be the primary, and not know it
            raise
        return replies

    async def _opened(self, cursors: Mapping[str, str]) -> Wire:
        wire = await self._link.open_wire()
        try:
            if self._link.greet is not None:
                await self._link.greet(wire, cursors if self._own_cursors else {})
        except BaseException:
            wire.close()
            raise
        self._wire = wire
        return wire

    def close(self) -> None:
        """Close the connection. The next read opens a new one."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()
