"""Messages that wait for a slow rule: each goes on alone through the rest of the rules."""

import asyncio
import logging
import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Awaitable, Callable

from ray_messaging.interception.rules.rule import Rule, SlowRule, Verdict, checked
from ray_messaging.interception.server.rule_pipeline import FAILURES, RulePipeline, Waiting, failed, joined
from ray_messaging.interception.server.user_calls import UserCalls
from ray_messaging.interception.server.watchdog import Watch
from ray_messaging.interception.wire.verdicts import BatchVerdict
from ray_messaging.message import Message
from ray_messaging.model.batch import Batch

logger = logging.getLogger(__name__)

PATIENCE_S = 2.0  # whoever waits is told after so long that he goes on waiting
_GATHER_S = 0.002  # verdicts that come so close together are told together
_PASSED = BatchVerdict()
_SLICE = 64
_GRACE_S = 1.0  # calls that were cancelled may take so long to tidy up


class Deferrals:
    """Run what slow rules must judge.

    `finish` is told of each message's judgement once it is known, `advance` of each that has come to its next slow
    rule, in the same step in which the rules between have counted it.
    """

    def __init__(
        self,
        exp_id: str,
        keep_s: float,
        finish: Callable[[Batch, BatchVerdict], Awaitable[None]],
        advance: Callable[[Waiting], None],
        watch: Watch,
        calls: UserCalls,
    ) -> None:
        self._exp_id = exp_id
        self._watch = watch
        self._calls = calls
        self._keep_s = keep_s
        self._finish = finish
        self._advance = advance
        self._known: OrderedDict[str, tuple[float, BatchVerdict]] = OrderedDict()
        self._running: dict[str, asyncio.Task[None] | None] = {}  # None: not begun yet
        self._waiting: dict[str, Waiting] = {}  # those of them that wait for a slow rule
        self._due: deque[tuple[Batch, Waiting | BatchVerdict]] = deque()
        self._news: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._leavers: list[tuple[set[str], asyncio.Event]] = []  # who still needs a rule that was taken out

    def __len__(self) -> int:
        return len(self._running)

    def begin(self, waiting: Waiting) -> None:
        """Have a message judged, unless it is."""
        key = waiting.message.message_id(0)
        if not self.knows(key):
            self._waiting[key] = waiting
            self._start(waiting.message, waiting)

    def knows(self, key: str) -> bool:
        """Tell whether a message is judged, or on its way."""
        return key in self._known or key in self._running

    def waits(self, key: str) -> bool:
        """Tell whether a message is on its way."""
        return key in self._running

    async def done_with(self, rule: Rule) -> None:
        """Return once none of the messages that wait now has to do with a rule."""
        keys = {key for key, waiting in self._waiting.items() if waiting.needs(rule)}
        if keys:
            leaver = (keys, asyncio.Event())
            self._leavers.append(leaver)
            await leaver[1].wait()

    def settle(self, message: Batch, judgement: BatchVerdict) -> None:
        """Finish a message whose judgement is known."""
        self._start(message, judgement)

    def _start(self, message: Batch, found: Waiting | BatchVerdict) -> None:
        self._running[message.message_id(0)] = None
        self._due.append((message, found))
        if len(self._due) == 1:
            asyncio.get_running_loop().call_soon(self._start_some)

    def _start_some(self) -> None:
        """Begin with a few, then let others have their turn: a batch of which all must wait is thousands of tasks."""
        for _ in range(min(_SLICE, len(self._due))):
            message, found = self._due.popleft()
            key = message.message_id(0)
            self._running[key] = asyncio.create_task(self._run(message, found), name=f"ray_messaging verdict on {key}")
        if self._due:
            asyncio.get_running_loop().call_soon(self._start_some)

    def unknown(self, batch: Batch) -> list[int]:
        """Return the rows of messages that are neither judged nor on their way."""
        keys = map(batch.message_id, range(len(batch)))
        return [row for row, key in enumerate(keys) if not self.knows(key)]

    def known(self, batch: Batch) -> BatchVerdict:
        """Return what is known of a batch by now; the rest is deferred."""
        found = BatchVerdict()
        for row, key in enumerate(map(batch.message_id, range(len(batch)))):
            entry = self._known.get(key)
            if entry is None:
                found.deferred.add(row)
            else:
                found.add(entry[1].moved([row]))
        return found

    async def wait(self, batch: Batch) -> BatchVerdict:
        """Return as soon as something is known of some of the messages, or after a while."""
        found = self.known(batch)
        if len(found.deferred) < len(batch):
            return found
        news, keys = asyncio.Event(), [*map(batch.message_id, range(len(batch)))]
        for key in keys:
            self._news[key].add(news)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await news.wait()
        except TimeoutError:
            return found
        finally:
            for key in keys:
                if key in self._news:
                    self._news[key].discard(news)
                    if not self._news[key]:
                        del self._news[key]
        await asyncio.sleep(_GATHER_S)
        return self.known(batch)

    async def _run(self, message: Batch, found: Waiting | BatchVerdict) -> None:
        key = message.message_id(0)
        try:
            judgement = found if isinstance(found, BatchVerdict) else await self._judge(found)
            await self._finish(message, judgement)
        except Exception:  # its state could not be kept, so it is not known: whoever waits asks again
            logger.exception("the verdict on message %s is lost", key)
        else:
            self.remember(message, judgement)
        finally:
            del self._running[key]
            self._waiting.pop(key, None)
            self._let_go(key)
            self._tell(key)

    def _let_go(self, key: str) -> None:
        for keys, free in self._leavers:
            keys.discard(key)
            if not keys:
                free.set()
        self._leavers = [leaver for leaver in self._leavers if leaver[0]]

    def remember(self, message: Batch, judgement: BatchVerdict) -> None:
        """Keep what is known of a message, for whoever asks within a while."""
        now = time.monotonic()
        key = message.message_id(0)
        passed = not (judgement.blocked or judgement.rewritten or judgement.labels)
        self._known[key] = (now, _PASSED if passed else judgement)  # most of them: one object for all
        self._tell(key)
        while self._known:
            oldest, (known_at, _) = next(iter(self._known.items()))
            if known_at + self._keep_s > now:
                break
            del self._known[oldest]

    def _tell(self, key: str) -> None:
        for news in self._news.pop(key, ()):
            news.set()

    async def _judge(self, waiting: Waiting) -> BatchVerdict:
        while True:
            verdict = await self._ask(waiting.rule, waiting.message)
            course = RulePipeline(waiting.message, self._exp_id, self._watch)
            course.run([_Said(waiting.rule, verdict), *waiting.then], waiting.passed)
            if not course.waiting:
                return joined(waiting.so_far, course.judgement)
            following = course.waiting[0]  # it comes to the next slow rule
            waiting = following._replace(so_far=joined(waiting.so_far, following.so_far))
            self._waiting[waiting.message.message_id(0)] = waiting
            self._advance(waiting)

    async def _ask(self, rule: SlowRule, message: Batch) -> Verdict:
        def judge() -> Awaitable[Verdict]:
            return rule.judge(Message(self._exp_id, message, 0))

        found = await self._calls.run(rule, judge, rule.time_limit_s, "verdict")
        try:
            if isinstance(found, BaseException):
                raise found
            return checked(found)
        except FAILURES as error:
            return failed(rule, error)

    async def close(self) -> None:
        """Stop all, and wait a moment for rules that are at work."""
        self._due.clear()
        tasks = [task for task in self._running.values() if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._running.clear()  # those that were stopped before they began
        self._waiting.clear()
        for _, free in self._leavers:
            free.set()
        self._leavers.clear()
        await self._calls.close(_GRACE_S)


class _Said(Rule):
    """Stand for a slow rule whose verdict is there."""

    def __init__(self, rule: SlowRule, verdict: Verdict) -> None:
        self.name = rule.name
        self.context = rule.context
        self.count_failure = rule.count_failure  # type: ignore[method-assign]  # a verdict that cannot be sent is its failure
        self._verdict = verdict

    def check(self, message: Message) -> Verdict:  # noqa: ARG002 - a Rule's
        return self._verdict
