"""`ray_messaging.run`, which does the same as `Messaging.run`, but in one process, on a server of its own."""

import asyncio
import pickle
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from copy import deepcopy
from functools import partial, wraps
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, ParamSpec, TypeVar, Unpack, overload

from ray_messaging.cluster.handles.own_loop import run_in_own_loop
from ray_messaging.cluster.run.agent import AgentLoop
from ray_messaging.cluster.run.beginning import (
    Beginning,
    beginning_of,
    decode_beginning,
    go_on_from,
    told_rules,
)
from ray_messaging.cluster.run.ending import Ending, ending_of, values_after
from ray_messaging.cluster.run.log_plan import EXPERIMENT, LogPlan, log_plan
from ray_messaging.cluster.run.model_source import change_of, changes_of, facts_of, inputs_of
from ray_messaging.cluster.run.result import Result, cause_of, gathered, say_cost
from ray_messaging.cluster.run.run_actor import GroupResult, RunActor, RunInputs, store_of
from ray_messaging.cluster.run.run_plan import GroupPlan, RunOptions, check_run, plans_for
from ray_messaging.cluster.run.step_calls import NO_LIMITS
from ray_messaging.cluster.spec import SUBTOPICS
from ray_messaging.cluster.unpicklable import dumped, sent
from ray_messaging.common.process_tuning import relax_collector
from ray_messaging.common.progress_line import ProgressLine
from ray_messaging.common.task_health import end
from ray_messaging.common.texts import steps_done
from ray_messaging.config import Calls, Steps, check_calls
from ray_messaging.default_limits_and_leases import STEP_NEWS_TIMEOUT_S
from ray_messaging.embedded.local_server import LocalServer
from ray_messaging.errors import AlreadyExists, ConfigError, LogError, StepFailed
from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.interception.interceptor.rule_set import RuleSet
from ray_messaging.interception.interceptor.step_judge import RuleReviewer
from ray_messaging.interception.rules.rule import Rule, forces_all
from ray_messaging.messager import GroupMessager
from ray_messaging.messager_engine import Engine
from ray_messaging.model.agent_sets import NO_AGENTS
from ray_messaging.model.series_columns import STEP
from ray_messaging.steps.call_limits import CallGate, CallLimits
from ray_messaging.steps.digests import LaterDigests, step_digest
from ray_messaging.steps.step_account import StepCounts, digest_of
from ray_messaging.steps.step_supervisor import StepSupervisor
from ray_messaging.transports.local_steps import LocalSteps
from ray_messaging.transports.step_values import CTRL_C, STANDSTILL, SUPERVISOR, StepSettings

if TYPE_CHECKING:
    from ray_messaging.cluster.actors.log_host import LogHost
    from ray_messaging.cluster.run.arguments import AgentArguments, AgentModel, GroupArguments, GroupModel, Until
    from ray_messaging.transports.steps import RedisSteps

P = ParamSpec("P")
T = TypeVar("T")

_TURN = 1  # the argument `turn` of all calls of `RunActor.run` and `RunActor.end_after` in a local run
MOST_AHEAD = 64  # the highest value of the argument `ahead`
_LOOK_S = 1.0  # seconds between two checks of the progress


