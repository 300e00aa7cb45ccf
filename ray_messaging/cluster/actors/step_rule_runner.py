"""The interceptor's tasks for steps: the rules that act at the end of each step, and the search for late groups."""

import asyncio
import logging
import math
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from ray_messaging.audiences.cache import AudienceCache
from ray_messaging.common.task_health import TaskHealth, end
from ray_messaging.errors import MessagingError, RuleError, UnknownName
from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.interception.interceptor.step_judge import RuleReviewer
from ray_messaging.interception.rules.rule import Rule, StepRule, forces_all
from ray_messaging.steps.step_supervisor import StepSupervisor
from ray_messaging.steps.stragglers import Straggler, stragglers
from ray_messaging.transports.step_values import SUPERVISOR, Progress, StepSettings, WaitFor

if TYPE_CHECKING:
    from ray_messaging.transports.steps import RedisSteps
    from ray_messaging.transports.transport import RedisTransport

logger = logging.getLogger(__name__)

_FAILING_S = 1.0  # a supervisor that fails for more than this many seconds is reported
_SOONEST = 0.1  # the least time between two checks for late groups, as a fraction of `stall_s`


class StepRuleRunner:
    """Runner of the supervisor, a task that closes each step after all groups have closed it and rules have judged it.

    The supervisor runs while a rule that is in force, or that is scheduled for a later step, acts at the end of steps.
    While a change of the rules waits for its step, no group begins a step before all groups have ended the previous
    step. So the same rules are in force for all groups.

    Args: `settings` are the settings of the experiment's steps. `audiences` has the audiences to which groups
    broadcast.
    """

    def __init__(
        self,
        transport: "RedisTransport",
        store: "RedisSteps",
        settings: StepSettings,
        interceptor: Interceptor,
        audiences: AudienceCache,
    ) -> None:
        self._wait_for = settings.wait_for
        self._store = store
        self._interceptor = interceptor
        self._reviewer = RuleReviewer(interceptor, settings.horizon)
        self._supervisor = StepSupervisor(transport, store, settings, self._reviewer, interceptor.epoch, audiences)
        self._task: asyncio.Task[None] | None = None
        self._following = asyncio.Lock()

    async def follow(self) -> None:
        """Start the supervisor if a rule acts at the end of steps; end the supervisor if no rule does.

        Rules that are scheduled for later steps count, too.
        """
        versions = self._interceptor.versions
        async with self._following:
            if not forces_all([*self._interceptor.rules, *versions.to_come()]):
                await self.close()
                with suppress(UnknownName):  # raised if there was no supervisor
                    await self._store.leave(SUPERVISOR, at_once=True)
                await self._store.set_wait_for(self._wait_for if versions.first == math.inf else WaitFor.ALL)
            elif self._task is None:
                if self._wait_for != WaitFor.ALL:
                    logger.info(
                        "each group waits for all other groups, although the experiment has Steps(wait_for=%r)",
                        self._wait_for,
                    )
                    await self._store.set_wait_for(WaitFor.ALL)
                await self._store.join(SUPERVISOR)
                self._reviewer.start()
                self._task = asyncio.create_task(self._supervisor.run(), name="ray_messaging step rules")

    def named(self, progress: Progress) -> Progress:
        """Return the progress of the steps. If the steps wait for a rule, the progress names the rule."""
        asking = self._reviewer.asking
        return progress if asking is None else progress._replace(supervised_by=f"rule {asking.name!r}")

    def health(self) -> list[TaskHealth]:
        """Return the health of the supervisor, or [] if the supervisor does not run."""
        if self._task is None:
            return []
        error, alive = self._supervisor.error, not self._task.done()
        age_s = time.monotonic() - self._supervisor.failed_at if error else 0.0
        return [TaskHealth("step rules", alive, bool(error), age_s, error, _FAILING_S)]

    async def close(self) -> None:
        """Stop the supervisor. Until it runs again, or leaves the steps, no further step is closed."""
        task, self._task = self._task, None
        if task is not None:
            await end(task)
        self._reviewer.stop()


def check_step_rules(rules: Iterable[Rule], *, steps: bool, mirror: bool) -> None:
    """Raise RuleError if a rule judges whole steps, but the experiment has no steps, or has `mirror`."""
    for rule in rules:
        if not isinstance(rule, StepRule):
            continue
        if not steps:
            raise RuleError(
                f"rule {rule.name!r} judges whole steps, and this experiment has no steps: start it with steps=Steps()",
                rule=rule.name,
            )
        if mirror:
            raise RuleError(
                f"rule {rule.name!r} judges whole steps, but with mirror=True messages are published before that: "
                "start the experiment without mirror=",
                rule=rule.name,
            )


class StragglerWatch:
    """Task that logs warnings about late groups.

    A group is late if a step has waited for the group for `stall_s` seconds, or if the step waits for the group and the
    group's driver has not called the server for some time. The warning is repeated each time the wait has doubled.

    `late` has the late groups of the last check. The next check is made when the first group may have become late, so a
    run without late groups costs about one call to the server every `stall_s` seconds.
    """

    def __init__(self, store: "RedisSteps", exp_id: str, stall_s: float) -> None:
        self.late: list[Straggler] = []
        self._store = store
        self._exp_id = exp_id
        self._stall_s = stall_s
        # For each group and step, how many seconds the group had been idle at the last warning about it.
        self._said: dict[tuple[str, int], float] = {}
        self._task = asyncio.create_task(self._run(), name="ray_messaging stragglers")

    async def _run(self) -> None:
        wait_s = self._stall_s
        while True:
            await asyncio.sleep(wait_s)
            try:
                progress = await self._store.progress()
            except MessagingError as error:
                logger.info("cannot read how far the steps are: %s", error)
            else:
                self.look(progress)
                wait_s = self._until_next(progress)

    def look(self, progress: Progress) -> None:
        """Find the late groups, and log a warning for each group whose wait is new or has doubled."""
        self.late = stragglers(progress, self._stall_s)
        said, self._said = self._said, {}
        for straggler in self.late:
            key = (straggler.group, straggler.step)
            self._said[key] = said.get(key, 0.0)
            if straggler.idle_s >= 2 * self._said[key]:
                self._said[key] = straggler.idle_s
                logger.warning(
                    "the steps of experiment %s are held up: %s; %s", self._exp_id, straggler, straggler.remedy
                )

    def _until_next(self, progress: Progress) -> float:
        idle = [progress.groups[name].idle_ms / 1000 for name in progress.waiting_for() if name in progress.groups]
        left = min((self._stall_s - each for each in idle if each < self._stall_s), default=self._stall_s)
        return max(left, _SOONEST * self._stall_s)

    async def close(self) -> None:
        """Stop looking for late groups."""
        await end(self._task)
