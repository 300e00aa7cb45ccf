"""Rule delegation: a messager applies a copy of the rules itself.

A batch whose messages all pass then needs no call to the interceptor.
"""

import asyncio
import logging
from contextlib import suppress
from functools import cached_property

from ray_messaging.common.backoff import SNAPSHOT_RETRY
from ray_messaging.errors import FrameError
from ray_messaging.interception.broadcasts import Intersections, PairRows, pair_rows
from ray_messaging.interception.lane import SNAPSHOT, LaneClient
from ray_messaging.interception.rule_snapshot import (
    RuleSnapshot,
    SnapshotRequest,
    decode_snapshot,
    encode_snapshot_request,
)
from ray_messaging.interception.rules.rule import Rule
from ray_messaging.interception.verdicts import BatchVerdict
from ray_messaging.model.batch import Batch

logger = logging.getLogger(__name__)

# While messages pass, a messager reports to the interceptor, at intervals of this length, how many have passed. If
# there are many messagers, the interceptor sends them a factor, with which they multiply the interval.
_REPORT_S = 0.1 / 3
_PAUSE_S = 0.02  # when no message has passed for this time, the number of passed messages is reported
_PATIENCE_S = 10.0
_LAST_REPORT_S = 0.1
_MANY = 1_000  # rules with this many pairs, edges and members in all, or more, are built in a thread
_REMEMBERED = 256  # how many passed batches are remembered, so that a batch that is judged again is counted only once