@overload
def run(
    model: "AgentModel | Mapping[str, AgentModel]",
    *,
    until: "Until",
    max_steps: int | None = None,
    by: Literal["agent"] = "agent",
    rules: Sequence[Rule] = (),
    seed: int = 0,
    calls: Calls | None = None,
    log_dir: str | Path | None = None,
    checkpoint: int | None = None,
    on_existing: Literal["error", "resume", "reset"] = "error",
    wait_for: Literal["all", "neighbours"] = "all",
    ahead: int = 16,
    progress: bool = True,
    **given: "Unpack[AgentArguments]",
) -> Result: ...
@overload
def run(
    model: "GroupModel | Mapping[str, GroupModel]",
    *,
    until: "Until",
    max_steps: int | None = None,
    by: Literal["group"],
    rules: Sequence[Rule] = (),
    seed: int = 0,
    calls: Calls | None = None,
    log_dir: str | Path | None = None,
    checkpoint: int | None = None,
    on_existing: Literal["error", "resume", "reset"] = "error",
    wait_for: Literal["all", "neighbours"] = "all",
    ahead: int = 16,
    progress: bool = True,
    **given: "Unpack[GroupArguments]",
) -> Result: ...
def run(
    model: Callable[..., object] | Mapping[str, Callable[..., object]],
    *,
    agents: object,
    until: "Until",
    max_steps: int | None = None,
    groups: object = None,
    start: Callable[..., dict[str, Any]] | Mapping[str, Callable[..., dict[str, Any]]] | None = None,
    graph: object = None,
    shared: object = None,
    by: str = "agent",
    concurrency: int = 100,
    timeout: float | None = None,
    collect: object = None,
    collect_every: int = 1,
    only_active: bool = False,
    progress: bool = True,
    rules: Sequence[Rule] = (),
    seed: int = 0,
    calls: Calls | None = None,
    log_dir: str | Path | None = None,
    checkpoint: int | None = None,
    on_existing: str = "error",
    wait_for: Literal["all", "neighbours"] = "all",
    ahead: int = 16,
) -> Result:
    """Run a model in this process, without Ray and without an experiment, and return the agents' states.

    Use this function if one process is enough: for a small model, for a test, or for one of many runs at the same time.
    Use `Messaging.run` if a run needs several processes or machines. With the same seed, both give the same messages in
    the same order, with the same decisions of rules, and the same states and digests, whatever `groups` is. If the
    process of a run with a `log_dir` ends, the run can be resumed.

    Each group has a copy of `shared`, and the run has copies of the rules. The model is not copied: its globals are the
    same in all groups. If a model that is a plain function, not async, never returns, the process cannot end, even
    after a `timeout`. Ctrl-C raises KeyboardInterrupt.

    Args:
        model: As for `Messaging.run`.
        agents: As for `Messaging.run`.
        until: As for `Messaging.run`.
        max_steps: As for `Messaging.run`.
        groups: As for `Messaging.run`. The default is one group, because more groups do not use more processors here.
        start: As for `Messaging.run`.
        graph: As for `Messaging.run`, except that it cannot be an audience, because only an experiment has audiences.
        shared: As for `Messaging.run`.
        by: As for `Messaging.run`.
        concurrency: As for `Messaging.run`.
        timeout: As for `Messaging.run`.
        collect: As for `Messaging.run`.
        collect_every: As for `Messaging.run`.
        only_active: As for `Messaging.run`.
        progress: Show the progress: a bar on a terminal, otherwise a line on stderr every 10 s.
        rules: The rules, as for `Messaging.start`.
        seed: The seed of all random numbers, as for `Steps`.
        calls: The limits of agents' calls by `me.remember`, such as calls of a language model, and the folder in which
            several runs share the answers of these calls.
        log_dir: The folder of the run's event log, as for `Messaging.start`; None: there is no log. `EventLog.open`
            reads it. The data that "resume" needs are kept in `<log_dir>-server`. If `log_dir` is a URI, such as
            "s3://...", they are not kept; `Messaging.fork` can go on with such a run from a checkpoint.
        checkpoint: With `log_dir`, a number n: after every n-th step and after the last one, write a checkpoint, from
            which `Messaging.fork` can start. None: no checkpoints.
        on_existing: If `log_dir` has a log already: "error" raises AlreadyExists, "resume" goes on with that run after
            its last step, and "reset" deletes that log.
        wait_for: "all": a step begins once all agents have ended the step before. "neighbours": slow calls begin
            earlier, and the result of the run is the same. An agent may then run a step twice. It first runs the step
            early, on a copy of its state, once this agent, and all agents with an edge to it in `graph`, have ended the
            step before. Only the results of the calls that the agent makes early through `me.remember` are kept. Later
            the agent runs the step itself as always, and uses these results.
        ahead: With wait_for="neighbours", how many steps, at most, an agent may run ahead of the current step.

    Raises: StepFailed if the model raises an exception; ConfigError for invalid arguments, RuleError for invalid rules;
    StepTooLarge if a group gets more messages in a step than it can read; AlreadyExists if the folder has a log;
    LogError if the folder cannot be used.
    """
    options = RunOptions(start, by, concurrency, timeout, collect, collect_every, only_active)
    if wait_for not in {"all", "neighbours"}:
        raise ConfigError(f"wait_for={wait_for!r} is unknown: write 'all' or 'neighbours'")
    if isinstance(ahead, bool) or not isinstance(ahead, int) or not 1 <= ahead <= MOST_AHEAD:
        raise ConfigError(f"ahead={ahead!r} must be a number of steps, from 1 to {MOST_AHEAD}")
    kept = log_plan(log_dir, on_existing, checkpoint)
    part = run_part(
        model,
        agents,
        until,
        max_steps,
        groups,
        graph,
        shared,
        options,
        rules,
        seed,
        calls,
        progress=progress,
        log=kept,
        ahead=ahead if wait_for == "neighbours" else 0,
    )
    return say_cost(part.result) if progress else part.result


