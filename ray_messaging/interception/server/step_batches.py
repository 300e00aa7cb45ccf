"""Batches of steps on their way through the rules. Each batch waits for its slow rules, and no message is deferred."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import NamedTuple

from ray_messaging.interception.rules.rule import Rule, SlowRule, Verdict
from ray_messaging.interception.server.attempts import Attempt, StepAttempts
from ray_messaging.interception.server.rule_pipeline import Asked, RulePipeline
from ray_messaging.model.batch import Batch

logger = logging.getLogger(__name__)

_SLICE = 64  # messages that a slow rule is asked about before other tasks get a turn

Ask = Callable[[SlowRule, Batch], Awaitable[Verdict]]


class Judging(NamedTuple):
    """A batch of an attempt, and how far its rules are: `sections` yields each time a slow rule must be asked."""

    batch: Batch
    attempt: Attempt
    pipeline: RulePipeline
    rules: Sequence[Rule]
    sections: Generator[Asked, Sequence[Verdict], None]


class StepBatches:
    """Batches of steps that wait for slow rules.

    The rules up to a slow rule, and those after it, are applied to the whole batch at once. What they change is
    recorded for the attempt, so that it can be undone. A later attempt of the group ends the wait.

    Args: `ask` asks a slow rule about one message; `count` counts a batch that all rules have judged.
    """

    def __init__(self, attempts: StepAttempts, ask: Ask, count: Callable[[Judging], None]) -> None:
        self.running: dict[str, tuple[Judging, asyncio.Task[bytes]]] = {}  # by the batch's key
        self._attempts = attempts
        self._ask = ask
        self._count = count

    def __len__(self) -> int:
        return sum(judging.batch.rows for judging, _ in self.running.values())

    def advance(self, judging: Judging, verdicts: Sequence[Verdict] | None = None) -> Asked | None:
        """Apply the rules, from a slow rule's verdicts on, up to the next slow one; return what to ask it, or None."""
        asked: Asked | None = None

        def judge() -> bool:
            nonlocal asked
            try:
                asked = judging.sections.send(verdicts)  # type: ignore[arg-type]  # None begins
            except StopIteration:
                self._count(judging)
                return True
            return False

        self._attempts.note(judging.attempt, judge)
        return asked

    def start(self, key: str, judging: Judging, answer: Coroutine[None, None, bytes]) -> asyncio.Task[bytes]:
        """Start the task that answers about a batch. It is in `running`, under the batch's key, until it is done."""
        task = asyncio.create_task(answer, name="ray_messaging answer in a step")
        self.running[key] = judging, task
        task.add_done_callback(lambda _: self._ended(key, task))
        return task

    def _ended(self, key: str, task: asyncio.Task[bytes]) -> None:
        del self.running[key]
        if not task.cancelled() and task.exception() is not None:  # the sender asks again
            logger.error("an answer in a step is lost", exc_info=task.exception())

    async def finish(self, judging: Judging, asked: Asked | None) -> None:
        """Ask the slow rules until all rules have judged the batch."""
        while asked is not None:
            asked = self.advance(judging, await self._ask_all(asked))

    async def _ask_all(self, asked: Asked) -> list[Verdict]:
        calls: list[asyncio.Future[Verdict]] = []
        try:
            for number, message in enumerate(asked.messages, 1):
                calls.append(asyncio.ensure_future(self._ask(asked.rule, message)))
                if number % _SLICE == 0:
                    await asyncio.sleep(0)
            return await asyncio.gather(*calls)
        finally:
            for call in calls:
                call.cancel()

    def begun(self, attempt: Attempt) -> None:
        """Cancel the batches of earlier attempts of a group, because a new attempt has begun."""
        for judging, task in self.running.values():
            if judging.attempt.group == attempt.group and judging.attempt != attempt:
                task.cancel()

    async def done_with(self, rule: Rule) -> None:
        """Return once a rule is no longer needed by any of the batches that wait now."""
        tasks = [task for judging, task in self.running.values() if any(other is rule for other in judging.rules)]
        if tasks:
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """Cancel all batches that wait."""
        tasks = [task for _, task in self.running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
