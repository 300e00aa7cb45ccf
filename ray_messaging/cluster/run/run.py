"""`messaging.run`, which starts the groups, runs all steps, and collects the result."""

import itertools
import secrets
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial, reduce
from operator import or_, sub
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import ray
from ray.exceptions import RayActorError, RayError

from ray_messaging.addressing.channels import AgentId
from ray_messaging.cluster.embedded_servers import lost_machine
from ray_messaging.cluster.handles.connection import result, start_in_turn
from ray_messaging.cluster.handles.experiment_steps import ExperimentSteps, RunProgress
from ray_messaging.cluster.lifecycle import attempt, leave
from ray_messaging.cluster.placement import ActorOptions, GroupPlacement, Placement
from ray_messaging.cluster.ray_calls import get, kill, put, start_actor, wait
from ray_messaging.cluster.run.agent import NO_CHANGE
from ray_messaging.cluster.run.ending import Ending, values_after
from ray_messaging.cluster.run.model_source import change_of, changes_of, facts_of, inputs_of
from ray_messaging.cluster.run.result import Result, calls_text, cause_of, gathered, series_frame, states_of
from ray_messaging.cluster.run.run_actor import GroupResult, RunActor, RunInputs
from ray_messaging.cluster.run.run_plan import GroupPlan, RunOptions, check_run, plans_for, senders_of
from ray_messaging.cluster.run.step_calls import CALLS_END_S
from ray_messaging.cluster.unpicklable import sent
from ray_messaging.errors import (
    BudgetSpent,
    Closed,
    ConfigError,
    ConnectionFailed,
    MessagingError,
    StepFailed,
    UnknownName,
)
from ray_messaging.model.agent_sets import NO_AGENTS, AgentSet
from ray_messaging.model.whole_numbers import step_count
from ray_messaging.transports.step_values import StepSettings, WaitFor

if TYPE_CHECKING:
    from ray_messaging.cluster.messaging import Messaging

_KIND: Final = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "max_concurrency": 100}
# Idle processes are kept for this many seconds, because a new process takes a second or two to start.
_IDLE_S: Final = 60.0
_CLOSE_S = 10.0  # the longest wait until groups have left their mailboxes, once no calls are under way
_LOOK_S = 0.25  # seconds between two checks of the progress
_NODES_EVERY = 8  # every n-th check of the progress also looks for lost machines
_COUNTED_S = 0.1  # the longest wait for the groups' numbers of calls through `me.remember`
_SEAL_S = 0.5  # how long one call by an `Opening` waits at most for all groups to commit their steps
_TOLD_S = 1.0  # the longest wait until groups have answered that they will end early
_REMEDY = "resume with the same agents and groups, or begin anew by on_existing='reset'"


