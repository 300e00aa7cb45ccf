"""Messages that wait for slow rules. In steps a whole batch waits. Outside of steps each message waits alone."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ray_messaging.common.once_by_call import OnceByCall
from ray_messaging.interception.broadcasts import once_each, pair_rows
from ray_messaging.interception.interceptor.attempts import StepAttempts
from ray_messaging.interception.interceptor.rule_pipeline import Asked, Deferred, RulePipeline, failed
from ray_messaging.interception.interceptor.saved_answers import SavedAnswers, record
from ray_messaging.interception.interceptor.state_writer import StateWriter
from ray_messaging.interception.interceptor.watchdog import FAILURES
from ray_messaging.interception.rules.rule import Rule, SlowRule, Verdict, checked
from ray_messaging.interception.verdicts import PATIENCE_S, BatchVerdict, decode_verdicts
from ray_messaging.message import Message
from ray_messaging.model.batch import Attempt, Batch

if TYPE_CHECKING:
    from ray_messaging.interception.interceptor.interceptor import Interceptor

logger = logging.getLogger(__name__)

_GATHER_S = 0.002  # verdicts that arrive within this time after the first one go into the same answer
_PASSED = BatchVerdict()
_SLICE = 64  # after this many messages are started or resumed, other tasks get a turn
_GRACE_S = 1.0  # how many seconds cancelled calls have to clean up


Sections = Generator[Asked, Sequence[Verdict] | None, None]


@dataclass(slots=True, eq=False)
class Judging:
    """Messages that rules are judging: a batch of a step, or one message that waits for a slow rule.

    `rules` are the rules that the messages may still need, and `passed` has the names of the rules before these. The
    generator `sections` yields a slow rule with the messages that the rule must judge. The rule's verdicts are then
    sent into the generator, which adds them to `verdict`. `asked` is what `sections` has yielded last (None: `sections`
    has ended). `done` is set when all rules have judged. For a batch of a step, its result is the answer to the sender.
    `done` is cancelled if the judging is, for example because the group begins a later attempt.
    """

    key: str
    batch: Batch
    verdict: BatchVerdict
    rules: Sequence[Rule] = ()
    sections: Sections | None = None
    attempt: Attempt | None = None
    passed: tuple[str, ...] = ()
    asked: Asked | None = None
    task: asyncio.Task[bytes] | None = None
    done: asyncio.Future[bytes] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class SlowRuleRunner:
    """The tasks in which slow rules judge messages.

    Outside of steps each message has a task of its own, and its sender holds back later messages to the same receiver.
    In steps a whole batch has one task, so that the rules after a slow rule see the batch's messages in order. This
    task is cancelled if the group runs the step again.

    A message that waits for a slow rule is not judged again by the rules before it, because these have counted the
    message. Outside of steps the server may store which rules a message has passed, so that a later interceptor goes on
    with the next rule. Verdicts are kept for `keep_s` seconds, because senders ask again if an answer is lost.
    """

    def __init__(
        self,
        interceptor: "Interceptor",
        writer: StateWriter,
        answers: SavedAnswers,
        attempts: StepAttempts,
        keep_s: float,
    ) -> None:
        self._interceptor = interceptor
        self._writer = writer
        self._answers = answers
        self._attempts = attempts
        self._known = OnceByCall[str, BatchVerdict](keep_s=keep_s)
        self.running: dict[str, Judging] = {}  # the messages that are being judged, by key
        answers.is_deferred = self.running.__contains__
        self._due: deque[Judging] = deque()

    def __len__(self) -> int:
        return sum(judging.batch.rows for judging in self.running.values())

    def knows(self, key: str) -> bool:
        """Return whether a message was judged, or is being judged."""
        return key in self._known or key in self.running

    # -- starting -------------------------------------------------------------------------------------------------

    def begin(self, deferred: Deferred) -> None:
        """Go on judging a message that waits for a slow rule, unless it is being judged or was judged.

        If an earlier interceptor has saved which rules the message has passed, go on after these rules. Otherwise go on
        with the slow rule.
        """
        message = deferred.message
        key = message.message_id(0)
        if self.knows(key):
            return
        if key in self._answers.unsafe or self._answers.knows(key):
            self._resume(message)
        else:
            self._defer(deferred)

    def _defer(self, deferred: Deferred) -> None:
        message, so_far, rules, passed = deferred
        key = message.message_id(0)
        if not self.knows(key):
            sections = self._sections(deferred)
            self.start(Judging(key, message, so_far, rules, sections, passed=passed, asked=next(sections)))

    def _sections(self, deferred: Deferred) -> Sections:
        """Let the slow rule for which a message waits judge the message, then apply the rules after this rule.

        Yield each slow rule with the messages it must judge. The caller sends the rule's verdicts into the generator.
        """
        message, so_far, (rule, *then), _ = deferred
        assert isinstance(rule, SlowRule)
        verdicts = yield rule, [message]
        assert verdicts is not None
        pipeline = RulePipeline(message, self._interceptor.exp_id, self._interceptor.watch, so_far=so_far)
        pipeline.take(rule, {0: verdicts[0]})
        yield from pipeline.judge(then)

    def start(self, judging: Judging) -> None:
        """Begin to judge messages in a task. Until they are judged, the messages are in `running`, under their key."""
        self.running[judging.key] = judging
        self._due.append(judging)
        if len(self._due) == 1:
            asyncio.get_running_loop().call_soon(self._start_some)

    def _start_some(self) -> None:
        """Start some tasks, then let other tasks run, because a batch can need thousands of tasks."""
        for _ in range(min(_SLICE, len(self._due))):
            judging = self._due.popleft()
            if not judging.done.cancelled():
                judging.task = asyncio.create_task(self._run(judging), name=f"ray_messaging verdict on {judging.key}")
                judging.task.add_done_callback(partial(self._end, judging))
        if self._due:
            asyncio.get_running_loop().call_soon(self._start_some)

    def _end(self, judging: Judging, task: "asyncio.Task[bytes] | None" = None) -> None:
        del self.running[judging.key]
        if task is None or task.cancelled():
            judging.done.cancel()
        else:
            judging.done.set_result(task.result())

    # -- judging --------------------------------------------------------------------------------------------------

    async def _run(self, judging: Judging) -> bytes:
        """Let the remaining rules judge messages, and save the verdicts; return the encoded answer to the sender.

        For a single message outside of steps return b"", because `wait` returns the verdict to the sender. If the
        verdicts cannot be saved, the answer says that all rows still wait, so that the sender asks again.
        """
        try:
            while judging.asked is not None:
                self.advance(judging, await self._ask_all(judging.asked))
            if judging.attempt is not None:
                return await self._answers.keep(judging.key, *self._interceptor.answer_of(judging))
            await self._finish(judging.batch, judging.verdict)
        except Exception:  # the verdict could not be saved, so senders will ask again
            logger.exception("the verdict on %s is lost", judging.key)
            return self._interceptor.deferral(judging.batch.rows)
        self._remember(judging.batch, judging.verdict)
        return b""

    def advance(self, judging: Judging, verdicts: Sequence[Verdict] | None = None) -> None:
        """Continue to judge messages, up to the next slow rule or to the end.

        Args: `verdicts` are those of the slow rule that was asked last (None: no rule was asked yet).
        """

        def judge() -> bool:
            assert judging.sections is not None
            try:
                judging.asked = judging.sections.send(verdicts)
            except StopIteration:
                judging.asked = None
            return judging.asked is None

        if judging.attempt is not None:
            self._attempts.note(judging.attempt, judge)
        elif not judge() and judging.asked is not None:
            place = next(at for at, rule in enumerate(judging.rules) if rule is judging.asked[0])
            judging.passed += tuple(rule.name for rule in judging.rules[:place])
            judging.rules = judging.rules[place:]
            if self._writer.changed:  # the rules before the next slow rule have counted the message
                self._save_progress(Deferred(judging.batch, judging.verdict, judging.rules, judging.passed))

    async def _ask_all(self, asked: Asked) -> list[Verdict]:
        """Return a slow rule's verdicts on messages."""
        rule, messages = asked
        if len(messages) == 1:
            return [await self._ask(rule, messages[0])]
        calls: list[asyncio.Future[Verdict]] = []
        try:
            for number, message in enumerate(messages, 1):
                calls.append(asyncio.ensure_future(self._ask(rule, message)))
                if number % _SLICE == 0:
                    await asyncio.sleep(0)
            return await asyncio.gather(*calls)
        finally:
            for call in calls:
                call.cancel()

    async def _ask(self, rule: SlowRule, message: Batch) -> Verdict:
        def judge() -> Awaitable[Verdict]:
            return rule.judge(Message(self._interceptor.exp_id, message, 0))

        found = await self._interceptor.calls.run(rule, judge, rule.time_limit_s, "verdict")
        try:
            if isinstance(found, BaseException):
                raise found
            return checked(found)
        except FAILURES as error:
            return failed(rule, error)

    async def _finish(self, message: Batch, verdict: BatchVerdict) -> None:
        """Count a message, and wait until its verdict is saved."""
        key = message.message_id(0)
        unsafe = self._answers.unsafe.get(key)
        if unsafe is None:
            self._interceptor.count(message, verdict)
            if not self._writer.behind:
                return
            answer = self._interceptor.encode(verdict, 1)
            unsafe = (answer, record(answer, ()))
        await self._answers.keep(key, *unsafe)

    def _remember(self, message: Batch, verdict: BatchVerdict) -> None:
        passed = not (verdict.blocked or verdict.rewritten or any(verdict.labels.values()))
        # All messages that pass share one object, which saves memory, because most messages pass.
        self._known.put(message.message_id(0), _PASSED if passed else verdict)

    def _save_progress(self, deferred: Deferred) -> None:
        answer = self._interceptor.deferral(1)
        self._answers.attach({deferred.message.message_id(0): record(answer, [deferred])})

    # -- resuming messages that an earlier interceptor deferred -----------------------------------------------------

    def _resume(self, batch: Batch) -> None:
        """Continue to judge each message or broadcast of a batch, with the rules that have not judged it yet.

        Messages that have passed the same rules are judged together.
        """
        pairs = pair_rows(batch)
        batch = batch if pairs is None else once_each(batch, pairs)
        groups: dict[tuple[str, ...], tuple[list[int], BatchVerdict]] = {}
        for row, key in enumerate(map(batch.message_id, range(len(batch)))):
            if self.knows(key):
                continue
            unsafe = self._answers.unsafe.get(key)
            if unsafe is not None:  # the message was counted, but the verdict on it could not be saved
                self.start(Judging(key, _one(batch, row), decode_verdicts(unsafe[0]).batch_verdict(1)))
                continue
            judged = self._answers.verdict_on(key)
            if judged is not None:
                self._remember(_one(batch, row), judged)
                continue
            progress = self._answers.progress(batch, row)
            rows, so_far = groups.setdefault(() if progress is None else progress.passed, ([], BatchVerdict()))
            if progress is not None:
                so_far.add(progress.so_far.moved({0: len(rows)}))
            rows.append(row)
        for passed, (rows, so_far) in groups.items():
            self._apply_rest(batch.take(np.array(rows, np.intp)), passed, so_far)

    def _apply_rest(self, batch: Batch, passed: tuple[str, ...], so_far: BatchVerdict) -> None:
        """Apply the rules that a batch has not passed yet. `so_far` is the verdict of the rules that it has passed."""
        version = self._interceptor.state_version
        lines = {row: line for row, (_, line) in so_far.rewritten.items()}
        batch = batch.with_payloads(lines) if lines else batch
        pipeline = RulePipeline(batch, self._interceptor.exp_id, self._interceptor.watch, so_far=so_far)
        left = [rule for rule in self._interceptor.rules.each if rule.name not in passed]
        # The batch's broadcasts have already passed the rules that judge pairs of sender and hearer, because for
        # broadcasts such rules come before slow rules.
        if pair_rows(batch) is not None:
            left = [rule for rule in left if rule.judges_broadcasts == "message"]
        pipeline.run(left, passed)
        deferred = [*pipeline.deferred.values()]
        settled = [
            (_one(batch, row), pipeline.verdict.moved({row: 0}))
            for row in range(len(batch))
            if row not in pipeline.deferred
        ]
        if self._writer.stores and version != self._interceptor.state_version:
            # The next write saves all of this together: these verdicts, the progress of other messages, and the counts.
            for message, verdict in settled:
                self._interceptor.count(message, verdict)
                key, answer = message.message_id(0), self._interceptor.encode(verdict, 1)
                self._answers.unsafe[key] = (answer, record(answer, ()))
                self._answers.attach({key: self._answers.unsafe[key][1]})
            for each in deferred:
                self._save_progress(each)
        for each in deferred:
            self._defer(each)
        for message, verdict in settled:
            self.start(Judging(message.message_id(0), message, verdict))

    # -- answering ------------------------------------------------------------------------------------------------

    def unknown(self, batch: Batch) -> list[int]:
        """Return the rows whose messages are neither judged nor being judged."""
        keys = map(batch.message_id, range(len(batch)))
        return [row for row, key in enumerate(keys) if not self.knows(key)]

    async def wait(self, batch: Batch) -> BatchVerdict:
        """Return the verdicts on waiting messages once one of them has a verdict, or after PATIENCE_S seconds.

        Rows without a verdict are marked as deferred, so that the sender asks again.
        """
        unknown = self.unknown(batch)
        for low in range(0, len(unknown), _SLICE):
            self._resume(batch.take(np.array(unknown[low : low + _SLICE], np.intp)))
            await asyncio.sleep(0)
        found = self._found(batch)
        keys = map(batch.message_id, range(len(batch)))
        running = [self.running[key].done for key in keys if key in self.running]
        if len(found.deferred) < len(batch) or not running:
            return found
        if not (await asyncio.wait(running, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED))[0]:
            return found
        await asyncio.sleep(_GATHER_S)
        return self._found(batch)

    def _found(self, batch: Batch) -> BatchVerdict:
        found = BatchVerdict()
        for row, key in enumerate(map(batch.message_id, range(len(batch)))):
            known = self._known.get(key)
            if known is None:
                found.deferred.add(row)
            else:
                found.add(known.moved({0: row}))
        return found

    # -- removing rules -------------------------------------------------------------------------------------------

    async def done_with(self, rule: Rule) -> None:
        """Wait for the verdicts on all messages that are being judged now and may still need the rule."""
        all_of = self.running.values()
        running = [judging.done for judging in all_of if any(other is rule for other in judging.rules)]
        if running:
            await asyncio.wait(running)

    # -- ending -----------------------------------------------------------------------------------------------------

    def begun(self, attempt: Attempt) -> None:
        """Stop judging batches from a group's earlier attempts at steps, because it has begun another attempt."""
        for judging in [*self.running.values()]:
            if judging.attempt is not None and judging.attempt.group == attempt.group and judging.attempt != attempt:
                self._cancel(judging)

    def _cancel(self, judging: Judging) -> None:
        if judging.task is None:
            self._end(judging)
        else:
            judging.task.cancel()

    async def close(self) -> None:
        """Stop all tasks, and give running calls a moment to clean up."""
        self._due.clear()
        tasks = [judging.task for judging in self.running.values() if judging.task is not None]
        for judging in [*self.running.values()]:
            self._cancel(judging)
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._interceptor.calls.close(_GRACE_S)


def _one(batch: Batch, row: int) -> Batch:
    return batch.take(np.array([row], np.intp))