class _LogOrder(NamedTuple):
    """What is needed to begin a run's log: the log's plan, the facts to record about the run, and the run's groups."""

    plan: LogPlan
    facts: dict[str, Any]
    groups: Sequence[GroupPlan]


class Part(NamedTuple):
    """The result of a run. `end` is an encoded `Beginning`, from which other runs can go on (None: it was not kept)."""

    result: Result
    end: bytes | None = None


# A `Pace` is a function that decides when the steps of a run are run. Its argument is a function that runs all steps
# before a given step. A `Pace` returns the results of the groups, and the step before which the run was planned to end.
Pace = Callable[[Callable[..., Awaitable[Sequence[GroupResult]]]], Awaitable[tuple[Sequence[GroupResult], int]]]


def planned_part(
    model: Callable[..., object] | Mapping[str, Callable[..., object]],
    agents: object,
    until: object,
    max_steps: object,
    groups: object,
    graph: object,
    shared: object,
    options: RunOptions,
    rules: Sequence[Rule],
    seed: int,
    calls: Calls | None,
    *,
    progress: bool,
    beginning: bytes | None = None,
    keep: bool = False,
    server: LocalServer | None = None,
    log: LogPlan | None = None,
    ahead: int = 0,
    pace: Pace | None = None,
) -> Callable[[], Coroutine[Any, Any, Part]]:
    """Check the arguments of a run; return an async function that runs the model as `run` does, and returns a `Part`.

    Args: `beginning` is an encoded `Beginning`, the state of an earlier run, from which this run goes on (None: it
    begins with step 0). With `keep`, the `Part` has an `end`, from which other runs can go on. No other run may use
    `server` at the same time, because the run deletes what an earlier run left there (None: the run starts a server).
    `log` says where the run keeps a log (None: nowhere); a run with a `beginning` cannot have a log. `ahead` is how
    many steps, at most, agents may run ahead of the current step. `pace` decides when the steps run (None: one after
    the other, without a pause).
    Raises: the same errors as `run`; ConfigError if the groups are not those of the `beginning`.
    """
    check_run(model, options)
    ending = ending_of(until, max_steps, options)
    check_calls(calls)
    plans = plans_for(options, agents, 1 if groups is None else groups, graph, 1, model, near=ahead > 0)
    copies = [_copy("shared", shared) for _ in plans]
    relax_collector()
    RuleSet(rules)  # raises RuleError
    made = [_copy("the rule", rule) for rule in rules]
    former = None if beginning is None else decode_beginning(beginning)
    if former is not None and (names := [plan.name for plan in plans]) != former.groups:
        raise ConfigError(
            f"the groups are {names}, but before step {former.step} they were {former.groups}: use the same groups= "
            "in all steps"
        )
    ordered = None
    if log is not None:
        facts = facts_of(model, ending.most, options, inputs_of(agents, graph, shared, plans))
        ordered = _LogOrder(log, facts, plans)
    return lambda: _run(
        plans, model, ending, options, copies, made, seed, calls, former, keep, server, ordered, pace,
        progress=progress, ahead=ahead,
    )  # fmt: skip


