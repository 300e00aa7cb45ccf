"""Standing verdicts, as the interceptor gives them: rules that look at ids alone are granted to messagers."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from ray_messaging.errors import Closed, MessagingError, TransitError
from ray_messaging.interception.rules.rule import Rule
from ray_messaging.interception.server.rule_set import RuleSet
from ray_messaging.interception.server.state.table import Table
from ray_messaging.interception.wire.rule_snapshot import (
    MOST_ENTRIES,
    RuleSnapshot,
    can_grant,
    encode_grant,
    grant_of,
    size_of,
)
from ray_messaging.transports.epochs import new_epoch

logger = logging.getLogger(__name__)

# Has verdicts count under a number on the server, unless a higher one does. Raises Fenced, TransitError.
Write = Callable[[int], Awaitable[None]]

CALM_S = 1.0  # rules that change all the time are not worth granting
_PAUSE_S = 0.2
_NOTHING = encode_grant(RuleSnapshot(0))


class RuleDelegation:
    """Grant rules that do not change, each state of them under a number that the server checks as it checks epochs.

    A number is written to the server before rules are granted under it, and a change of the rules has returned only
    when a higher one is there: no send escapes it, whatever a messager believes.
    """

    def __init__(self, rules: RuleSet, epoch: int, write: Write | None) -> None:
        self._rules = rules
        self._write = write if epoch > 0 else None
        self.number = 0  # under which the rules as they are now would be granted: a new one with each change
        self._given = -1  # the last number under which they may have been granted
        self._ended = 0  # what was granted below this number counts on the server no more
        self._ending: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._closed = False
        self.begin()

    def begin(self) -> None:
        """Begin with rules as they are now; what was granted before ends."""
        self.number = new_epoch(self.number)
        self._seen: tuple[Rule, ...] = self._rules.now
        self._packed = b""
        self._since = time.monotonic()
        # Others are looked at no more than that: their tables may change with every batch.
        grantable = self._write is not None and can_grant(self._seen)
        self._tables: list[Table[Any]] = [rule.state for rule in self._seen if rule.state is not None and grantable]
        self._changes = self._count()
        self._can = grantable and size_of(self._seen) <= MOST_ENTRIES
        self._end_soon()

    def _count(self) -> int:
        return sum(table.version for table in self._tables)

    @property
    def offer(self) -> int:
        """Return the number under which rules can be had, or count already; 0: under none."""
        if self._write is None:
            return 0
        self.look()
        return self.number if self._can and time.monotonic() - self._since >= CALM_S else 0

    # -- changes --------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Take note of a change of the rules."""
        if self._rules.now is not self._seen or self._count() != self._changes:
            self.begin()

    async def settle(self) -> None:
        """Wait until nothing counts any more that was granted before the last change; raises what the server says."""
        self._end_soon()
        if self._ending is not None:
            await asyncio.wait((self._ending,))  # not cancelled with us
        if self._failure is not None and self._owing:
            raise self._failure.with_traceback(None)
        if self._owing:
            raise Closed("the interceptor was closed before what it had granted was at its end: ask its successor")

    @property
    def _owing(self) -> bool:
        return self._ended <= self._given < self.number

    def _end_soon(self) -> None:
        if self._owing and self._ending is None and not self._closed:
            self._ending = asyncio.create_task(self._end(), name="ray_messaging end of a grant")

    async def _end(self) -> None:
        """Tell the server, however long it is away."""
        self._failure = None
        try:
            while self._owing:
                try:
                    await self._tell(self.number)
                except TransitError as error:
                    logger.warning("the server cannot be told that the rules have changed, trying on: %s", error)
                    await asyncio.sleep(_PAUSE_S)
        except Exception as error:  # whoever made the change is told
            logger.exception("the server does not take the end of what was granted")
            self._failure = error
        finally:
            self._ending = None

    async def _tell(self, number: int) -> None:
        assert self._write is not None
        await self._write(number)
        self._ended = max(self._ended, number)

    # -- granting -------------------------------------------------------------------------------------------------

    def answer(self, held: int) -> bytes | Awaitable[bytes]:
        """Answer who holds the rules of a number (0: none) with a grant."""
        number = self.offer
        if number == 0 or self._owing:  # the end of an earlier grant comes first
            return _NOTHING
        return encode_grant(RuleSnapshot(number)) if held == number else self._grant()

    async def _grant(self) -> bytes:
        """Grant the rules as they are, unless they change while the server is told."""
        if self._owing:  # they have changed since this was asked: a later grant must not hide what an earlier one owes
            return _NOTHING
        number = self._given = self.number
        try:
            await self._tell(number)
        except MessagingError as error:
            logger.info("the rules are not granted, as the server does not take their number: %s", error)
            return _NOTHING
        if self.offer == 0 or number != self.number:
            return _NOTHING
        if not self._packed:
            self._packed = encode_grant(grant_of(self.number, self._seen))
        return self._packed

    async def renew(self) -> None:
        """Tell the server the number once more, as it has lost it: what was granted under an older one ends again."""
        self.look()
        if self._given >= 0:
            await self._tell(self.number)

    async def close(self) -> None:
        """Grant no more, and tell the server no more."""
        self._closed, self._can = True, False
        if self._ending is not None:
            self._ending.cancel()
            await asyncio.gather(self._ending, return_exceptions=True)