class DelegatedRules:
    """A snapshot of the interceptor's rules, which a messager applies without asking the interceptor.

    The server accepts messages that the snapshot has passed only while the snapshot's number is valid. So the snapshot
    needs no time limit. The messager drops it when the server refuses the number, when the interceptor names another
    number, and when the connection to the interceptor ends. The snapshot's rules can only pass a batch as a whole. If
    they would block one row, the interceptor judges the batch. A messager reports how many messages the rules have
    passed. If its process is killed before a report, the interceptor's count `judged` is too low.
    """

    def __init__(self, exp_id: str) -> None:
        self.passed = 0  # the number of messages that snapshots have passed
        self._exp_id = exp_id
        self._lane: LaneClient | None = None
        # The verdict on each batch that passes, or None if there is no snapshot.
        self._passing: BatchVerdict | None = None
        self._rules: tuple[Rule, ...] = ()
        self._intersections = Intersections()
        self._stretch = 1.0  # the factor by which the interceptor has made the interval of reports longer
        self._unreported = 0  # how many of the `passed` messages the interceptor does not know yet
        self._seen = 0  # the value of `passed` when the timer was set
        # By the number of a passed batch's first message: whether the batch's messages are counted in `passed`.
        self._recent: dict[int, bool] = {}
        self._asked_at = 0.0
        self._not_before = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        # The loop is asked for at its first use, because this object may be made before a loop runs.
        return asyncio.get_running_loop()

    # -- passing messages -----------------------------------------------------------------------------------------

    def judge(self, batch: Batch) -> BatchVerdict | None:
        """Return the verdict if the whole batch passes, or None if the interceptor must judge it."""
        passing = self._passing
        if passing is None:
            return None
        if self._lane is None or not self._lane.alive:
            self.drop()
            return None
        try:
            pairs = None if batch.extension is None else pair_rows(batch)
            for rule in self._rules:
                if self._blocks(rule, batch, pairs):
                    return None
        except Exception:  # a rule has failed, so the interceptor judges the batch, and handles the failure
            logger.exception(
                "a rule that senders apply themselves failed on a batch, so the interceptor judges the batch"
            )
            self.drop()
            return None
        if batch.first not in self._recent:
            self._recent[batch.first] = True
            self._count(batch.rows)
            if len(self._recent) > _REMEMBERED:
                del self._recent[next(iter(self._recent))]
        if self._timer is None:
            self._set_timer()
        return passing

    @property
    def held(self) -> bool:
        """Return whether this sender has a snapshot of the rules that it may use."""
        return self._passing is not None

    @property
    def empty(self) -> bool:
        """Return whether the messager has a snapshot of the rules, and this snapshot contains no rule."""
        return self._passing is not None and not self._rules

    async def fetched(self) -> None:
        """If this messager has asked the interceptor for a snapshot, wait until the request has ended."""
        if self._asking is not None:
            await asyncio.wait((self._asking,))

    def _blocks(self, rule: Rule, batch: Batch, pairs: PairRows | None) -> bool:
        check = None if pairs is None else self._intersections.check(rule)
        if pairs is None or check is None:
            return bool(rule.check_batch(batch, self._exp_id))
        return bool(len(self._intersections.rows(rule, check, batch, pairs)))

    def _count(self, messages: int) -> None:
        self.passed += messages
        self._unreported += messages

    def heard(self, lane: LaneClient, number: int, asked_at: float, batch: Batch) -> None:
        """Note that the interceptor has answered about a batch, and request its rules if the answer offers them.

        Args: `asked_at` is the loop time when the messager asked the interceptor about this batch. `number` is the
        number of the rule snapshot that the answer offers (0: none).
        """
        # The delegated rules have passed this batch before, but the server has refused it. Now the interceptor has
        # judged and counted it, so it no longer counts here.
        if self._recent.get(batch.first):
            self._recent[batch.first] = False
            self._count(-batch.rows)
        self._lane = lane
        if self._unreported and self._timer is None:
            self._set_timer()
        self._confirm(number)
        if number and self._passing is None and asked_at >= self._not_before:
            self._ask()

    def _confirm(self, number: int) -> None:
        """Drop the snapshot unless it has the number that the interceptor has just named as valid."""
        if self._passing is not None and self._passing.epoch != number:
            self.drop()

    def drop(self) -> None:
        """Drop the snapshot, so that the interceptor judges the next batch."""
        self._passing, self._rules = None, ()

    # -- asking the interceptor -----------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        self._seen = self.passed
        self._timer = self._loop.call_later(_PAUSE_S, self._on_timer)

    def _on_timer(self) -> None:
        """Report the messages passed since the last report, if a report is due or no more have passed lately."""
        self._timer = None
        if not self._unreported or self._lane is None or not self._lane.alive:
            return
        if self._seen == self.passed or self._loop.time() >= self._asked_at + self._stretch * _REPORT_S:
            self._ask()
        else:
            self._set_timer()

    def _ask(self) -> None:
        if self._asking is None and self._lane is not None:
            self._asked_at = self._loop.time()
            self._asking = asyncio.create_task(self._exchange(self._lane), name="ray_messaging rule snapshot")
            self._asking.add_done_callback(self._asked)

    def _asked(self, task: "asyncio.Task[None]") -> None:
        self._asking = None
        if not task.cancelled() and task.exception() is not None:
            logger.error(
                "the interceptor's rules could not be requested: please report this", exc_info=task.exception()
            )
            self.drop()
        if self._unreported and self._timer is None and self._lane is not None:
            self._set_timer()

    async def _exchange(self, lane: LaneClient) -> None:
        try:
            held = 0 if self._passing is None else self._passing.epoch
            async with asyncio.timeout(_PATIENCE_S):
                snapshot = decode_snapshot(await lane.ask(self._request(held), SNAPSHOT))
            if self._lane is not lane:
                return
            self._stretch = snapshot.stretch
            if snapshot.rules is None or held:
                self._confirm(snapshot.number)
            if not snapshot.number:
                self._not_before = self._loop.time() + SNAPSHOT_RETRY.first_s
            if snapshot.rules is not None:
                await self._take(lane, snapshot)
        except (OSError, TimeoutError) as error:
            logger.info(
                "the interceptor does not answer a request for its rules, so it is asked about each batch: %s", error
            )
        except FrameError as error:
            logger.warning(
                "the copy of the rules from the interceptor cannot be used, so the interceptor judges each batch: %s",
                error,
            )
            self.drop()
            self._not_before = self._loop.time() + SNAPSHOT_RETRY.first_s

    def _request(self, held: int) -> bytes:
        passed, self._unreported = self._unreported, 0
        return encode_snapshot_request(SnapshotRequest(held, passed))

    async def _take(self, lane: LaneClient, snapshot: RuleSnapshot) -> None:
        rules = snapshot.build() if snapshot.entries < _MANY else await asyncio.to_thread(snapshot.build)
        if self._lane is lane and snapshot.number:
            self._passing, self._rules = BatchVerdict(epoch=snapshot.number), rules

    async def close(self) -> None:
        """Drop the snapshot. Report how many messages passed since the last report, if the interceptor is reachable."""
        held = 0 if self._passing is None else self._passing.epoch
        self.drop()
        lane, self._lane = self._lane, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_LAST_REPORT_S):
                if self._asking is not None:
                    await asyncio.wait((self._asking,))
                if self._unreported and lane is not None and lane.alive:
                    await lane.ask(self._request(held), SNAPSHOT)
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