def _carried_out(planned: Callable[P, Callable[[], Coroutine[Any, Any, Part]]]) -> Callable[P, Part]:
    @wraps(planned)
    def run_part(*args: P.args, **given: P.kwargs) -> Part:
        try:
            return run_in_own_loop(planned(*args, **given))
        except StepFailed as error:
            raise error.with_traceback(None) from cause_of(error)  # without this package's frames in the traceback
        except (AlreadyExists, ConfigError, LogError) as error:  # the caller's arguments are wrong
            raise error.with_traceback(None) from error.__cause__

    return run_part


run_part = _carried_out(planned_part)


def _copy(name: str, value: T) -> T:
    """Return a copy of a user's object; raise ConfigError if it can neither be copied nor sent to a process."""
    try:
        return deepcopy(value)
    except Exception:  # noqa: BLE001 - the object's own code may raise any error
        # cloudpickle can copy objects that deepcopy cannot copy, such as modules.
        found: T = pickle.loads(sent(name, value, dumped))  # noqa: S301 - made here
        return found


async def _run(
    plans: Sequence[GroupPlan],
    model: object,
    ending: Ending,
    options: RunOptions,
    shared: Sequence[object],
    rules: Sequence[Rule],
    seed: int,
    limits: Calls | None,
    former: Beginning | None,
    keep: bool,  # noqa: FBT001 - as `run_part` has it
    server: LocalServer | None,
    ordered: "_LogOrder | None",
    pace: Pace | None,
    *,
    progress: bool,
    ahead: int,
) -> Part:
    if limits is not None:
        store_of(limits)  # raises an error if the store cannot be used
    settings_of_calls = NO_LIMITS if limits is None else limits
    limit_calls = partial(_limit_calls, settings_of_calls, CallLimits(settings_of_calls), ordered is not None)
    checkpoint = None if ordered is None else ordered.plan.checkpoint
    steps = Steps(seed=seed, groups=len(plans), digest=True, checkpoint=checkpoint)
    async with AsyncExitStack() as stack:
        server = _own_server(stack, ordered, steps) if server is None else server.begin_anew(steps)
        interceptor, log, first, moved = await _judge_and_log(stack, ordered, server, steps, rules)
        first = first if former is None else former.step
        told = told_rules(rules) if keep or former is not None else {}
        if former is not None:
            await go_on_from(former, server, EXPERIMENT, interceptor, told)
        settings = StepSettings.of(steps)
        supervised = forces_all(rules) or (former is not None and former.supervised)
        reviewer = RuleReviewer(interceptor, settings.horizon) if supervised else None
        handle = interceptor if rules or log is not None else None
        messagers = [
            await stack.enter_async_context(GroupMessager(server, EXPERIMENT, handle, name=plan.name)) for plan in plans
        ]
        transport = messagers[0].engine.transport
        store = transport.steps
        supervising: list[asyncio.Task[None]] = []
        if reviewer is not None:
            await store.join(SUPERVISOR)
            epoch = interceptor.epoch
            supervisor = StepSupervisor(transport, store, settings, reviewer, epoch, messagers[0].engine.audiences)
            supervising.append(asyncio.create_task(supervisor.run(), name="ray_messaging step rules"))
            stack.push_async_callback(end, supervising[0])
        plan_of = {plan.name: _known(plan) for plan in plans}
        for plan, messager in zip(plans, messagers, strict=True):
            await messager.host_agents(NO_AGENTS if plan.name in moved else plan.agents, SUBTOPICS)
        # Nobody else reads the steps of a run's only group, so they can be in memory instead of on the server.
        alone = len(plans) == 1 and log is None and reviewer is None and not keep
        store = await _in_memory(messagers[0].engine, settings, goes_on=former is not None) if alone else store
        # If a budget of calls ends the run in a step, or `pace` repeats a step, the states before that step are needed.
        stores_states = not alone or limits is not None or pace is not None
        shown = set[str]()
        # Digests are computed only when the user reads them, unless a StepRule may change messages of a step, or a log
        # reads the digests from the server.
        later = [] if reviewer is not None or log is not None else _later_digests(len(plans), ending, limits, settings)
        calls: list[asyncio.Task[GroupResult]] = []
        actors: list[RunActor] = []
        inputs: list[RunInputs] = []
        for messager, copied, own in zip_longest(messagers, shared, later):
            actors.append(RunActor(messager, shown, limit_calls, own))
            runs_ahead = 0 if supervised else ahead
            inputs.append(
                RunInputs(
                    _known(model),
                    _known(options),
                    _known(copied),
                    plan_of,
                    ahead=runs_ahead,
                    stores_states=stores_states,
                )
            )
        _end_with(stack, actors, calls, supervising)

        async def go_on(last: int, **asked: bool) -> Sequence[GroupResult]:
            groups = zip(actors, plans, inputs, strict=True)
            running = [
                actor.run(plan.name, [_known((None, given))], last, _TURN, **asked) for actor, plan, given in groups
            ]
            calls[:] = [asyncio.create_task(_with_others(each, actors, store)) for each in running]
            await _all_done(calls, supervising, lambda: _show(store, line, ending.most))
            return [call.result() for call in calls]

        with ProgressLine(ending.most, shown=progress) as line:
            series, resumed = partial(_series, store, first - 1, log), log is not None and first > 0
            whole = partial(_run_until, ending, first, series=series, resumed=resumed, is_beginning=keep)
            parts, until = await (whole(go_on) if pace is None else pace(_retriable(go_on, actors, calls)))
        ended = min(part.until for part in parts)
        await _all_done([asyncio.create_task(_sealed(store, ended - 1))], supervising)
        last = range(max(0 if former is None else first, ended - settings.horizon), ended)
        digests: dict[int, str] | Callable[[], dict[int, str]] = partial(_digests, later, last)
        by_rules: Mapping[str, int] = {}
        if reviewer is not None or log is not None:
            digests, by_rules = await _judged(store, last)
        if former is not None or keep:
            found = digests() if callable(digests) else digests
            earlier = {} if former is None else former.digests
            digests = {step: each for step, each in earlier.items() if step >= ended - settings.horizon} | found
        collected = None if options.collect is None else await _series(store, ended - 1, log)
        currency = "" if limits is None else limits.currency
        result = gathered(parts, until, by_rules, digests, collected, currency)
        if not keep:
            return Part(result)
        names = [plan.name for plan in plans]
        end_of_part = await beginning_of(
            transport, interceptor, told, names, result.digests, ended, supervised=supervised
        )
        return Part(result, end_of_part)


