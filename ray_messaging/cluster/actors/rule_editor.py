"""Changes of an interceptor's rules while it runs. A change applies at once, or from a step on."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import ray

from ray_messaging.cluster.handles.connection import NAMESPACE
from ray_messaging.cluster.rule_store import RuleStore, description, unpickled
from ray_messaging.cluster.spec import Experiment, PickledRule
from ray_messaging.common.backoff import STEP_SUPERVISOR_RETRY, Backoff
from ray_messaging.common.task_health import end
from ray_messaging.errors import ConfigError, ConnectionFailed, RuleError
from ray_messaging.eventlog.folder_records import RuleChange
from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.interception.interceptor.rule_set import RuleSet
from ray_messaging.interception.interceptor.rule_versions import RuleVersions
from ray_messaging.interception.rules import Rule
from ray_messaging.model.whole_numbers import whole_number
from ray_messaging.transports.step_values import RULE_CHANGE, STANDSTILL, without_steps

if TYPE_CHECKING:
    from ray_messaging.transports.steps import RedisSteps

logger = logging.getLogger(__name__)

T = TypeVar("T")

_CHANGES = 10_000  # of the changes, at most this many are recorded: the newest


class RuleRequest(NamedTuple):
    """A request to insert, replace or remove a rule. `which` is the position or the name of a rule.

    `call` is the id of the Ray call. If Ray repeats the call after a restart, the id shows that the change was made
    already. `at_step` is the first step to which the change applies; None: the change applies at once.
    """

    call: str
    change: str
    which: int | str | None
    rule: PickledRule | None = None
    at_step: int | None = None

    def make(self, rules: RuleSet, store: RuleStore) -> Rule:
        """Make the change in `rules`; return the new rule, or the removed one; raise RuleError if it is impossible."""
        rule = None if self.rule is None else store.admit(self.rule)
        if self.change == "insert":
            return rules.insert(rule, self.which)  # type: ignore[arg-type]  # a wrong place is refused there
        assert self.which is not None
        return rules.pop(self.which) if self.change == "remove" else rules.replace(self.which, rule)


class RuleEditor(RuleVersions):
    """Editor of an interceptor's rules.

    A change applies at once, or from a given step on. It is recorded in the interceptor's state, and in the event log
    if there is one.

    Args: `store` stores the rules, and the changes that wait for their step. `interceptor` returns the interceptor.
    `where` is the server's address, for errors. `follow` is awaited when the rules in force, or the rules scheduled for
    later steps, have changed.
    """

    def __init__(
        self,
        experiment: Experiment,
        store: RuleStore,
        interceptor: Callable[[], Interceptor],
        where: str,
        follow: Callable[[], Awaitable[None]],
    ) -> None:
        self._experiment = experiment
        self._store = store
        self._interceptor = interceptor
        self._where = where
        self._saving = asyncio.Lock()
        self._unfinished: set[asyncio.Task[Any]] = set()  # changes that are not stored yet
        self._follow = follow
        self._holding = asyncio.Lock()
        self._steps: RedisSteps | None = None  # None: the experiment has no steps

    async def change(self, change: Callable[[], T]) -> T:
        """Change the rules or their state by calling `change`; return when the change is stored and in force.

        Raises: ConnectionFailed if the change is in force, but could not be stored in time.
        """
        task = self._begin(self._interceptor().change(change, also=self._save))
        limit_s = self._experiment.settings.send_timeout_s
        if (await asyncio.wait([task], timeout=limit_s))[0]:
            return task.result()
        raise ConnectionFailed(
            f"the change of the rules is in force, but is not stored yet, because the server at {self._where} has not "
            f"accepted it within {limit_s:g} s. Do not repeat the change. It will be stored as soon as the server "
            "accepts writes, and is lost only if the interceptor dies before that",
            host=self._experiment.redis.server,
            port=self._experiment.redis.port,
        )

    def _begin(self, changing: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(changing, name="ray_messaging change of the rules")
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)
        # The interceptor's StateWriter logs writes that fail. Without this callback, asyncio would also report that
        # nobody has retrieved the error.
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return task

    async def _save(self) -> None:
        async with self._saving:  # saves run one after another, so that the newest rules are stored last
            await self._store.save_rules(self._interceptor().rules.now)
        await self._follow()

    def use_steps(self, steps: "RedisSteps") -> None:
        """Use the store of the experiment's steps from now on."""
        self._steps = steps

    def changes(self) -> list[RuleChange]:
        """Return the changes of the rules since this start of the experiment, in the order of the calls."""
        found = sorted(self._interceptor().changes.items())
        return [msgspec.convert(change, RuleChange) for _, (_, change) in found]

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
        """Change the rules from a step on; return the description of the changed rule. Meanwhile no step can begin."""
        if (found := whole_number(at_step)) is None:
            raise ConfigError(f"at_step={at_step!r} must be the number of a step, an int of at least 0")
        at_step = found
        if self._steps is None:
            raise without_steps(self._experiment.exp_id)
        async with self._holding:
            await self._steps.hold(RULE_CHANGE, STANDSTILL)
            try:
                progress = await self._steps.progress()
                if at_step <= progress.latest and self._number_of(request.call) is None:
                    raise ConfigError(
                        f"at_step={at_step}: a change of the rules can apply to step {progress.latest + 1} at the "
                        "earliest, because the steps before that have begun"
                    )
                described = self._add(request)
                await self._save()
                await self.change(lambda: None)  # from now on no sender judges messages by a copy of the rules
                if at_step <= progress.sealed + 1:  # all messages of earlier steps are judged
                    await self._interceptor().in_force(at_step)
            finally:
                await self.release()
        return described

    async def release(self) -> None:
        """Let steps begin again.

        An interceptor also calls this when it starts: its predecessor may have stopped the steps, and died.
        """
        if self._steps is not None:
            await _persist(partial(self._steps.drop_hold, RULE_CHANGE))

    async def edit_state(self, change: str, make: Callable[[], T], rule: str) -> T:
        """Change the state of a rule by calling `make`, and record the change under the name `change`.

        The change applies from now on.
        """
        step = await self._open_step()

        def noted() -> T:
            result = make()
            self._note(change, {"name": rule}, step)
            return result

        result = await self.change(noted)
        self._log()
        return result

    async def _open_step(self) -> int | None:
        """Put in force the rules for the latest step that any group has begun; return that step.

        Return -1 if no step has begun, and None if the experiment has no steps.
        """
        if self._steps is None:
            return None
        latest = (await self._steps.progress()).latest
        if self.first <= latest:
            await self._interceptor().in_force(latest)
        return latest

    def _log(self) -> None:
        """Send all changes so far to the event log.

        All are sent each time, so that no change is lost if a process dies.
        """
        if self._experiment.log_dir is not None:
            log = ray.get_actor(self._experiment.log_name, namespace=NAMESPACE)
            log.write_rule_changes.remote(self.changes())

    # -- changes that wait for their step, and the record of changes -------------------------------------------------

    @property
    def first(self) -> float:
        """Return the step from which the next scheduled change of the rules applies, or infinity if there is none."""
        scheduled = self._store.scheduled
        return scheduled[0].at_step if scheduled else math.inf

    def to_come(self) -> list[Rule]:
        """Return the rules that changes scheduled for later steps will add."""
        return [unpickled(change.rule) for change in self._store.scheduled if change.rule is not None]

    async def following(self) -> int:
        """Return the step in which messages from outside of the steps are read if they are sent now (-1: no steps)."""
        return -1 if self._steps is None else (await _persist(self._steps.progress)).sealed + 1

    def _make(self, request: RuleRequest, step: int | None) -> dict[str, Any]:
        """Make a change that applies from now on; return the description of its rule.

        Args: `step` is the latest step that has begun (-1: none has begun; None: the experiment has no steps).
        """
        if (number := self._number_of(request.call)) is not None:
            return dict(self._interceptor().changes[number][1]["rule"])
        described = description(request.make(self._interceptor().rules, self._store))
        self._note(request.change, described, step, call=request.call)
        return described

    def _add(self, request: RuleRequest) -> dict[str, Any]:
        """Schedule a change for its step; return the rule's description. Raise RuleError for an impossible change."""
        if (number := self._number_of(request.call)) is not None:
            return dict(self._interceptor().changes[number][1]["rule"])
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
        interceptor.delegation.restart()  # until the step of this change, senders do not judge messages themselves
        self._note(request.change, described, request.at_step, exact=True, call=request.call)
        return described

    async def apply(self, step: int) -> None:
        """Make the scheduled changes that apply from `step` or an earlier step, and store the rules.

        This is called before a message of the step is judged.
        """
        if self.first > step:
            return

        def make() -> None:
            due = [change for change in self._store.scheduled if change.at_step <= step]
            self._store.scheduled = [change for change in self._store.scheduled if change not in due]
            for change in due:
                try:
                    change.make(self._interceptor().rules, self._store)
                except RuleError as error:  # an earlier change made this one impossible
                    logger.error("a change of the rules for step %d cannot be made: %s", step, error)  # noqa: TRY400
                    self._note(f"{change.change} failed: {error}", {"name": change.which}, step, exact=True)

        task = self._begin(self._interceptor().change(make, also=partial(_persist, self._save)))
        await asyncio.wait([task])  # the task continues if this call is cancelled
        task.result()

    async def close(self) -> None:
        """Cancel the changes that are not stored yet."""
        for task in list(self._unfinished):
            await end(task)

    def _number_of(self, call: str) -> int | None:
        """Return the number of the change that a Ray call has made, or None if the call has made none."""
        return next((number for number, (known, _) in self._interceptor().changes.items() if known == call), None)

    def _note(
        self, change: str, rule: dict[str, Any], step: int | None, *, exact: bool = False, call: str = ""
    ) -> None:
        """Record a change of a rule.

        With `exact`, the change applies from the beginning of `step`, and without it from some moment within the step.
        If `step` is -1, because no step has begun, the change applies from the beginning of step 0.

        Args: `call` is the id of the Ray call, which is recorded with the description of the rule. If the interceptor
        dies, Ray repeats the call, and the record shows that the change must not be made again.
        """
        if step is not None and step < 0:
            step, exact = 0, True
        noted = msgspec.to_builtins(RuleChange(time.time(), change, rule, step, exact), enc_hook=str)
        changes = self._interceptor().changes
        number = max(changes, default=0) + 1
        changes[number] = [call, noted]
        changes.pop(number - _CHANGES, None)
        if step is not None and not exact:
            logger.warning(
                "the rules have changed in the middle of step %d, so the digest of that step may differ in another "
                "run of the same model: pass at_step= to change rules between two steps",
                step,
            )


async def _persist(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call until the server answers, and return its result."""
    backoff = Backoff(STEP_SUPERVISOR_RETRY)
    while True:
        try:
            return await call()
        except ConnectionFailed:
            await backoff.sleep()
