"""Changes of an interceptor's rules while it runs: at once, or for a step and all later ones."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import ray

from ray_messaging.cluster.actors.step_rule_runner import StepRuleRunner
from ray_messaging.cluster.handles.connection import NAMESPACE
from ray_messaging.cluster.rule_store import RuleStore, description
from ray_messaging.cluster.spec import Experiment, PickledRule
from ray_messaging.errors import ConfigError, ConnectionFailed, MessagingError, RuleError
from ray_messaging.eventlog.folder_records import RuleChange
from ray_messaging.interception.rules import Rule
from ray_messaging.interception.server.interceptor import Interceptor
from ray_messaging.interception.server.rule_set import RuleSet
from ray_messaging.transports.step_values import without_steps

if TYPE_CHECKING:
    from ray_messaging.transports.steps import RedisSteps

logger = logging.getLogger(__name__)

T = TypeVar("T")

_CHANGES = 10_000  # the most changes that are kept for people to read


class RuleRequest(NamedTuple):
    """One change of the rules: insert, replace or remove; `which` is a position or a name.

    `call` is the name of the call, by which a call that Ray repeats after a restart finds its change already made.
    `at_step` is the first step to which the change applies; None: at once.
    """

    call: str
    change: str
    which: int | str | None
    rule: PickledRule | None = None
    at_step: int | None = None

    def make(self, rules: RuleSet, store: RuleStore) -> Rule:
        """Make the change; return the rule that it concerns; raise RuleError if it cannot be made."""
        rule = None if self.rule is None else store.admit(self.rule)
        if self.change == "insert":
            return rules.insert(rule, self.which)  # type: ignore[arg-type]  # a wrong place is refused there
        assert self.which is not None
        return rules.pop(self.which) if self.change == "remove" else rules.replace(self.which, rule)


class RuleEditor:
    """Changes of the rules: at once, or for a step and all later ones; and a record of all, in the event log too.

    Args: `store` keeps those that wait for their step, and the record. `interceptor` returns the interceptor. `where`
    is the server's address in errors.
    """

    def __init__(
        self, experiment: Experiment, store: RuleStore, interceptor: Callable[[], Interceptor], where: str
    ) -> None:
        self._experiment = experiment
        self._store = store
        self._interceptor = interceptor
        self._where = where
        self._saving = asyncio.Lock()
        self._unfinished: set[asyncio.Task[Any]] = set()  # changes that are not stored yet
        self._steps: tuple[RedisSteps, StepRuleRunner] | None = None

    async def change(self, change: Callable[[], T]) -> T:
        """Change the rules or their state; return when the change is stored and in force.

        Raises: ConnectionFailed if the change is in force, but could not be stored in time.
        """
        changing = self._interceptor().change(change, also=self._save)
        task = asyncio.create_task(changing, name="ray_messaging change of the rules")
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)
        limit_s = self._experiment.settings.send_timeout_s
        if (await asyncio.wait([task], timeout=limit_s))[0]:
            return task.result()
        # Failed writes are logged. Without this, asyncio would report an error that nobody has retrieved.
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        raise ConnectionFailed(
            f"the change is in force, but not kept: the server at {self._where} has not taken it within "
            f"{limit_s:g} s. Do not repeat it: it is stored once the server takes writes, and lost if the "
            "interceptor dies before",
            host=self._experiment.redis.server,
            port=self._experiment.redis.port,
        )

    async def _save(self) -> None:
        async with self._saving:  # the rules stored last must be those in force
            await self._store.save_rules(self._interceptor().rules.now)
        if self._steps is not None:
            await self._steps[1].follow()

    def use_steps(self, steps: "RedisSteps", runner: StepRuleRunner) -> None:
        """Know the experiment's steps from now on."""
        self._steps = steps, runner

    def changes(self) -> list[RuleChange]:
        """Return the changes of the rules in this run, in the order of the calls."""
        return list(self._store.changes)

    async def edit(self, request: RuleRequest) -> dict[str, Any]:
        """Insert, replace or remove a rule; return its description, or raise RuleError or ConfigError."""
        if request.at_step is None:
            step = await self._open_step()
            described = await self.change(lambda: self._make(request, step))
        else:
            described = await self._edit_from(request, request.at_step)
        self._log()
        return described

    async def _edit_from(self, request: RuleRequest, at_step: int) -> dict[str, Any]:
        if isinstance(at_step, bool) or not isinstance(at_step, int) or at_step < 0:
            raise ConfigError(f"at_step={at_step!r} must be the number of a step")
        if self._steps is None:
            raise without_steps(self._experiment.exp_id)
        _, runner = self._steps
        earliest = await runner.earliest()
        try:
            if at_step < earliest and request.call not in self._store.calls:
                async with runner.between_steps() as following:
                    if at_step == following:
                        await self.apply(at_step)  # those that came earlier
                        return await self.change(lambda: self._make(request, at_step, whole=True))
                raise ConfigError(
                    f"at_step={at_step}: a change of the rules can apply to step {following or earliest} at the "
                    "earliest, because the steps before have begun"
                )
            described = self._add(request)  # nothing may come between this and `earliest`
        except MessagingError:
            await runner.follow()  # no step waits for a change that was refused
            raise
        await self._save()
        await self.change(lambda: None)
        return described

    async def edit_state(self, change: str, make: Callable[[], T], rule: str) -> T:
        """Change the state of a rule at once."""
        step = await self._open_step()

        def noted() -> T:
            result = make()
            self._note(change, {"name": rule}, step)
            return result

        result = await self.change(noted)
        self._log()
        return result

    async def _open_step(self) -> int | None:
        """Return the latest step that some group has begun, -1 if none has, or None if there are no steps."""
        return None if self._steps is None else (await self._steps[0].progress()).latest

    def _log(self) -> None:
        """Send the changes to the event log; send all of them each time, so that none is lost with a process."""
        if self._experiment.log_dir is not None:
            log = ray.get_actor(self._experiment.log_name, namespace=NAMESPACE)
            log.write_rule_changes.remote(self._store.changes)

    # -- changes that wait for their step, and the record -----------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Return whether changes wait for their step."""
        return bool(self._store.scheduled)

    def _make(self, request: RuleRequest, step: int | None, *, whole: bool = False) -> dict[str, Any]:
        """Make a change at once, in an open step (-1: none has begun; None: there are no steps).

        Args: `whole` says that no group has begun the step, so that the change applies to all of it.
        """
        if (known := self._store.calls.get(request.call)) is not None:
            return dict(known)
        described = description(request.make(self._interceptor().rules, self._store))
        self._store.calls.put(request.call, described)
        self._note(request.change, described, step, exact=whole)
        return described

    def _add(self, request: RuleRequest) -> dict[str, Any]:
        """Schedule a change; return the rule's description. Raises RuleError if it cannot be made at that step."""
        if (known := self._store.calls.get(request.call)) is not None:
            return dict(known)
        scheduled = sorted([*self._store.scheduled, request], key=lambda change: change.at_step)
        interceptor, described = self._interceptor(), dict[str, Any]()
        trial = RuleSet(interceptor.rules.now, interceptor)
        for change in scheduled:
            try:
                rule = change.make(trial, self._store)
            except RuleError as error:
                raise RuleError(f"in step {change.at_step} {error}", rule=error.rule) from error
            if change is request:
                described = description(rule)
        self._store.scheduled = scheduled
        interceptor.delegation.restart()  # no rule is delegated to senders until the step
        self._store.calls.put(request.call, described)
        self._note(request.change, described, request.at_step, exact=True)
        return described

    async def apply(self, step: int) -> None:
        """Make the changes that apply from a step on, and store them, before any message of the step is judged."""
        due = [change for change in self._store.scheduled if change.at_step <= step]
        if not due:
            return

        def make() -> None:
            self._store.scheduled = [change for change in self._store.scheduled if change not in due]
            for change in due:
                try:
                    change.make(self._interceptor().rules, self._store)
                except RuleError as error:  # another change has come in between
                    logger.error("a change of the rules for step %d cannot be made: %s", step, error)  # noqa: TRY400
                    self._note(f"{change.change} failed: {error}", {"name": change.which}, step, exact=True)

        await self._interceptor().change(make, also=self._save)

    def _note(self, change: str, rule: dict[str, Any], step: int | None, *, exact: bool = False) -> None:
        """Record a change that applies from a step on, or, unless it is exact, from the middle of an open step."""
        if step is not None and step < 0:
            step, exact = 0, True
        self._store.changes.append(RuleChange(time.time(), change, rule, step, exact))
        del self._store.changes[:-_CHANGES]
        if step is not None and not exact:
            logger.warning(
                "the rules have changed in the middle of step %d, so its digest need not be that of another run: with "
                "at_step= a change applies to whole steps",
                step,
            )