def _own_server(stack: AsyncExitStack, ordered: _LogOrder | None, steps: Steps) -> LocalServer:
    """Start a server that ends when `stack` is closed. Its data are kept for a later run if the log's plan says so."""
    if ordered is None or not ordered.plan.keeps_server:
        return stack.enter_context(LocalServer(steps))
    from ray_messaging.cluster.run.logged_run import kept_server  # noqa: PLC0415 - brings pyarrow, 80 MB

    return stack.enter_context(kept_server(ordered.plan, steps))


async def _in_memory(engine: Engine, settings: StepSettings, *, goes_on: bool) -> LocalSteps:
    """Keep the steps of a run's only group in memory from now on; return the object that keeps them.

    Args: with `goes_on`, the group has earlier steps on the server, which are read from there first.
    """
    store = LocalSteps(engine.transport.steps, engine.name, settings, engine.directory)
    if goes_on:
        await store.adopt()
    engine.transport.steps = store
    return store


async def _judge_and_log(
    stack: AsyncExitStack, ordered: _LogOrder | None, server: LocalServer, steps: Steps, rules: Sequence[Rule]
) -> "tuple[Interceptor, LogHost | None, int, Collection[str]]":
    """Open the interceptor and the log of a run. Both are closed when `stack` is closed.

    If a run is resumed with another model or other inputs than before, lines on stderr say so.

    Returns: the interceptor, which applies the rules; the log, or None if `ordered` is None, and the run has no log;
    the first step to run; and the names of the groups that agents have left or joined.
    """
    if ordered is None:
        interceptor = Interceptor(EXPERIMENT, rules)
        stack.push_async_callback(interceptor.close)
        return interceptor, None, 0, ()
    from ray_messaging.cluster.run.logged_run import logged_run  # noqa: PLC0415 - brings pyarrow, 80 MB

    found = await stack.enter_async_context(logged_run(ordered.plan, server, EXPERIMENT, steps, rules, ordered.groups))
    before = await found.log.note_model(ordered.facts, {plan.name: len(plan.agents) for plan in ordered.groups})
    if before is not None:
        change = change_of(ordered.facts, before)
        for line in [*([] if change is None else [change]), *(changes_of(ordered.facts, before) if found.step else ())]:
            sys.stderr.write(line)
    return found.interceptor, found.log, found.step, found.moved


