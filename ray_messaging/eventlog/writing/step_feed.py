"""Feed of the event log with the messages of steps, as these are sealed."""

import asyncio
from collections.abc import Awaitable, Callable

from ray_messaging.common import task_health
from ray_messaging.common.limits import STEP_NEWS_TIMEOUT_S
from ray_messaging.eventlog.folder import StepPosition
from ray_messaging.eventlog.writing.step_rows import StepBoxes, StepRows

STEPS = ":steps"  # the feed's name among the streams that a task waits for


class StepFeed:
    """Feed of one log: it passes on the rows of each step once that is sealed, and waits for the next.

    Args: `take` adds rows to the log, with the position after them. `passed` is called after each round.
    """

    def __init__(
        self,
        boxes: StepBoxes,
        position: StepPosition,
        take: Callable[[StepRows], Awaitable[None]],
        passed: Callable[[], None],
    ) -> None:
        self.boxes = boxes
        self.position = position
        self._take = take
        self._passed = passed
        self._asked = self._answered = 0
        self._question = asyncio.Event()
        self._news: asyncio.Task[None] | None = None

    def ask(self) -> str:
        """Ask for all that is sealed or came from outside by now; return the round for `reached`."""
        self._asked += 1
        self._question.set()
        return f"{self._asked}-0"

    def reached(self, entry: str) -> bool:
        """Tell whether the log has what was asked for."""
        return self._answered >= int(entry.partition("-")[0])

    async def run(self) -> None:
        """Pass steps on until cancelled. Raises LogError where the server has lost some of them."""
        try:
            while True:
                asked = self._asked
                self._question.clear()
                progress = await self.boxes.progress()
                async for rows in self.boxes.sealed(self.position, progress):
                    await self._pass_on(rows)
                if asked > self._answered:
                    outside = await self.boxes.from_outside(self.position, progress)
                    if outside is not None:
                        await self._pass_on(outside)
                    self._answered = asked
                    self._passed()
                await self._wait(progress.news)
        finally:
            if self._news is not None:
                await task_health.end(self._news)

    async def _pass_on(self, rows: StepRows) -> None:
        self.position = rows.position
        await self._take(rows)

    async def _wait(self, news: str) -> None:
        """Wait for news, or for a question. A wait that a question cuts short goes on for the next time."""
        if self._news is None:
            self._news = asyncio.create_task(
                self.boxes.wait(news, STEP_NEWS_TIMEOUT_S), name="ray_messaging log news of steps"
            )
        question = asyncio.create_task(self._question.wait(), name="ray_messaging log question")
        try:
            await asyncio.wait([self._news, question], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await task_health.end(question)
        if self._news.done():
            done, self._news = self._news, None
            done.result()
