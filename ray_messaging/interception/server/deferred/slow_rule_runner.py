"""Messages that are judged alone: those that wait for slow rules, and those that waited for a predecessor's."""

import asyncio
from collections.abc import Callable

import numpy as np

from ray_messaging.interception.server.deferred.answers import record
from ray_messaging.interception.server.deferred.deferral import Deferrals
from ray_messaging.interception.server.rule_pipeline import RulePipeline, Waiting, joined, of_row
from ray_messaging.interception.server.rule_set import RuleSet
from ray_messaging.interception.server.state.state_saver import StateSaver
from ray_messaging.interception.server.user_calls import UserCalls
from ray_messaging.interception.server.watchdog import Watch
from ray_messaging.interception.wire.verdicts import BatchVerdict, decode_verdicts
from ray_messaging.model.batch import Batch

# After so many messages whose batch we do not know others have their turn.
_SLICE = 64


class SlowRuleRunner:
    """Have messages judged alone, each from where it was: what it has passed has counted it."""

    def __init__(
        self,
        exp_id: str,
        rules: RuleSet,
        keeper: StateSaver,
        keep_s: float,
        calls: UserCalls,
        watch: Watch,
        *,
        count: Callable[[Batch, BatchVerdict], None],
        encode: Callable[[BatchVerdict, int], bytes],
        version: Callable[[], int],
    ) -> None:
        self._exp_id = exp_id
        self._rules = rules
        self._keeper = keeper
        self._watch = watch
        self._count = count
        self._encode = encode
        self._version = version
        self.deferrals = Deferrals(exp_id, keep_s, self._finish, self._advance, watch, calls)

    def begin(self, waiting: Waiting) -> None:
        """Have a message judged by the slow rule it has come to, unless a predecessor brought it further."""
        message = waiting.message
        key = message.message_id(0)
        if self.deferrals.knows(key):
            return
        if key in self._keeper.unsafe or self._keeper.answers.knows(key):
            self._resume(message)
        else:
            self.deferrals.begin(waiting)

    async def go_on(self, batch: Batch, rows: list[int]) -> None:
        """Have messages judged that a predecessor deferred."""
        for low in range(0, len(rows), _SLICE):
            self._resume(batch.take(np.array(rows[low : low + _SLICE], np.intp)))
            await asyncio.sleep(0)

    def _resume(self, batch: Batch) -> None:
        """Begin with each where it was; those that have passed the same rules go on together."""
        groups: dict[tuple[str, ...], tuple[list[int], BatchVerdict]] = {}
        for row, key in enumerate(map(batch.message_id, range(len(batch)))):
            if self.deferrals.knows(key):
                continue
            unsafe = self._keeper.unsafe.get(key)
            if unsafe is not None:  # it was counted, and could not be kept
                self.deferrals.settle(_one(batch, row), decode_verdicts(unsafe[0]).judgement(1))
                continue
            judged = self._keeper.answers.judged(key)
            if judged is not None:
                self.deferrals.remember(_one(batch, row), judged)
                continue
            progress = self._keeper.answers.progress(batch, row)
            rows, so_far = groups.setdefault(() if progress is None else progress.passed, ([], BatchVerdict()))
            if progress is not None:
                so_far.add(progress.so_far.moved([len(rows)]))
            rows.append(row)
        for passed, (rows, so_far) in groups.items():
            self._run(batch.take(np.array(rows, np.intp)), passed, so_far)

    def _run(self, batch: Batch, passed: tuple[str, ...], so_far: BatchVerdict) -> None:
        """Judge a batch by the rules that it has not passed."""
        version = self._version()
        lines = {row: line for row, (_, line) in so_far.rewritten.items()}
        course = RulePipeline(batch.with_payloads(lines) if lines else batch, self._exp_id, self._watch)
        course.run([rule for rule in self._rules.now if rule.name not in passed], passed)
        waiting = [
            each._replace(so_far=joined(of_row(so_far, row), each.so_far)) for row, each in course.waiting.items()
        ]
        settled = [
            (_one(batch, row), joined(of_row(so_far, row), of_row(course.judgement, row)))
            for row in range(len(batch))
            if row not in course.waiting
        ]
        if self._keeper.saver is not None and version != self._version():
            self._attach(waiting, settled)
        for each in waiting:
            self.deferrals.begin(each)
        for message, judgement in settled:
            self.deferrals.settle(message, judgement)

    def _attach(self, waiting: list[Waiting], settled: list[tuple[Batch, BatchVerdict]]) -> None:
        """Say beside what was counted just now by whom: any write takes it along from here on."""
        for message, judgement in settled:
            self._count(message, judgement)
            key, answer = message.message_id(0), self._encode(judgement, 1)
            self._keeper.unsafe[key] = (answer, record(answer, ()))
            self._keeper.attach({key: self._keeper.unsafe[key][1]})
        for each in waiting:
            self._pause(each)

    def _advance(self, waiting: Waiting) -> None:
        """Keep how far a message has come, if rules between two slow ones have counted it."""
        if self._keeper.changed:
            self._pause(waiting)

    def _pause(self, waiting: Waiting) -> None:
        answer = self._encode(BatchVerdict(deferred={0}), 1)
        self._keeper.attach({waiting.message.message_id(0): record(answer, [waiting])})

    async def _finish(self, message: Batch, judgement: BatchVerdict) -> None:
        """Count a message that was judged alone; its verdict is safe once this has returned."""
        key = message.message_id(0)
        unsafe = self._keeper.unsafe.get(key)
        if unsafe is None:
            self._count(message, judgement)
            if not self._keeper.behind:
                return
            answer = self._encode(judgement, 1)
            unsafe = (answer, record(answer, ()))
        await self._keeper.keep(key, *unsafe)


def _one(batch: Batch, row: int) -> Batch:
    return batch.take(np.array([row], np.intp))
