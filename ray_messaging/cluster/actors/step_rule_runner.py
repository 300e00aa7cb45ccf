"""What an interceptor does for steps: it runs the rules that act at each step's end, and finds groups that are late."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ray_messaging.audiences.cache import AudienceCache
from ray_messaging.common.backoff import STEP_SUPERVISOR_RETRY, Backoff
from ray_messaging.common.task_health import TaskHealth, end
from ray_messaging.errors import ConnectionFailed, MessagingError, RuleError, UnknownName
from ray_messaging.interception.rules.rule import Rule, StepRule, forces_all
from ray_messaging.interception.server.interceptor import Interceptor
from ray_messaging.interception.server.step_judge import RuleReviewer
from ray_messaging.steps.step_supervisor import StepSupervisor
from ray_messaging.steps.stragglers import Straggler, stragglers
from ray_messaging.transports.step_values import RULE_CHANGE, STANDSTILL, SUPERVISOR, Progress, StepSettings, WaitFor

if TYPE_CHECKING:
    from ray_messaging.cluster.actors.rule_editor import RuleEditor
    from ray_messaging.transports.steps import RedisSteps
    from ray_messaging.transports.transport import RedisTransport

logger = logging.getLogger(__name__)

T = TypeVar("T")

_FAILING_S = 1.0  # a supervisor that fails for longer is reported
_SOONEST = 0.1  # the least time between two checks for stragglers, as a part of `stall_s`


class StepRuleRunner:
    """Runner of the supervisor, the member of the steps that closes each step last, with the verdicts of step rules.

    The supervisor runs while a rule acts at the end of a step, or while a change of the rules waits for its step.

    Args: `settings` are those of the experiment's steps. `audiences` has the pairs to which groups broadcast.
    """

    def __init__(
        self,
        transport: "RedisTransport",
        store: "RedisSteps",
        settings: StepSettings,
        interceptor: Interceptor,
        editor: "RuleEditor",
        audiences: AudienceCache,
    ) -> None:
        self._closing = -1  # the last step that the supervisor has begun to close
        self._wait_for = settings.wait_for
        self._store = store
        self._interceptor = interceptor
        self._editor = editor
        self._reviewer = RuleReviewer(interceptor, settings.horizon, closing=self.step_closing, begins=self.step_begins)
        self._supervisor = StepSupervisor(transport, store, settings, self._reviewer, interceptor.epoch, audiences)
        self._task: asyncio.Task[None] | None = None
        self._following = asyncio.Lock()
        self._holding = asyncio.Lock()
        self._leaving: asyncio.Task[None] | None = None
        interceptor.before_outside = lambda: self._changed() if editor.waits else None

    @property
    def _needed(self) -> bool:
        return forces_all(self._interceptor.rules) or self._editor.waits

    async def follow(self) -> None:
        """Begin or end supervision, as the current rules need it."""
        if asyncio.current_task() is self._task:
            return  # `step_begins` calls this again in a task of its own
        async with self._following:
            if self._needed and self._task is None:
                await self._join()
                self._reviewer.start()
                self._task = asyncio.create_task(self._supervisor.run(), name="ray_messaging step rules")
            elif not self._needed:
                await self.close()
                with suppress(UnknownName):  # there was no supervisor
                    await self._store.leave(SUPERVISOR, at_once=True)
                await self._store.set_wait_for(self._wait_for)

    async def _join(self) -> int:
        """Make the supervisor a member of the steps, for which all groups wait; return its first step."""
        if self._wait_for != WaitFor.ALL:
            logger.info("each group waits for all others before a step, in spite of Steps(wait_for=%r)", self._wait_for)
            await self._store.set_wait_for(WaitFor.ALL)
        return await self._store.join(SUPERVISOR)

    async def earliest(self) -> int:
        """Join the steps; return the first step before which the supervisor is able to change the rules."""
        since = await self._join()
        progress = await self._store.progress()
        closed = since - 1 if progress.supervisor is None else progress.supervisor.closed
        return max(closed, self._closing) + 2

    @asynccontextmanager
    async def between_steps(self) -> AsyncIterator[int | None]:
        """Let no step begin while the block runs.

        Yield the number of the next step if all steps that have begun are committed, otherwise None.
        """
        async with self._holding:
            await self._store.hold(RULE_CHANGE, STANDSTILL)
            try:
                progress = await self._store.progress()
                yield progress.latest + 1 if progress.latest == progress.sealed else None
            finally:
                await self.release()

    async def release(self) -> None:
        """Let the steps go on. An interceptor also calls this at its start, because one before it may have died."""
        await self._persist(partial(self._store.drop_hold, RULE_CHANGE))

    async def _persist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call while the server is away."""
        backoff = Backoff(STEP_SUPERVISOR_RETRY)
        while True:
            try:
                return await call()
            except ConnectionFailed:
                await backoff.sleep()

    async def step_closing(self, number: int) -> None:
        """Accept no more changes for the next step. If changes wait, wait until no sender applies rules by itself."""
        self._closing = number
        if self._editor.waits:
            await self._interceptor.delegation.revoked()

    async def _changed(self) -> None:
        """Wait until the rules are those of the next step, which reads what comes from outside now."""
        await self._reviewer.until((await self._persist(self._store.progress)).sealed + 1)

    async def step_begins(self, number: int) -> None:
        """Make the changes that apply from a step on, and end supervision if it is not needed any more."""
        await self._editor.apply(number)
        if not self._needed:
            self._leaving = asyncio.create_task(self.follow(), name="ray_messaging step rules end")

    def named(self, progress: Progress) -> Progress:
        """Return the progress of the steps, with the name of the rule for which they wait, if they wait for one."""
        asking = self._reviewer.asking
        return progress if asking is None else progress._replace(supervised_by=f"rule {asking.name!r}")

    def health(self) -> list[TaskHealth]:
        """Return the health of the supervisor, or an empty list if there is none."""
        if self._task is None:
            return []
        error, alive = self._supervisor.error, not self._task.done()
        age_s = time.monotonic() - self._supervisor.failed_at if error else 0.0
        return [TaskHealth("step rules", alive, bool(error), age_s, error, _FAILING_S)]

    async def close(self) -> None:
        """Stop the supervisor in this process. It stays a member of the steps, so the steps wait for its successor."""
        task, self._task = self._task, None
        if task is not None:
            await end(task)
        self._reviewer.stop()


def check_step_rules(rules: Iterable[Rule], *, steps: bool, mirror: bool) -> None:
    """Raise RuleError if a rule judges whole steps in an experiment without steps, or with `mirror`."""
    for rule in rules:
        if not isinstance(rule, StepRule):
            continue
        if not steps:
            raise RuleError(
                f"rule {rule.name!r} judges whole steps, and this experiment has none: start it with steps=Steps()",
                rule=rule.name,
            )
        if mirror:
            raise RuleError(
                f"rule {rule.name!r} judges whole steps, but mirror=True publishes messages that it may block: start "
                "the experiment without mirror",
                rule=rule.name,
            )


class StragglerWatch:
    """Task that logs the names of groups that hold up a step for `stall_s`, and logs them again after twice as long.

    `late` has the late groups of the last check. The next check comes when the first group may have become late, so a
    run without stragglers costs one call to the server in `stall_s`.
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
        """Find the groups that hold up a step now, and log those that are due to be logged."""
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
        await end(self._task)