class RunActors:
    """The actors of groups that have run a model, and are kept for the next run.

    Kept actors have left their mailboxes. They are ended after a minute without a run.
    """

    def __init__(self) -> None:
        self.run: Run | None = None  # the run of `start_run` that is not closed, and waits between two of its steps
        self.inputs: Mapping[str, Any] = {}  # the last run's digests from `inputs_of`
        self.turns = itertools.count(1)  # gives each call of the actors' `run` a number
        self._kept: dict[str, Any] = {}
        self._options: Mapping[str, Mapping[str, Any]] = {}  # by group, the options of its actor in the last run
        self._end: threading.Timer | None = None
        self._lock = threading.Lock()

    def take(self, groups: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return the kept actors that can be used for a new run, by group, and end all other kept actors.

        An actor can be used if it started with the options that the new run has for its group, and if no file of a
        module that it has imported has changed.

        Args: `groups` has the options of the actor of each group of the new run.
        """
        kept, before, self._options = self._detach(), self._options, groups
        same = {name for name, options in groups.items() if before.get(name) == options}
        asked = {name: actor.is_current.remote() for name, actor in kept.items() if name in same}
        found = {name: kept.pop(name) for name, answer in asked.items() if _says_yes(answer)}
        _end(kept)
        return found

    def keep(self, actors: Mapping[str, Any]) -> None:
        """Let the actors of a run that has ended leave their mailboxes, and keep them for the next run.

        Actors that do not manage to leave are ended.
        """
        calls = {actor.rest.remote(): name for name, actor in actors.items()}
        rested = {calls[done] for done in attempt([*calls])}
        _end({name: actor for name, actor in actors.items() if name not in rested})
        with self._lock:
            self._kept = {name: actor for name, actor in actors.items() if name in rested}
            self._end = threading.Timer(_IDLE_S, self.end)
            self._end.daemon = True
            self._end.start()

    def close_run(self) -> None:
        """Close the run that waits between two of its steps, if there is one."""
        if self.run is not None:
            self.run.close()

    def end(self) -> None:
        """Close the run that waits between two of its steps, and end the actors that were kept for a later run."""
        self.close_run()
        _end(self._detach())

    def _detach(self) -> dict[str, Any]:
        with self._lock:
            kept, self._kept = self._kept, {}
            if self._end is not None:
                self._end.cancel()
            return kept


def _says_yes(answer: Any) -> bool:  # noqa: ANN401 - an ObjectRef
    try:
        return bool(get(answer))
    except RayActorError:  # the actor was killed, and Ray does not start it again
        return False


def _end(actors: Mapping[str, Any]) -> None:
    for actor in actors.values():
        kill(actor)


class EarlyEnd:
    """Context in which Ctrl-C ends a run after the step that groups have already begun.

    A second Ctrl-C raises KeyboardInterrupt as usual. Once `tell` was called, no step begins until the end of the
    context. Steps that the user has paused stay paused. Python handles signals only in the main thread, so in other
    threads this context does not handle Ctrl-C.

    Args: `turn` is the number of the current call of the actors' `run`.
    """

    def __init__(self, interceptor: Any, actors: Sequence[Any], turn: int) -> None:  # noqa: ANN401 - a Ray actor handle
        self.asked = False
        self._interceptor = interceptor
        self._actors = actors
        self._turn = turn
        self._former: Any = None  # the earlier handler of Ctrl-C
        self._holds = False  # whether this object may have asked that no further step begins
        self._name = secrets.token_hex(8)  # the name under which this object asks that no further step begins

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._former = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, *_error: object) -> None:
        self._restore()
        if self._holds:  # `tell` sets this before it holds steps, because a second Ctrl-C may interrupt `tell`
            result(self._interceptor.release_steps.remote(self._name), actor_name="the interceptor")

    def _restore(self) -> None:
        if self._former is not None:
            signal.signal(signal.SIGINT, self._former)
            self._former = None

    def _ask(self, _signal: int, _frame: FrameType | None) -> None:
        self._restore()
        self.asked = True
        sys.stderr.write("\nthe run ends after the open step; Ctrl-C once more ends it at once\n")

    def tell(self) -> None:
        """Let no further step begin, and tell all groups to end after the last step that has begun.

        Call this repeatedly until the groups have ended, because a group that restarts has forgotten what it was told.
        """
        self._holds = True
        last = result(self._interceptor.hold_steps.remote(self._name), actor_name="the interceptor")
        told = [actor.end_after.remote(last, self._turn) for actor in self._actors]
        wait(told, num_returns=len(told), timeout=_TOLD_S)
        # A second call of `hold_steps` wakes groups that wait for a step, so that they notice that they must end.
        result(self._interceptor.hold_steps.remote(self._name), actor_name="the interceptor")


class Opening:
    """A step that the interceptor opens for all groups of a run at once, so that the groups need not ask for it.

    `call` is a call of the interceptor that ends when all groups have committed the steps before `until`, or after a
    short time. It is None once all groups have committed these steps, and also after an error. After an error, the
    groups ask for the step themselves.
    """

    def __init__(self, interceptor: Any, step: int, until: int, groups: list[str]) -> None:  # noqa: ANN401 - an actor
        self._until = until
        self._go_on = partial(interceptor.go_on.remote, step, until)
        self.call: Any = self._go_on(groups, _SEAL_S)

    def has_ended(self) -> bool:
        """Wait for `call`; return whether all groups have committed the steps before `until`.

        If they have not, `call` is replaced by a new call that waits for them, or by None if the last call failed.
        """
        try:
            sealed: int = get(self.call)
        except (RayError, MessagingError):  # for example, the interceptor restarts, or the server cannot be reached
            self.call = None
            return False
        self.call = self._go_on([], _SEAL_S) if sealed < self._until - 1 else None
        return self.call is None


class Run(AbstractContextManager["Run"]):
    """A run of a model that waits between its steps until `advance` is called; `messaging.start_run` returns it.

    `step` is the number of the next step to run. Use the run as a context manager, or call `close`. The next run, and
    the end of the experiment, also close the run.
    """

    def __init__(
        self,
        messaging: "Messaging",
        model: Any,  # noqa: ANN401 - a function of the user's
        agents: object,
        groups: object,
        graph: object,
        shared: object,
        options: RunOptions,
        kept: RunActors,
        placed: tuple[GroupPlacement, ActorOptions],
        ending: Ending | None = None,
    ) -> None:
        check_run(model, options)
        if isinstance(graph, str):
            graph = messaging.audience(graph)
        steps = messaging._connection.experiment.steps
        ahead = steps.ahead if steps is not None and steps.wait_for == "neighbours" else 0
        cpus = int(ray.cluster_resources().get("CPU", 2))
        plans = plans_for(options, agents, groups, graph, cpus, model, near=ahead > 0)
        places = Placement(*placed, [plan.name for plan in plans])
        kept.close_run()
        progress, moved = messaging.steps.progress(), messaging.steps.moved()
        check_same(plans, messaging.steps.hosted(), begun=progress.latest >= 0, moved=moved.keys())
        self.step = progress.sealed + 1
        self._messaging = messaging
        self._kept = kept
        self._collects = options.collect is not None
        # Each object is stored once in Ray's object store, however many groups there are.
        model_ref, options_ref = sent("the model", model, put), sent("the run's options", options, put)
        plan_refs = {plan.name: sent("the data of agents", plan, put) for plan in plans}
        parent = parent_of(messaging)
        if parent is not None and messaging._fork is None:
            sys.stderr.write(
                f"this run continues a fork of {parent}, but was not started by Messaging.fork(..., "
                "on_existing='resume'). So later messages that the parent got from outside, such as from the user, "
                f"are not sent again, and states= is not applied\n"
            )
        change = NO_CHANGE if messaging._fork is None else messaging._fork.change
        if strangers := reduce(sub, (plan.agents for plan in plans), AgentSet.of([*change.states])):
            stranger = next(iter(strangers))
            raise ConfigError(
                f"states= has {stranger!r}, which is not an agent of this run: leave it out in Messaging.fork"
            )
        seats = seats_of(messaging, parent, options, plans)
        shared_ref = sent("shared", shared, put)
        name = secrets.token_hex(8)
        given = RunInputs(
            model_ref, options_ref, shared_ref, plan_refs, parent, change, seats, ahead, name,
            has_graph=graph is not None,
        )  # fmt: skip
        # The reference is in a list, because Ray would replace a plain reference by its value in each call.
        self._given = [sent("the run", (messaging, given), put)]
        self._actors = actors = kept.take({name: places.key(name) for name in plan_refs})
        self._open = True
        self._spent = False
        self._when = ending or Ending(0)
        self._fulfilled = False  # whether the condition that ends the run is fulfilled
        self._looked = -1  # the last step after which the condition was checked
        self._parts: list[GroupResult] = []  # the groups' results at the last check of the condition
        # Calls of the actors' `run` whose steps are committed, and whose results may still be on their way.
        self._late: list[Any] = []
        with self._ending():
            inputs = inputs_of(agents, graph, shared, plans)
            most = None if ending is None else ending.most
            before = _note(messaging, model, most, options, plans, inputs, seats) or kept.inputs
            for line in changes_of(inputs, before) if self.step else ():
                sys.stderr.write(line)
            kept.inputs = inputs

            opened: dict[Any, str] = {}  # for each call that opens a mailbox, the group's name

            def start(name: str) -> Any:  # noqa: ANN401 - an ObjectRef
                if name not in actors:
                    actors[name] = start_actor(messaging.exp_id, RunActor, _KIND | places.of(name))
                call = actors[name].open.remote(messaging, plan_refs[name])
                opened[call] = name
                return call

            # All groups open their mailboxes before the first step begins.
            start_in_turn(
                (partial(start, name) for name in plan_refs),
                lambda call: _results([call]),
                lambda calls: places.warn([opened[call] for call in calls]),
            )
            if graph is not None and not moved and messaging.steps.wait_for == WaitFor.SENDERS:
                messaging.steps.declare(senders_of(plans))
        kept.run = self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Run(step {self.step}, {len(self._actors):,} groups{'' if self._open else ', closed'})"

    def advance(self, n: int = 1, *, progress: bool = False) -> int:
        """Run n more steps; return the number of the next step to run.

        After Ctrl-C no further step begins, and KeyboardInterrupt is raised when the running step has ended. The run
        can go on after that.

        Raises: the same errors as `messaging.run`, such as StepFailed, each of which also closes this run; Closed if
        this run was closed before; BudgetSpent if no step ran because the budget of `Calls(budget=)` is spent.
        """
        before = self.step
        self._go_on(self.step + step_count("advance", n, 1), progress=progress, with_states=False, stands=True)
        # Without these errors, a loop that advances up to a certain step would never end, or would ignore Ctrl-C.
        if self._spent and self.step == before:
            raise BudgetSpent(self._spent_text())
        if self._ended_early and not self._spent:
            raise KeyboardInterrupt
        return self.step

    def states(self) -> dict[AgentId, dict[str, Any]]:
        """Return the states of the agents, or with by="group" of the groups, after the last step."""
        return states_of(self._go_on(self.step, progress=False, with_states=True, stands=True))

    @property
    def series(self) -> Any:  # noqa: ANN401 - a pandas.DataFrame
        """Return a DataFrame of what `collect=` has recorded so far, as `Result.series` does.

        Raises: ConfigError if this run has no `collect=`; ImportError if pandas is not installed.
        """
        return series_frame(self._series())

    def result(self) -> Result:
        """Return the result of the run so far, as of the last step.

        Raises: the same errors as `advance`, such as Closed.
        """
        return self._gathered(self._go_on(self.step, progress=False, with_states=True, stands=True), self.step)

    def _go_on(
        self,
        until: int,
        *,
        progress: bool,
        with_states: bool | Literal["called"],
        stands: bool = False,
        opened: bool = False,
    ) -> list[GroupResult]:
        """Run the steps before `until`; return the groups' results.

        If the run is a fork, messages of its parent are checked and sent before some of the steps (see `Fork`).

        Args: with `with_states` the results have the agents' states, or, if it is "called", at least the states of the
        agents for which the last step called the model. With `stands`, the groups wait for a next call of this method,
        which then begins sooner. `opened` says that the caller has opened the first step.
        """
        if self._messaging._fork is not None:
            for step, act in self._messaging._fork.stops(self.step, until):
                parts = self._drive(step, progress=progress, with_states=with_states, stands=False)
                if self._ended_early or self._fulfilled:
                    return parts
                act(self._messaging)
        return self._drive(until, progress=progress, with_states=with_states, stands=stands, opened=opened)

    def _drive(
        self, until: int, *, progress: bool, with_states: bool | Literal["called"], stands: bool, opened: bool = False
    ) -> list[GroupResult]:
        if not self._open:
            raise Closed(f"this run was closed before step {self.step}: call messaging.start_run to go on from there")
        turn, actors = next(self._kept.turns), [*self._actors.values()]
        end, ending = EarlyEnd(self._messaging.interceptor, actors, turn), self._when
        with self._ending() as refs:
            refs.extend(self._late)  # after an error, `_ending` reads these calls' results, too, and drops them

            def go_on(last: int, *, early: bool = False, **asked: Any) -> Opening | None:  # noqa: ANN401 - the arguments of `RunActor.run`
                opening = None
                if asked["stands"] and last > self.step and not opened:
                    # With `early`, `opening` also tells `_watch` when all groups have committed the steps.
                    until = last if early else self.step
                    opening = Opening(self._messaging.interceptor, self.step, until, [*self._actors])
                refs[:] = [
                    *self._late,
                    *(actor.run.remote(name, self._given, last, turn, **asked) for name, actor in self._actors.items()),
                ]
                return opening

            def watch(opening: Opening | None, *, early: bool = False) -> list[GroupResult]:
                parts = _watch(refs, end, bar, self._lost, opening, early=early)
                self._late = [] if parts else [*refs]
                return parts[-len(actors) :]

            self._late = _unfinished(self._late)
            looks, calls = ending.condition is not None, Counter[str]()
            with (
                end,
                RunProgress(self._messaging.steps, until, more=self._calls_text) if progress else nullcontext() as bar,
            ):
                while looks and not end.asked and not self._is_fulfilled() and self.step < until:
                    last = min(until, ending.before(self.step))
                    self._parts = watch(go_on(last, with_states=False, stands=True, with_collected=True))
                    self.step = min(part.until for part in self._parts)
                    calls += sum((part.calls for part in self._parts), Counter())
                    if any(part.spent for part in self._parts):
                        break
                last = self.step if looks else until
                # With `early`, `watch` returns once the interceptor says that all groups have committed the step. For
                # several steps, waiting for the groups' answers costs less.
                early = not with_states and last == self.step + 1
                parts = watch(go_on(last, early=early, with_states=with_states, stands=stands), early=early)
                self.step = min((part.until for part in parts), default=last)
                # Without rules that judge whole steps, the last group that commits a step learns that all groups have
                # committed it. Then the server need not be asked, which saves a round trip. With such rules, no group
                # learns this, because these rules judge the step after all groups have committed it.
                if parts and max(part.sealed for part in parts) < self.step - 1:
                    self._messaging.steps.wait(self.step)
        self._spent = any(part.spent for part in (*parts, *(self._parts if looks else ())))
        self._ended_early = end.asked or self._spent
        if looks:
            parts = [parts[0]._replace(calls=parts[0].calls + calls, spent=self._spent), *parts[1:]]
        if self._spent:
            sys.stderr.write(f"{self._spent_text()}\n")
        return parts

    def _is_fulfilled(self) -> bool:
        """Return whether the condition that ends the run is fulfilled after the last step.

        The condition is checked once for each step in which values were collected.
        """
        last = self.step - 1
        if last <= self._looked or not self._when.looks_at(last):
            return self._fulfilled
        self._looked = last
        parts = [part.collected for part in self._parts]
        if parts and None not in parts:
            values = values_after(last, [part for part in parts if part is not None])
        else:  # an earlier call of `run`, or another process, ran the step
            from ray_messaging.eventlog.series_tables import values_in  # noqa: PLC0415 - pyarrow takes a second

            values = {"step": last} | values_in(self._series(), last)
        self._fulfilled = self._when.is_fulfilled(last, values)
        return self._fulfilled

    def _lost(self, error: BaseException | None) -> Closed | None:
        experiment = self._messaging._connection.experiment
        return lost_machine(experiment.exp_id, experiment.redis, error)

    def _calls_text(self) -> str:
        """Return a text with the numbers of calls through `me.remember` for the progress; "" if there are none.

        Groups that do not answer within _COUNTED_S seconds are left out.
        """
        asked = [actor.calls_now.remote() for actor in self._actors.values()]
        counts = Counter[str]()
        for answer in wait(asked, num_returns=len(asked), timeout=_COUNTED_S)[0]:
            with suppress(RayError):  # raised if a group's process has died; Ray then starts it again
                found, waiting = get(answer)
                counts.update(found, waiting=waiting)
        return calls_text(counts, self._currency)

    @property
    def _currency(self) -> str:
        return "" if self._messaging.calls is None else self._messaging.calls.currency

    def _spent_text(self) -> str:
        budget = None if self._messaging.calls is None else self._messaging.calls.budget
        of = budget if isinstance(budget, str) else f"{budget:,} calls"
        return (
            f"the run ends before step {self.step}, because the budget of {of} is spent. A later start with "
            "on_existing='resume' goes on from there; calls that were answered are not made again"
        )

    def close(self) -> None:
        """End this run; a second call does nothing.

        Committed steps are kept, and another run can go on after the last one.
        """
        if self._open:
            self._detach()
            attempt(self._late)  # wait for these calls before the actors leave their mailboxes
            self._kept.keep(self._actors)

    def _detach(self) -> None:
        self._open = False
        self._kept.run = None

    @contextmanager
    def _ending(self) -> Iterator[list[Any]]:
        """Return a context in which an error closes this run and ends its actors.

        After Ctrl-C the actors are killed at once. After another error, the calls of the actors get some time to end.
        The context yields a list, to which the caller adds the ObjectRefs of these calls.
        """
        refs: list[Any] = []
        try:
            yield refs
        except KeyboardInterrupt:
            self._detach()
            _end(self._actors)  # kill the actors at once
            raise
        except BaseException as error:
            self._detach()
            leave([*self._actors.values()], refs, timeout_s=CALLS_END_S + _CLOSE_S)
            if isinstance(error, StepFailed):  # the traceback within this library would not help a user
                raise error.with_traceback(None) from error.__cause__
            raise

    def _gathered(self, parts: Sequence[GroupResult], until: int) -> Result:
        """Return the result of all steps so far, for a run that was to end before step `until`."""
        steps = self._messaging.steps
        by_rules = steps.fates_by_rules(self.step - 1) if self.step else {}
        return gathered(parts, until, by_rules, _digests(steps, self.step), self._series(), self._currency)

    def _series(self) -> Any:  # noqa: ANN401 - a pyarrow.Table
        if not self._collects:
            return None
        if self._messaging.log_dir is not None:
            return self._messaging.log.series()
        from ray_messaging.eventlog.series_tables import series_table  # noqa: PLC0415 - pyarrow takes a second

        return series_table(self._messaging.steps.collected(self.step - 1))


def parent_of(messaging: "Messaging") -> str | None:
    """Return the folder of the parent of a fork, even if the fork was resumed; None if the run is not a fork."""
    record = None if messaging.log_dir is None else messaging.log.run
    return None if record is None or record["parent"] is None else str(record["parent"]["folder"])


def seats_of(
    messaging: "Messaging", parent: str | None, options: RunOptions, plans: Sequence[GroupPlan]
) -> frozenset[AgentId]:
    """Return the agents for which people act: those with a seat in this experiment, and those with one in its parent.

    A run has a parent if it is a fork. `parent` is the folder of the parent's log (None: there is no parent).

    Raises: ConfigError if such an agent is not in the run, or the model is called for whole groups.
    """
    tokens = result(messaging.interceptor.seat_tokens.remote(), actor_name="the interceptor")
    seats = frozenset(tokens)
    if parent is not None:
        from ray_messaging.eventlog.folder import Folder  # noqa: PLC0415 - pyarrow takes a second
        from ray_messaging.eventlog.folder_records import read_run  # noqa: PLC0415 - as above

        record = read_run(Folder(parent))
        seats |= frozenset(((None if record is None else record.model) or {}).get("seats", ()))
    if seats and options.by == "group":
        raise ConfigError(
            f'agent {min(seats, key=str)!r} has a seat, but by="group" calls the model for whole groups: write the '
            "model for one agent, def person(me, inbox)"
        )
    if strangers := seats.difference(*(plan.agents for plan in plans)):
        raise ConfigError(
            f"agent {min(strangers, key=str)!r} has a seat, but is not an agent of this run: add it to agents="
        )
    return seats


def _note(
    messaging: "Messaging",
    model: object,
    until: int | None,
    options: RunOptions,
    plans: Sequence[GroupPlan],
    inputs: Mapping[str, str | None],
    seats: frozenset[AgentId],
) -> Mapping[str, Any] | None:
    """Record this call of `run` in the log's folder, if there is one; write a line to stderr if the model has changed.

    Returns: the record of the call before this one, if an earlier start of the experiment made it; otherwise None.
    """
    if messaging.log_dir is None:
        return None
    facts = facts_of(model, until, options, inputs) | ({"seats": sorted(seats, key=str)} if seats else {})
    noted = messaging.log_actor.note_model.remote(facts, {plan.name: len(plan.agents) for plan in plans})
    before: Mapping[str, Any] | None = result(noted, actor_name=f"the event log of experiment {messaging.exp_id!r}")
    if before is not None and (change := change_of(facts, before)) is not None:
        sys.stderr.write(change)
    return before


def _digests(steps: ExperimentSteps, until: int) -> dict[int, str]:
    """Return, by step and in hex, the digests of the last steps that the server still has.

    Without `Steps(digest=True)` return {}.
    """
    found: dict[int, str] = {}
    for step in range(max(0, until - StepSettings().horizon), until):
        try:
            found[step] = steps.digest(step).hex()
        except UnknownName:  # the server no longer has the digest of this step
            continue
        except ConfigError:
            break
    return found


def _results(refs: Sequence[Any]) -> list[Any]:
    """Wait for calls of the groups' actors, and return their results; raise the first error."""
    try:
        return [result(ref, actor_name="a group of the run") for ref in refs]
    except StepFailed as error:
        raise error from cause_of(error)


def _unfinished(refs: Sequence[Any]) -> list[Any]:
    """Return the ObjectRefs of calls that are still under way; raise the first error of the other calls."""
    done, rest = wait(refs, num_returns=len(refs), timeout=0) if refs else ([], [])
    _results(done)
    return rest


def _watch(
    refs: Sequence[Any],
    end: EarlyEnd,
    bar: RunProgress | None,
    lost: Callable[[BaseException | None], Closed | None],
    opening: Opening | None,
    *,
    early: bool,
) -> list[GroupResult]:
    """Wait for calls of the groups' actors, and show the progress on `bar`; raise the first error at once.

    Returns: the results of the calls. With `early`, do not wait for the calls once `opening` shows that all groups have
    committed their steps; return [] then.

    Args: `refs` has the calls. `end.tell` is called if Ctrl-C or a spent budget ends the run early. `lost` is called
    with the error that a group has raised, or with None. It returns an error if a lost machine ends the run, and
    otherwise None.
    """
    waiting, looks, found = list(refs), itertools.count(1), dict[Any, GroupResult]()
    while waiting:
        call = None if opening is None else opening.call
        done, waiting = wait([*waiting, *([] if call is None else [call])], timeout=_LOOK_S)
        if opening is not None and call is not None:
            if call in done and opening.has_ended() and early:
                return []
            done, waiting = ([ref for ref in part if ref != call] for part in (done, waiting))
        if next(looks) % _NODES_EVERY == 0 and (gone := lost(None)) is not None:
            raise gone  # at once, because groups may try for minutes to reach the lost machine's server
        try:
            found.update(zip(done, _results(done), strict=True))
        except ConnectionFailed as error:
            if (gone := lost(error)) is not None:
                raise gone from error
            raise
        if waiting and (end.asked or any(part.spent for part in found.values())):
            end.tell()
        if waiting and bar is not None:
            bar.show()
    return [found[ref] for ref in refs]


def check_same(
    plans: Sequence[GroupPlan], before: Mapping[str, AgentSet], *, begun: bool, moved: Collection[str] = ()
) -> None:
    """Raise ConfigError, which names the difference, unless a run has the same groups and agents as `before`.

    Args: `plans` has the groups and agents of the run. `before` has the groups that already take part in the steps, and
    their agents. If no step has begun (`begun` is False), `plans` may have further groups. The agents of groups in
    `moved` may differ from the plans, because agents have moved between these groups.
    """
    now = {plan.name: plan.agents for plan in plans}
    if (begun and before.keys() != now.keys()) or before.keys() - now.keys():
        raise ConfigError(
            f"groups differ: this experiment's steps began with {_names(before)}, but this run has {_names(now)}. A "
            f"run must have all groups that take part in the steps, and no others once a step has begun: {_REMEDY}"
        )
    there, asked = (reduce(or_, (all_of.get(name, NO_AGENTS) for name in moved), NO_AGENTS) for all_of in (before, now))
    differ = {name: (agents - now[name], now[name] - agents) for name, agents in before.items()}
    differ = {
        name: (left - asked, come - there) if name in moved else (left, come) for name, (left, come) in differ.items()
    }
    gone = sum(len(left) for left, _ in differ.values())
    new = sum(len(come) for _, come in differ.values())
    if gone or new:
        name, (left, come) = next((name, both) for name, both in differ.items() if len(both[0]) or len(both[1]))
        first, how = (next(iter(left)), "which has left") if len(left) else (next(iter(come)), "which is new in")
        raise ConfigError(
            f"agents differ from those that this experiment's steps began with: {gone:,} agents are no longer in "
            f"their group, and {new:,} agents are new in a group. The first is agent {first!r}, {how} group {name!r}: "
            f"{_REMEDY}"
        )


def _names(groups: Mapping[str, object]) -> str:
    names = sorted(groups)
    return f"{len(names)} groups ({', '.join(names[:8])}{', ...' if len(names) > 8 else ''})"
