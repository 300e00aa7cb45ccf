"""Calls that change the rules of an experiment while it runs."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import ray

from ray_messaging.cluster.actors.rule_schedule import RuleRequest, RuleSchedule
from ray_messaging.cluster.actors.step_rule_runner import StepRuleRunner
from ray_messaging.cluster.handles.actor_calls import NAMESPACE
from ray_messaging.cluster.rule_store import RuleStore
from ray_messaging.cluster.spec import Experiment
from ray_messaging.errors import ConfigError
from ray_messaging.eventlog.records import RuleChange
from ray_messaging.transports.step_values import without_steps

if TYPE_CHECKING:
    from ray_messaging.transports.steps import RedisSteps

T = TypeVar("T")


class Change(Protocol):
    """A change of the rules or their state, which is stored and in force when it has returned."""

    def __call__(self, change: Callable[[], T]) -> Awaitable[T]:
        """Make the change; return its result."""


class RuleEditor:
    """Changes of the rules at once, or from a step on, and their record in the event log."""

    def __init__(self, experiment: Experiment, store: RuleStore, schedule: RuleSchedule, change: Change) -> None:
        self._experiment = experiment
        self._store = store
        self._schedule = schedule
        self._change = change
        self._steps: tuple[RedisSteps, StepRuleRunner] | None = None

    def use_steps(self, steps: "RedisSteps", runner: StepRuleRunner) -> None:
        """Know the experiment's steps from now on."""
        self._steps = steps, runner

    @property
    def changes(self) -> list[RuleChange]:
        """Return the changes of the rules in this run."""
        return list(self._store.changes)

    async def edit(self, request: RuleRequest, at_step: int | None = None) -> dict[str, Any]:
        """Insert, replace or remove a rule; return its description.

        Args: `at_step` is the first step to which the change applies; None: at once.
        Raises: RuleError; ConfigError for a step that is too early, or without steps.
        """
        if at_step is None:
            step = await self._open_step()
            described = await self._change(lambda: self._schedule.make(request, step))
        else:
            described = await self._edit_from(request, check_at_step(at_step))
        self._log()
        return described

    async def _edit_from(self, request: RuleRequest, at_step: int) -> dict[str, Any]:
        if self._steps is None:
            raise without_steps(self._experiment.exp_id)
        _, runner = self._steps
        earliest = await runner.earliest()
        if at_step < earliest and request.call not in self._store.calls:
            async with runner.between_steps() as following:
                if at_step == following:
                    await self._schedule.apply(at_step)  # those that came earlier
                    return await self._change(lambda: self._schedule.make(request, at_step, whole=True))
            await runner.follow()
            raise ConfigError(
                f"at_step={at_step}: a change of the rules can apply to step {following or earliest} at the earliest, "
                "because the steps before have begun"
            )
        described = self._schedule.add(request, at_step)  # nothing may come between this and `earliest`
        await self._schedule.save()
        await self._change(lambda: None)
        return described

    async def edit_state(self, change: str, make: Callable[[], T], rule: str) -> T:
        """Change the state of a rule at once."""
        step = await self._open_step()

        def noted() -> T:
            result = make()
            self._schedule.note(change, {"name": rule}, step)
            return result

        result = await self._change(noted)
        self._log()
        return result

    async def _open_step(self) -> int | None:
        """Return the latest step that some group has begun (-1: none has); None: there are no steps."""
        return None if self._steps is None else (await self._steps[0].progress()).latest

    def _log(self) -> None:
        """Have the event log keep the changes; it gets all of them each time, so that none is lost with a process."""
        if self._experiment.log_dir is not None:
            log = ray.get_actor(self._experiment.log_name, namespace=NAMESPACE)
            log.write_rule_changes.remote(self._store.changes)


def check_at_step(at_step: object) -> int:
    """Return the step to which a change applies first; raise ConfigError."""
    if isinstance(at_step, bool) or not isinstance(at_step, int) or at_step < 0:
        raise ConfigError(f"at_step={at_step!r} must be the number of a step")
    return at_step
