"""Deferred messages: those that wait for a slow rule."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable
from typing import TYPE_CHECKING

import numpy as np

from ray_messaging.common.once_by_call import OnceByCall
from ray_messaging.interception.broadcasts import once_each, pair_rows
from ray_messaging.interception.rules.rule import Rule, SlowRule, Verdict, checked
from ray_messaging.interception.server.rule_pipeline import Deferred, RulePipeline, failed
from ray_messaging.interception.server.saved_answers import SavedAnswers, record
from ray_messaging.interception.server.state_writer import StateWriter
from ray_messaging.interception.server.watchdog import FAILURES
from ray_messaging.interception.verdicts import PATIENCE_S, BatchVerdict, decode_verdicts
from ray_messaging.message import Message
from ray_messaging.model.batch import Batch

if TYPE_CHECKING:
    from ray_messaging.interception.server.interceptor import Interceptor

logger = logging.getLogger(__name__)

_GATHER_S = 0.002  # verdicts that come this close together go into one answer
_PASSED = BatchVerdict()
_SLICE = 64  # messages that are started, or resumed, before other tasks get a turn
_GRACE_S = 1.0  # time for cancelled calls to clean up


class SlowRuleRunner:
    """Deferred messages, each judged in a task of its own.

    A message continues at the slow rule that it has reached, because the rules before have already counted it. Verdicts
    stay known for `keep_s` seconds, because senders ask again after a lost answer. A message that a predecessor of this
    interceptor deferred continues from the progress that the predecessor saved.
    """

    def __init__(self, interceptor: "Interceptor", writer: StateWriter, answers: SavedAnswers, keep_s: float) -> None:
        self._interceptor = interceptor
        self._writer = writer
        self._answers = answers
        self._known = OnceByCall[str, BatchVerdict](keep_s=keep_s)
        self._running: dict[str, asyncio.Future[None]] = {}  # each done once the message is no longer judged
        self._tasks: set[asyncio.Task[None]] = set()
        answers.is_deferred = self._running.__contains__
        self._deferred: dict[str, Deferred] = {}  # those of the running messages that wait for a slow rule
        self._due: deque[tuple[Batch, Deferred | BatchVerdict]] = deque()

    def __len__(self) -> int:
        return len(self._running)

    def knows(self, key: str) -> bool:
        """Return whether a message is judged, or being judged."""
        return key in self._known or key in self._running

    # -- starting -------------------------------------------------------------------------------------------------

    def begin(self, deferred: Deferred) -> None:
        """Judge a message by the slow rule that it has reached, or from where a predecessor got with it."""
        message = deferred.message
        key = message.message_id(0)
        if self.knows(key):
            return
        if key in self._answers.unsafe or self._answers.knows(key):
            self._resume(message)
        else:
            self._defer(deferred)

    def _defer(self, deferred: Deferred) -> None:
        key = deferred.message.message_id(0)
        if not self.knows(key):
            self._deferred[key] = deferred
            self._start(deferred.message, deferred)

    def _start(self, message: Batch, found: Deferred | BatchVerdict) -> None:
        self._running[message.message_id(0)] = asyncio.get_running_loop().create_future()
        self._due.append((message, found))
        if len(self._due) == 1:
            asyncio.get_running_loop().call_soon(self._start_some)

    def _start_some(self) -> None:
        """Start some tasks, then yield to others: one deferred batch can need thousands of tasks."""
        for _ in range(min(_SLICE, len(self._due))):
            message, found = self._due.popleft()
            name = f"ray_messaging verdict on {message.message_id(0)}"
            task = asyncio.create_task(self._run(message, found), name=name)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if self._due:
            asyncio.get_running_loop().call_soon(self._start_some)

    # -- judging --------------------------------------------------------------------------------------------------

    async def _run(self, message: Batch, found: Deferred | BatchVerdict) -> None:
        key = message.message_id(0)
        try:
            verdict = found if isinstance(found, BatchVerdict) else await self._judge(found)
            await self._finish(message, verdict)
        except Exception:  # its state could not be saved, so the verdict is unknown: senders ask again
            logger.exception("the verdict on message %s is lost", key)
        else:
            self._remember(message, verdict)
        finally:
            self._running.pop(key).set_result(None)
            self._deferred.pop(key, None)

    async def _judge(self, deferred: Deferred) -> BatchVerdict:
        while True:
            verdict = await self.ask(deferred.rule, deferred.message)
            pipeline = RulePipeline(
                deferred.message, self._interceptor.exp_id, self._interceptor.watch, so_far=deferred.so_far
            )
            pipeline.take(deferred.rule, {0: verdict})
            pipeline.run(deferred.then, (*deferred.passed, deferred.rule.name))
            if not pipeline.deferred:
                return pipeline.verdict
            deferred = pipeline.deferred[0]  # the message has reached the next slow rule
            self._deferred[deferred.message.message_id(0)] = deferred
            if self._writer.changed:  # rules between the two slow ones have counted the message
                self._save_progress(deferred)

    async def ask(self, rule: SlowRule, message: Batch) -> Verdict:
        """Return a slow rule's verdict on a message."""

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
        # One object for all that pass: most do.
        self._known.put(message.message_id(0), _PASSED if passed else verdict)

    def _save_progress(self, deferred: Deferred) -> None:
        answer = self._interceptor.encode(BatchVerdict(deferred={0}), 1)
        self._answers.attach({deferred.message.message_id(0): record(answer, [deferred])})

    # -- resuming what a predecessor deferred -----------------------------------------------------------------------

    def _resume(self, batch: Batch) -> None:
        """Continue each message or broadcast from its saved progress; messages with equal progress go on together."""
        pairs = pair_rows(batch)
        batch = batch if pairs is None else once_each(batch, pairs)
        groups: dict[tuple[str, ...], tuple[list[int], BatchVerdict]] = {}
        for row, key in enumerate(map(batch.message_id, range(len(batch)))):
            if self.knows(key):
                continue
            unsafe = self._answers.unsafe.get(key)
            if unsafe is not None:  # it was counted, and could not be saved
                self._start(_one(batch, row), decode_verdicts(unsafe[0]).batch_verdict(1))
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
        """Apply the rules that a batch has not passed yet; `so_far` is the verdict of the others."""
        version = self._interceptor.state_version
        lines = {row: line for row, (_, line) in so_far.rewritten.items()}
        batch = batch.with_payloads(lines) if lines else batch
        pipeline = RulePipeline(batch, self._interceptor.exp_id, self._interceptor.watch, so_far=so_far)
        pipeline.run([rule for rule in self._interceptor.rules.each if rule.name not in passed], passed)
        deferred = [*pipeline.deferred.values()]
        settled = [
            (_one(batch, row), pipeline.verdict.moved({row: 0}))
            for row in range(len(batch))
            if row not in pipeline.deferred
        ]
        if self._writer.stores and version != self._interceptor.state_version:
            for message, verdict in settled:  # one write saves them, and the progress, with the counts
                self._interceptor.count(message, verdict)
                key, answer = message.message_id(0), self._interceptor.encode(verdict, 1)
                self._answers.unsafe[key] = (answer, record(answer, ()))
                self._answers.attach({key: self._answers.unsafe[key][1]})
            for each in deferred:
                self._save_progress(each)
        for each in deferred:
            self._defer(each)
        for message, verdict in settled:
            self._start(message, verdict)

    # -- answering ------------------------------------------------------------------------------------------------

    def unknown(self, batch: Batch) -> list[int]:
        """Return the rows of messages that are neither judged nor being judged."""
        keys = map(batch.message_id, range(len(batch)))
        return [row for row, key in enumerate(keys) if not self.knows(key)]

    async def wait(self, batch: Batch) -> BatchVerdict:
        """Return the verdicts on a batch once there is one, or after PATIENCE_S; other rows are deferred."""
        unknown = self.unknown(batch)
        for low in range(0, len(unknown), _SLICE):
            self._resume(batch.take(np.array(unknown[low : low + _SLICE], np.intp)))
            await asyncio.sleep(0)
        found = self._found(batch)
        running = [self._running[key] for key in map(batch.message_id, range(len(batch))) if key in self._running]
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
        """Return once a rule is no longer needed by any of the messages that are deferred now."""
        running = [self._running[key] for key, deferred in self._deferred.items() if deferred.needs(rule)]
        if running:
            await asyncio.wait(running)

    async def close(self) -> None:
        """Stop all tasks, and wait a moment for running calls to clean up."""
        self._due.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for waits in self._running.values():  # for those that were stopped before they began
            waits.set_result(None)
        self._running.clear()
        self._deferred.clear()
        await self._interceptor.calls.close(_GRACE_S)


def _one(batch: Batch, row: int) -> Batch:
    return batch.take(np.array([row], np.intp))
