"""Standing verdicts, as a messager uses them: batches that pass by granted rules need not be asked about."""

import asyncio
import logging
from contextlib import suppress

from ray_messaging.errors import FrameError
from ray_messaging.interception.client.lane_client import LaneClient
from ray_messaging.interception.rules.rule import Rule
from ray_messaging.interception.wire.rule_snapshot import RuleSnapshot, SnapshotState, decode_grant, encode_standing
from ray_messaging.interception.wire.verdicts import VerdictReply
from ray_messaging.model.batch import Batch

logger = logging.getLogger(__name__)

# An interceptor that was not heard of for so long may be dead, or stand still: the next batch waits for its answer.
LEASE_S = 0.1
# While messages pass it is asked this often whether the rules still count, and told how many have passed.
_ASK_AGAIN_S = LEASE_S / 3
_PAUSE_S = 0.02  # messages that come no more for so long have stopped: their number is told
_PATIENCE_S = 10.0
_LAST_WORD_S = 0.1
_MANY = 1_000  # entries that are not made into rules in the loop
_NOT_NOW_S = 1.0  # who got nothing of use does not ask again for so long
_REMEMBERED = 256  # batches that passed, which may be judged once more: they count once


class DelegatedRules:
    """Hold the rules that an interceptor has granted over its lane, as long as that is heard of.

    The server takes what has passed by them only while their number counts; so they say who may pass, never who may
    not: a batch of which a row would be blocked is asked about. What the last messages of a killed process add to the
    interceptor's count `judged` may be lost.
    """

    def __init__(self, exp_id: str) -> None:
        self.passed = 0  # messages
        self._exp_id = exp_id
        self._loop = asyncio.get_running_loop()
        self._lane: LaneClient | None = None
        self._verdicts: VerdictReply | None = None  # what is said of a batch that passes; None: nothing is granted
        self._rules: tuple[Rule, ...] = ()
        self._until = 0.0  # loop time
        self._untold = 0  # messages that passed, as far as the interceptor does not know
        self._seen = 0  # of `passed`, when the timer was set
        self._recent: dict[int, bool] = {}  # batches that passed -> whether it is we who count them
        self._asked_at = 0.0
        self._not_before = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None

    # -- passing --------------------------------------------------------------------------------------------------

    def judge(self, batch: Batch) -> VerdictReply | None:
        """Let a batch pass, all of it; None: the interceptor must be asked."""
        verdicts = self._verdicts
        if verdicts is None or self._loop.time() >= self._until:
            return None
        if self._lane is None or not self._lane.alive:
            self._drop()
            return None
        try:
            for rule in self._rules:
                if rule.check_batch(batch, self._exp_id):
                    return None
        except Exception:  # the interceptor has a way with rules that fail
            logger.exception("a granted rule failed on a batch, so the interceptor is asked")
            self._drop()
            return None
        if batch.first not in self._recent:
            self._recent[batch.first] = True
            self._count(batch.rows)
            if len(self._recent) > _REMEMBERED:
                del self._recent[next(iter(self._recent))]
        if self._timer is None:
            self._wait()
        return verdicts

    def _count(self, messages: int) -> None:
        self.passed += messages
        self._untold += messages

    def heard(self, lane: LaneClient, number: int, asked_at: float, batch: Batch) -> None:
        """Take note of an answer to a batch, asked for at a loop time: rules can be had of that number (0: none)."""
        if self._recent.get(batch.first):  # it had passed, and the server did not take it: it is counted there
            self._recent[batch.first] = False
            self._count(-batch.rows)
        self._lane = lane
        if self._untold and self._timer is None:
            self._wait()
        self._renew(number, asked_at)
        if number and self._verdicts is None and asked_at >= self._not_before:
            self._ask()

    def _renew(self, number: int, asked_at: float) -> None:
        if self._verdicts is not None and self._verdicts.epoch == number:
            self._until = max(self._until, asked_at + LEASE_S)
        else:
            self._drop()

    def _drop(self) -> None:
        self._verdicts, self._rules, self._until = None, (), 0.0

    # -- asking ---------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        self._seen = self.passed
        self._timer = self._loop.call_later(_PAUSE_S, self._look)

    def _look(self) -> None:
        """Ask whether the rules still count, and tell what has passed: now and then, and when messages have stopped."""
        self._timer = None
        if not self._untold or self._lane is None or not self._lane.alive:
            return
        if self._seen == self.passed or self._loop.time() >= self._asked_at + _ASK_AGAIN_S:
            self._ask()
        else:
            self._wait()

    def _ask(self) -> None:
        if self._asking is None and self._lane is not None:
            self._asked_at = self._loop.time()
            self._asking = asyncio.create_task(self._exchange(self._lane), name="ray_messaging standing verdicts")
            self._asking.add_done_callback(self._asked)

    def _asked(self, task: "asyncio.Task[None]") -> None:
        self._asking = None
        if not task.cancelled() and task.exception() is not None:
            logger.error("standing verdicts could not be asked for, please report this", exc_info=task.exception())
            self._drop()
        if self._untold and self._timer is None and self._lane is not None:
            self._wait()

    async def _exchange(self, lane: LaneClient) -> None:
        try:
            held = 0 if self._verdicts is None else self._verdicts.epoch
            async with asyncio.timeout(_PATIENCE_S):
                grant = decode_grant(await lane.stand(self._request(held)))
            if self._lane is not lane:
                return
            if grant.rules is None or held:
                self._renew(grant.number, self._asked_at)
            if not grant.number:
                self._not_before = self._loop.time() + _NOT_NOW_S
            if grant.rules is not None:
                await self._take(lane, grant)
        except (OSError, TimeoutError) as error:
            logger.info("the interceptor does not say whether its rules still count: %s", error)
        except FrameError as error:
            logger.warning("what the interceptor grants is of no use, it is asked about each batch: %s", error)
            self._drop()
            self._not_before = self._loop.time() + _NOT_NOW_S

    def _request(self, held: int) -> bytes:
        passed, self._untold = self._untold, 0
        return encode_standing(SnapshotState(held, passed))

    async def _take(self, lane: LaneClient, grant: RuleSnapshot) -> None:
        asked_at = self._asked_at
        rules = grant.make() if grant.entries < _MANY else await asyncio.to_thread(grant.make)
        if self._lane is lane and grant.number:
            self._verdicts, self._rules = VerdictReply(grant.number), rules
            self._until = asked_at + LEASE_S

    # -- the end --------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Pass nothing any more, and tell the interceptor what has passed, if it listens."""
        held = 0 if self._verdicts is None else self._verdicts.epoch
        self._drop()
        lane, self._lane = self._lane, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_LAST_WORD_S):
                if self._asking is not None:
                    await asyncio.wait((self._asking,))
                if self._untold and lane is not None and lane.alive:
                    await lane.stand(self._request(held))
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