def _retriable(
    go_on: Callable[..., Awaitable[Sequence[GroupResult]]],
    actors: Sequence[RunActor],
    calls: Sequence[asyncio.Task[Any]],
) -> Callable[..., Awaitable[Sequence[GroupResult]]]:
    """Return a function that does the same as `go_on`, and that may be called again after it has raised an error.

    Before the error is raised, the function ends the step of all groups, and cancels the `calls` of their actors.
    """

    async def again(last: int, **asked: bool) -> Sequence[GroupResult]:
        try:
            return await go_on(last, **asked)
        except BaseException:
            for actor in actors:
                await actor.end_step()
            for call in calls:  # the other groups may wait for the group that has failed
                await end(call)
            raise

    return again


async def _run_until(
    ending: Ending,
    step: int,
    go_on: Callable[..., Awaitable[Sequence[GroupResult]]],
    *,
    series: Callable[[], Awaitable[Any]],
    resumed: bool,
    is_beginning: bool,
) -> tuple[Sequence[GroupResult], int]:
    """Run the groups from a step on until `ending`.

    Return the groups' results, and the step before which `ending` ends the run. If the budget of calls through
    `me.remember` is spent, the run stops earlier.

    Args: `step` is the first step to run. `go_on` runs all steps before a given step. `series` returns what was
    collected before `step`. With `resumed`, an earlier process has run the steps before `step`. With `is_beginning`,
    other runs are to go on from step `ending.most`.
    Raises: ConfigError with `is_beginning`, if the condition of `ending` ends the run.
    """
    if ending.condition is None:
        return await go_on(ending.most, with_states=True), ending.most
    calls, spent, until = Counter[str](), False, ending.most
    if resumed and ending.looks_at(step - 1):
        from ray_messaging.eventlog.series_tables import values_in  # noqa: PLC0415 - brings pyarrow, 80 MB

        if ending.is_fulfilled(step - 1, {STEP: step - 1} | values_in(await series(), step - 1)):
            return await go_on(step, with_states=True), step
    while step < until:
        parts = await go_on(ending.before(step), with_states=False, stands=True, with_collected=True)
        calls += sum((part.calls for part in parts), Counter[str]())
        step = min(part.until for part in parts)
        if spent := any(part.spent for part in parts):
            break
        if ending.looks_at(step - 1):
            values = values_after(step - 1, [part.collected for part in parts if part.collected is not None])
            if ending.is_fulfilled(step - 1, values):
                until = step
                if is_beginning:
                    raise ConfigError(
                        f"until= ends the run after step {step - 1}, but the parameters vary only from step "
                        f"{ending.most} on: lower vary_from=, or let until= end the run later"
                    )
    first, *others = await go_on(step, with_states=True)
    return [first._replace(calls=first.calls + calls, spent=spent), *others], until


def _later_digests(groups: int, ending: Ending, limits: Calls | None, settings: StepSettings) -> list[LaterDigests]:
    # Only the last steps need digests. If a budget of calls, or a condition, may end the run early, any step may be one
    # of the last.
    first = 0 if limits is not None or ending.condition is not None else max(0, ending.most - settings.horizon)
    # One step more than needed is kept: when the budget is spent, a group may have committed one step more than others.
    return [LaterDigests(first, settings.horizon + 1) for _ in range(groups)]


async def _judged(store: "RedisSteps", last: range) -> tuple[dict[int, str], Mapping[str, int]]:
    """Return the digests of the steps in `last`, by step, and how rules for whole steps changed the fates of messages.

    The second dict has, for each fate such as "delivered", how many more messages (or fewer, if negative) have this
    fate because of such rules, over all steps up to the last one.
    """
    found = {
        step: {name: StepCounts.decode(left.counts) for name, left in (await store.closed_step(step)).items()}
        for step in last
    }
    by_rules = found[last[-1]].get(SUPERVISOR) if last else None
    digests = {step: digest_of(each).hex() for step, each in found.items()}
    return digests, {} if by_rules is None else by_rules.total


