"""Watch over groups that hold up a step of all others."""

import asyncio
import logging
from typing import TYPE_CHECKING

from ray_messaging.errors import MessagingError
from ray_messaging.steps.stragglers import Straggler, stragglers
from ray_messaging.transports.step_values import Progress

if TYPE_CHECKING:
    from ray_messaging.transports.steps import RedisSteps

logger = logging.getLogger(__name__)

_SOONEST = 0.1  # of `stall_s`, between two looks


class StragglerWatch:
    """Task that names in the log the groups that hold up a step for `stall_s`, and again each time after twice as long.

    `late` are those of the last look. It looks when the first group may have become late, so a run without stragglers
    costs a call in `stall_s`.
    """

    def __init__(self, store: "RedisSteps", exp_id: str, stall_s: float) -> None:
        self.late: list[Straggler] = []
        self._store = store
        self._exp_id = exp_id
        self._stall_s = stall_s
        self._said: dict[tuple[str, int], float] = {}  # group and step -> idle time at which it was named last
        self._task = asyncio.create_task(self._run(), name="ray_messaging stragglers")

    async def _run(self) -> None:
        wait_s = self._stall_s
        while True:
            await asyncio.sleep(wait_s)
            try:
                progress = await self._store.progress()
            except MessagingError as error:
                logger.info("the progress of the steps is unknown: %s", error)
            else:
                self.look(progress)
                wait_s = self._until_next(progress)

    def look(self, progress: Progress) -> None:
        """Find the stragglers of now, and name those that it is time to name."""
        self.late = stragglers(progress, self._stall_s)
        said, self._said = self._said, {}
        for straggler in self.late:
            key = (straggler.group, straggler.step)
            self._said[key] = said.get(key, 0.0)
            if straggler.idle_s >= 2 * self._said[key]:
                self._said[key] = straggler.idle_s
                logger.warning("the steps of %s are held up: %s; %s", self._exp_id, straggler, straggler.remedy)

    def _until_next(self, progress: Progress) -> float:
        idle = [progress.groups[name].idle_ms / 1000 for name in progress.waiting_for() if name in progress.groups]
        left = min((self._stall_s - each for each in idle if each < self._stall_s), default=self._stall_s)
        return max(left, _SOONEST * self._stall_s)

    async def close(self) -> None:
        """Stop."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
