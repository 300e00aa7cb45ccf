"""Runner of the rules that act at the end of each step."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from ray_messaging.cluster.actors.rule_schedule import RuleSchedule
from ray_messaging.common.backoff import STEP_SUPERVISOR_RETRY, Backoff
from ray_messaging.common.task_health import TaskHealth, end
from ray_messaging.errors import ConnectionFailed, RuleError, UnknownName
from ray_messaging.interception.rules.rule import Rule, StepRule, forces_all
from ray_messaging.interception.server.interceptor import Interceptor
from ray_messaging.interception.server.step_judge import RuleReviewer
from ray_messaging.steps.supervision.supervisor import Supervisor
from ray_messaging.transports.step_values import RULE_CHANGE, STANDSTILL, SUPERVISOR, Progress, StepSettings, WaitFor

if TYPE_CHECKING:
    from ray_messaging.transports.steps import RedisSteps
    from ray_messaging.transports.transport import RedisTransport

logger = logging.getLogger(__name__)

_FAILING_S = 1.0  # a supervisor that fails for so long is reported


class StepRuleRunner:
    """Runner of a supervisor, for as long as a rule acts at the end of a step, or a change of the rules waits for one.

    Args: `settings` are those of the experiment's steps.
    """

    def __init__(
        self,
        transport: "RedisTransport",
        store: "RedisSteps",
        settings: StepSettings,
        interceptor: Interceptor,
        schedule: RuleSchedule,
    ) -> None:
        self._closing = -1  # the last step that was about to be closed
        self._wait_for = settings.wait_for
        self._store = store
        self._interceptor = interceptor
        self._schedule = schedule
        self._reviewer = RuleReviewer(interceptor, settings.horizon, self)
        self._supervisor = Supervisor(transport, store, settings, self._reviewer, interceptor.epoch)
        self._task: asyncio.Task[None] | None = None
        self._following = asyncio.Lock()
        self._holding = asyncio.Lock()
        self._leaving: asyncio.Task[None] | None = None

    @property
    def _needed(self) -> bool:
        return forces_all(self._interceptor.rules) or self._schedule.waits

    async def follow(self) -> None:
        """Begin or end supervision, as the rules of now need it."""
        if asyncio.current_task() is self._task:
            return  # `step_begins` follows up
        async with self._following:
            if self._needed and self._task is None:
                await self._join()
                self._reviewer.start()
                self._task = asyncio.create_task(self._supervisor.run(), name="ray_messaging step rules")
            elif not self._needed:
                await self.close()
                with suppress(UnknownName):  # there was none
                    await self._store.leave(SUPERVISOR, at_once=True)
                await self._store.set_wait_for(self._wait_for)

    async def _join(self) -> int:
        """Join the steps, which each group begins after all others from now on; return the first one."""
        if self._wait_for != WaitFor.ALL:
            logger.info("each group waits for all others before a step, in spite of Steps(wait_for=%r)", self._wait_for)
            await self._store.set_wait_for(WaitFor.ALL)
        return await self._store.join(SUPERVISOR)

    async def earliest(self) -> int:
        """Join the steps; return the first one before which the supervisor will come to change the rules."""
        since = await self._join()
        progress = await self._store.progress()
        closed = since - 1 if progress.supervisor is None else progress.supervisor.closed
        return max(closed, self._closing) + 2

    @asynccontextmanager
    async def between_steps(self) -> AsyncIterator[int | None]:
        """Let no step begin meanwhile; yield the next one if all that have begun are committed, else None."""
        async with self._holding:
            await self._store.hold(RULE_CHANGE, STANDSTILL)
            try:
                progress = await self._store.progress()
                yield progress.latest + 1 if progress.latest == progress.sealed else None
            finally:
                await self.release()

    async def release(self) -> None:
        """Let the steps go on, which wait until then; also after an interceptor that has died between two steps."""
        backoff = Backoff(STEP_SUPERVISOR_RETRY)
        while True:
            try:
                return await self._store.drop_hold(RULE_CHANGE)
            except ConnectionFailed:
                await backoff.sleep()

    async def step_closing(self, number: int) -> None:
        """Take no more changes for the next step; see that no rules are delegated in it that change before it."""
        self._closing = number
        if self._schedule.waits:
            await self._interceptor.delegation.revoked()

    async def step_begins(self, number: int) -> None:
        """Make the changes that apply to a step, and end supervision where it is not needed any more."""
        await self._schedule.apply(number)
        if not self._needed:
            self._leaving = asyncio.create_task(self.follow(), name="ray_messaging step rules end")

    def named(self, progress: Progress) -> Progress:
        """Return the progress of the steps with the rule that they wait for."""
        asking = self._reviewer.judge.asking
        return progress if asking is None else progress._replace(supervised_by=f"rule {asking.name!r}")

    def health(self) -> list[TaskHealth]:
        """Return the health of the supervisor, if there is one."""
        if self._task is None:
            return []
        error, alive = self._supervisor.error, not self._task.done()
        age_s = time.monotonic() - self._supervisor.failed_at if error else 0.0
        return [TaskHealth("step rules", alive, bool(error), age_s, error, _FAILING_S)]

    async def close(self) -> None:
        """End the supervisor's work here; it stays a member of the steps."""
        task, self._task = self._task, None
        if task is not None:
            await end(task)
        self._reviewer.stop()


def check_step_rules(rules: Iterable[Rule], *, steps: bool, mirror: bool) -> None:
    """Raise RuleError for a rule that judges whole steps where that cannot be."""
    for rule in rules:
        if isinstance(rule, StepRule) and not steps:
            raise RuleError(
                f"rule {rule.name!r} judges whole steps, and this experiment has none: start it with steps=Steps()",
                rule=rule.name,
            )
        if isinstance(rule, StepRule) and mirror:
            raise RuleError(
                f"rule {rule.name!r} judges whole steps, but mirror=True publishes messages that it may block: start "
                "the experiment without mirror",
                rule=rule.name,
            )