async def _series(store: "RedisSteps", last: int, log: "LogHost | None") -> Any:  # noqa: ANN401 - a pyarrow.Table
    if log is not None:
        return await log.ask("series", {})
    from ray_messaging.eventlog.series_tables import series_table  # noqa: PLC0415 - brings pyarrow, 80 MB

    return series_table(await store.collected(last))


def _end_with(
    stack: AsyncExitStack,
    actors: Sequence[RunActor],
    calls: Sequence[asyncio.Task[Any]],
    supervising: Sequence[asyncio.Task[None]],
) -> None:
    """Arrange what happens to the actors and tasks of a run when `stack` is closed.

    First the tasks in `supervising`, which apply rules to whole steps, are cancelled. Then the actors are closed, their
    `calls` are cancelled, and the actors free their agents.
    """

    async def end_all() -> None:
        for call in calls:
            await end(call)

    for actor in actors:
        stack.push_async_callback(actor.forget)
    stack.push_async_callback(end_all)
    for actor in actors:
        # A stack calls the last callback first. So actors are closed before their calls are cancelled, and store the
        # results of calls through `me.remember` that are under way.
        stack.push_async_callback(actor.close)
    # These tasks end before the actors, because they use the first messager, which is closed with its actor.
    for task in supervising:
        stack.push_async_callback(end, task)


def _digests(later: Sequence[LaterDigests], steps: Iterable[int]) -> dict[int, str]:
    return {step: step_digest(group.sum_of(step) for group in later).hex() for step in steps}


def _limit_calls(settings: Calls, limits: CallLimits, records: bool, society: AgentLoop, group: str) -> None:  # noqa: FBT001 - by partial
    """Set how the agents of a group make calls through `me.remember`.

    Args: `limits` is shared by all groups. `records` says whether the calls are recorded for an event log.
    """
    society.records_calls = records
    society.call_settings, society.call_store = settings, store_of(settings)
    if settings.limited:
        society.call_gate = CallGate(group, limits.take, limits.note)


async def _with_others(running: Awaitable[GroupResult], actors: Sequence[RunActor], store: "RedisSteps") -> GroupResult:
    """Wait for the result of a group, and return it.

    If the group has ended because the budget of calls through `me.remember` is spent, make all groups end, because
    they would wait for this group.

    Args: `actors` are the actors of all groups.
    """
    found = await running
    if found.spent:
        await store.hold(CTRL_C, STANDSTILL)
        last = (await store.progress()).latest
        for actor in actors:
            await actor.end_after(last, _TURN)
        await store.hold(CTRL_C, STANDSTILL)  # wakes the groups that wait for a step, so that they notice their new end
    return found


def _known(value: T) -> "asyncio.Future[T]":
    found: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    found.set_result(value)
    return found


async def _sealed(store: "RedisSteps", step: int) -> None:
    """Wait until all groups have committed a step and, if the run has rules for whole steps, these have judged it."""
    while (progress := await store.progress()).sealed < step:
        await store.wait(progress.news, STEP_NEWS_TIMEOUT_S)


async def _show(store: "RedisSteps", line: ProgressLine, until: int) -> None:
    if line.is_due():
        step = (await store.progress()).sealed + 1
        line.show(step, f"step {step} of {until}" if step < until else steps_done(step))


async def _all_done(
    calls: Sequence[asyncio.Task[Any]],
    beside: Iterable[asyncio.Task[None]],
    look: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Wait for all calls; raise the first error of a call, or of a task in `beside`.

    Args: `look` is called after each second in which no call has ended (None: nothing is called).
    """
    left: set[asyncio.Task[Any]] = {*calls, *beside}
    while not left.isdisjoint(calls):
        done, left = await asyncio.wait(
            left, return_when=asyncio.FIRST_COMPLETED, timeout=None if look is None else _LOOK_S
        )
        for task in done:
            task.result()
        if look is not None and not done:
            await look()
