"""Rule delegation in the interceptor: it lets messagers apply rules that judge by ids alone."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

from ray_messaging.common.backoff import RULE_STATE_RETRY
from ray_messaging.errors import Closed, MessagingError, TransitError
from ray_messaging.interception.interceptor.rule_set import RuleSet
from ray_messaging.interception.interceptor.rule_tables import Table
from ray_messaging.interception.interceptor.rule_versions import RuleVersions
from ray_messaging.interception.rule_snapshot import (
    MAX_ENTRIES,
    MOST_STRETCH,
    RuleSnapshot,
    can_delegate,
    encode_snapshot,
    entry_count,
    snapshot_of,
)
from ray_messaging.interception.rules.rule import Rule
from ray_messaging.transports.transport_values import new_epoch

logger = logging.getLogger(__name__)

# A function that stores the number of a snapshot on the server, unless the server has a higher number. The server then
# accepts verdicts of senders that have this snapshot. The function raises Fenced or TransitError.
PublishSnapshot = Callable[[int], Awaitable[None]]

CALM_S = 1.0  # rules are delegated only when they have not changed for this long
# If there are more messagers than this, each requests snapshots less often. A messager that sends would make 30
# requests a second, and each request takes 50 us of the interceptor's processor time.
_EAGER = 32
_NOTHING = encode_snapshot(RuleSnapshot(0))


class RuleDelegation:
    """Numbered snapshots of the rules, for messagers that apply the rules themselves.

    With each send, the server compares the number of the sender's snapshot with the number that it has stored. A number
    is stored on the server before a messager gets the snapshot. If rules are changed while messagers may have a
    snapshot, a higher number is stored before the change returns, and from then on no message passes by the old rules.
    All numbers are above the interceptor's epoch (the number of its start). So the server can tell a messager whether
    the rules or the interceptor have changed.
    """

    def __init__(self, rules: RuleSet, epoch: int, publish: PublishSnapshot | None, versions: RuleVersions) -> None:
        self._rules = rules
        self._versions = versions  # nothing is delegated while a later version of the rules waits for its step
        self._publish_number = publish
        self.enabled = publish is not None and epoch > 0
        # The number of a snapshot of the current rules. Each change of the rules takes a new number.
        self.number = max(0, epoch)
        self._given = -1  # the number of the last snapshot that a messager may have got
        self._revoked = 0  # the server accepts no snapshots with lower numbers than this
        self._revoking: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._closed = False
        self.restart()

    def restart(self) -> None:
        """Use the present rules for later snapshots, under a new number, and revoke the messagers' snapshots."""
        self.number = new_epoch(self.number)
        self._seen: tuple[Rule, ...] = self._rules.now
        self._delegated = self._rules.each
        self._packed = 0.0, b""  # (the factor `stretch` in the last encoded snapshot, this snapshot)
        self._since = time.monotonic()
        # If the rules cannot be delegated, their tables are not watched, because these may change with every batch.
        possible = self.enabled and can_delegate(self._delegated)
        self._tables: list[Table[Any]] = [rule.state for rule in self._delegated if rule.state is not None and possible]
        self._changes = self._count_changes()
        self._can = possible and entry_count(self._delegated) <= MAX_ENTRIES
        self._start_revoking()

    def _count_changes(self) -> int:
        return sum(table.version for table in self._tables)

    @property
    def offer(self) -> int:
        """Return the number of the snapshot of the rules that messagers can request now.

        Return 0 if there is no such snapshot: the rules cannot be delegated, or a change of the rules was made just
        now or will soon come into force.
        """
        if not self.enabled:
            return 0
        self.notice_changes()
        if not self._can or self._versions.first < math.inf:
            return 0
        return self.number if time.monotonic() - self._since >= CALM_S else 0

    # -- revoking -------------------------------------------------------------------------------------------------

    def notice_changes(self) -> None:
        """Revoke the snapshots of the rules that messagers have, if the rules have changed since the last call."""
        if self._rules.now is not self._seen or self._count_changes() != self._changes:
            self.restart()

    async def revoked(self) -> None:
        """Wait until all snapshots that were made before the last change of the rules are revoked.

        Raises: the server's error if the server has refused a number; Closed if the interceptor was closed before
        all these snapshots were revoked.
        """
        self._start_revoking()
        if self._revoking is not None:
            await asyncio.wait((self._revoking,))  # if this call is cancelled, the task goes on
        if self._failure is not None and self._outdated:
            raise self._failure.with_traceback(None)
        if self._outdated:
            raise Closed(
                "the interceptor, which runs the rules, was closed before senders had dropped the old rules: make the "
                "change again"
            )

    @property
    def _outdated(self) -> bool:
        """Return whether the server still accepts a snapshot of old rules."""
        return self._revoked <= self._given < self.number

    def _start_revoking(self) -> None:
        if self._outdated and self._revoking is None and not self._closed:
            self._revoking = asyncio.create_task(self._revoke(), name="ray_messaging revoke delegated rules")

    async def _revoke(self) -> None:
        """Send the server the number of the newest snapshot, which revokes all earlier ones.

        Retry while the server cannot be reached.
        """
        self._failure = None
        try:
            while self._outdated:
                try:
                    await self._publish(self.number)
                except TransitError as error:
                    logger.warning(
                        "senders may still use the old rules, because the server does not answer; trying again: %s",
                        error,
                    )
                    await asyncio.sleep(RULE_STATE_RETRY.first_s)
        except Exception as error:  # the caller that has changed the rules gets this error
            logger.exception("senders may still use the old rules, because the server refuses the change")
            self._failure = error
        finally:
            self._revoking = None

    async def _publish(self, number: int) -> None:
        assert self._publish_number is not None
        await self._publish_number(number)
        self._revoked = max(self._revoked, number)

    # -- giving out snapshots -------------------------------------------------------------------------------------

    def answer(self, held: int, messagers: int = 1) -> bytes | Awaitable[bytes]:
        """Answer the request of a messager that has the snapshot with the number `held` (0: no snapshot).

        Args: `messagers` is the number of messagers that may request snapshots.
        """
        number = self.offer
        if number == 0 or self._outdated:  # earlier snapshots must be revoked first
            return _NOTHING
        stretch = min(MOST_STRETCH, max(1.0, messagers / _EAGER))
        return encode_snapshot(RuleSnapshot(number, None, stretch)) if held == number else self._give(stretch)

    async def _give(self, stretch: float) -> bytes:
        """Publish the number of a snapshot of the rules, then return the snapshot.

        If the rules change before the number is published, or if the server refuses the number, return an answer
        without rules, so that the messager asks about each batch.

        Args: `stretch` is the factor by which messagers make the intervals between their reports longer.
        """
        # If the rules have changed since `answer` was called, the older snapshot must be revoked first.
        if self._outdated:
            return _NOTHING
        number = self._given = self.number
        try:
            await self._publish(number)
        except MessagingError as error:
            logger.info(
                "senders do not apply the rules themselves, because the server does not accept their number (%s)", error
            )
            return _NOTHING
        if self.offer == 0 or number != self.number:
            return _NOTHING
        if self._packed[0] != stretch:
            self._packed = stretch, encode_snapshot(snapshot_of(self.number, self._delegated, stretch))
        return self._packed[1]

    async def renew(self) -> None:
        """Store the number of the current snapshot on the server again.

        This is called when the server has lost data. The server may then have an older number, under which old rules
        are valid.
        """
        self.notice_changes()
        if self._given >= 0:
            await self._publish(self.number)

    async def close(self) -> None:
        """Give out no more snapshots, and publish no more numbers."""
        self._closed, self._can = True, False
        if self._revoking is not None:
            self._revoking.cancel()
            await asyncio.gather(self._revoking, return_exceptions=True)
