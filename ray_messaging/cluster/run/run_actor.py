"""The Ray actor of one group of a run, which hosts the agents, and runs the model step by step."""

import asyncio
import gc
import logging
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId
from ray_messaging.cluster.run.agent import NO_CHANGE, AgentLoop, StateChange, step_failed
from ray_messaging.cluster.run.ahead_news import AheadNews
from ray_messaging.cluster.run.collector import Collector
from ray_messaging.cluster.run.crowd import CrowdSociety
from ray_messaging.cluster.run.kinds import as_one
from ray_messaging.cluster.run.look_ahead import Ahead
from ray_messaging.cluster.run.model_thread import ModelThread
from ray_messaging.cluster.run.model_watch import ModelWatch
from ray_messaging.cluster.run.run_plan import GroupPlan, Homes, RunOptions, changeable
from ray_messaging.cluster.run.seated import people_by
from ray_messaging.common.backoff import ACTOR_START_RETRY, Backoff
from ray_messaging.common.process_tuning import tune_process
from ray_messaging.default_limits_and_leases import CALLS_TOLD_S
from ray_messaging.errors import (
    AlreadyExists,
    BudgetSpent,
    ConnectionFailed,
    Fenced,
    MoveFailed,
    ServerRefused,
    StepAborted,
    UnknownName,
)
from ray_messaging.model.agent_sets import NO_AGENTS, AgentSet
from ray_messaging.model.calls import NO_CALLS, CallsNow
from ray_messaging.steps.agent_places import AgentPlaces
from ray_messaging.steps.call_limits import CallGate
from ray_messaging.steps.digests import LaterDigests
from ray_messaging.steps.step import Step
from ray_messaging.steps.step_loop import StepLoop, step_loop

if TYPE_CHECKING:
    from ray_messaging.cluster.messaging import Messaging
    from ray_messaging.config import Calls
    from ray_messaging.messager import GroupMessager
    from ray_messaging.steps.call_store import CallStore


logger = logging.getLogger(__name__)


class GroupResult(NamedTuple):
    """The result of one group: its states before step `until`, and in `fates` the numbers of its messages by fate.

    `states` and `ids` are empty unless the call of `run` asked for them. With by="group", `states` has arrays, and
    `ids` has the agents in the order of these arrays. For a few addresses on which nobody listens, `unheard` has the
    number of messages to each. `calls` has the fields of `CallCounts` that were counted. `spent` is True if the run
    ended before step `until` because the budget of calls was spent. `sealed` is the last step that all groups have
    committed, as far as this group knows. `collected` has the encoded values that the group collected in its last step,
    if the call of `run` asked for them (None: another process ran that step).
    """

    states: dict[Any, Any]
    fates: "Counter[str]"
    until: int
    ids: dict[str, NDArray[Any]]
    unheard: dict[str, int]
    calls: "Counter[str]"
    spent: bool
    sealed: int
    collected: bytes | None = b""


class RunInputs(NamedTuple):
    """Inputs that the groups of a run share.

    `model`, `options`, `shared` and the plan of each group in `plans` are awaitables, so that an actor loads only the
    inputs that it needs, and loads each of them once. `parent_calls` is the log folder of a fork's parent (None: there
    is no parent). The results that the parent has stored are used for equal calls through `me.remember`. `change` has
    new values for states, which are set before one of the steps. People act for the agents in `seats`. Agents may run
    up to `ahead` steps ahead of the current step. `run` is a name that no other run of the experiment has. Without
    `stores_states`, the states after each step are not stored, because nobody needs them before the run ends. With
    `has_graph`, the run has a graph, so people may write only to neighbours and to agents that wrote to them.
    """

    model: Any
    options: Any
    shared: Any
    plans: Mapping[str, Any]
    parent_calls: str | None = None
    change: StateChange = NO_CHANGE
    seats: frozenset[AgentId] = frozenset()
    ahead: int = 0
    run: str = ""
    stores_states: bool = True
    has_graph: bool = False


class RunActor:
    """Ray actor of one group of a run. A run without Ray uses it as a plain object.

    The actor gets the run's inputs by calls and not from the constructor, because Ray does not store large arguments of
    a constructor for a restart.

    Args: `messager` already hosts the group's agents (None: `open` opens a messager). `told` has the names of the
    model's problems that were already logged. `later` keeps the messages of steps, and computes their digests only if
    they are asked for. If the run belongs to no experiment, `limit_calls` applies the settings of calls through
    `me.remember`.
    """

    def __init__(
        self,
        messager: "GroupMessager | None" = None,
        told: set[str] | None = None,
        limit_calls: Callable[[AgentLoop, str], None] | None = None,
        later: LaterDigests | None = None,
    ) -> None:
        self._since = time.time()  # no module of the user was imported before this time
        self._messager = messager
        self._loop: StepLoop | None = None
        self._steps: AsyncGenerator[Step | None, None] | None = None  # the iterator over the steps
        self._stands = False  # whether the iterator waits between two calls of `run`
        self._society: AgentLoop | CrowdSociety | None = None
        self._homes: Homes | None = None
        self._parent_calls: str | None = None
        self._ahead, self._run = 0, ""  # the fields `ahead` and `run` of `RunInputs`
        self._is_judged = False  # whether rules have blocked messages in this run
        self._news: AheadNews | None = None  # exchanges news with other groups about steps run ahead of time
        self._others = False  # whether the run has more than one group
        self._watch: ModelWatch | None = None
        self._told = told
        self._limit_calls_here = limit_calls
        self._later = later
        # The thread is the same in all runs, because clients in a user's module are bound to the thread's event loop.
        self._thread = ModelThread()
        self._running = asyncio.Lock()  # only one call of `run` runs at a time, and further calls wait
        # Whether a `Run` object opens the first step of each of its calls of `run` for all groups at once.
        self._is_told = False
        self._turn = 0  # the number of the current call of `run`
        self._last: int | None = None  # the step after which `end_after` lets the current call of `run` end
        # A function that tells the interceptor, for the inspector, which calls through `me.remember` are under way.
        self._tell_calls: Callable[[CallsNow], object] | None = None
        self._telling: asyncio.TimerHandle | None = None
        self._told_calls = NO_CALLS  # the argument of the last call of `_tell_calls`
        self._collected: tuple[int, bytes] = -1, b""  # the last step that ran here, and its collected values

    async def open(self, messaging: "Messaging", plan: GroupPlan) -> None:
        """Open the group's mailbox for the group's agents, unless this process has it open already."""
        if self._messager is None:
            # Agents may have moved before this process was restarted. Then the directory says which agents are here.
            moved = await _has_moved(messaging, plan.name)
            try:
                self._messager = await messaging.open_messager(plan.name, NO_AGENTS if moved else plan.agents)
            except AlreadyExists as error:
                if moved or not await _has_moved(messaging, plan.name):
                    text = f"{error}. A run makes its own groups: remove that group, or pass other names by groups="
                    raise AlreadyExists(text, kind=error.kind, value=error.value, owner=error.owner) from error
                self._messager = await messaging.open_messager(plan.name, NO_AGENTS)  # agents have just moved
            tune_process()

    async def run(
        self,
        group: str,
        given: "Sequence[Awaitable[tuple[Messaging | None, RunInputs]]]",
        until: int,
        turn: int,
        *,
        with_states: bool | Literal["called"],
        stands: bool = False,
        with_collected: bool = False,
    ) -> GroupResult:
        """Run the steps of a group that come before step `until`; return the group's result.

        Args: `given` has one awaitable. It returns a pair: the experiment (None: the run has none) and the run's
        inputs. Only the first call in a process awaits it, because unpickling the pair takes some milliseconds. `turn`
        is the number of this call, for `end_after`. With `with_states` the result has the agents' states. With
        `with_states="called"`, the result may lack the states of agents for which the last step did not call the model.
        With `with_collected` the result has what was collected in the last step. With `stands`, this process keeps the
        right to run the group's steps until the next call, so that the next call begins sooner.
        Raises: StepFailed if the model, or another function of the user, fails.
        """
        async with self._running:
            if self._society is None:
                await self._load(group, *await given[0])
            society, homes = self._society, self._homes
            assert society is not None
            assert homes is not None
            assert self._messager is not None
            self._turn, self._last = turn, None
            spent, counts = False, Counter[str]()
            if isinstance(society, AgentLoop):
                society.call_counts = counts
            self._tell_later()
            try:
                while not await self._run_steps(until, society, homes, stands=stands):
                    pass
            except BudgetSpent:
                spent = True
            finally:
                if self._telling is not None:
                    self._telling.cancel()
                if self._tell_calls is not None and self._told_calls.calls:
                    self._told_calls = NO_CALLS
                    self._tell_calls(NO_CALLS)
            loop = self._loop
            assert loop is not None
            # The committed states are loaded if the last step that ran here is not the last committed one: another
            # process has run the committed one, or the step that ran here was not committed.
            if with_states and society.last_step != loop.committed:
                await homes.prepare(loop.before)
                society.read(AgentPlaces(loop.before), loop.state)
            states, ids = (society.states, society.ids) if with_states else ({}, {})
            if with_states == "called" and isinstance(society, AgentLoop):
                states = society.states_of_called
            ended, counted = max(loop.committed + 1, 0), loop.account.before
            collected: bytes | None = b""
            if with_collected:
                collected = self._collected[1] if self._collected[0] == loop.committed else None
            fates = Counter(counted.total)
            return GroupResult(states, fates, ended, ids, counted.unheard, counts, spent, loop.sealed, collected)

    def _tell_later(self) -> None:
        """From now on, tell the interceptor at regular intervals which calls through `me.remember` are under way."""
        if self._tell_calls is not None:
            self._telling = asyncio.get_running_loop().call_later(CALLS_TOLD_S, self._tell)

    def _tell(self) -> None:
        assert isinstance(self._society, AgentLoop)
        assert self._tell_calls is not None
        now = self._society.calls_now()
        if now.calls or self._told_calls.calls:
            self._tell_calls(now)
            self._told_calls = now
        self._tell_later()

    async def _run_steps(self, until: int, society: AgentLoop | CrowdSociety, homes: Homes, *, stands: bool) -> bool:
        """Run the group's steps before `until`, unless `end_after` was called with an earlier step.

        Return True if the steps have run. Return False if the caller must call this method again, because a step could
        not be committed, or because another process has run the group's steps meanwhile. With `stands`, this process
        keeps the right to run the group's steps until the next call.

        Raises: ConnectionFailed if a step has waited for the server as long as it may; StepFailed if a function of the
        user fails; BudgetSpent if the budget of calls is spent.
        """
        assert self._messager is not None
        end, again = until if self._last is None else min(until, self._last + 1), self._steps is not None
        if self._loop is None or self._steps is None:
            self._loop = step_loop(self._messager.engine, self._later)
            self._loop.ahead = self._ahead
            if self._parent_calls is not None:
                from ray_messaging.eventlog.call_rows import parent_calls  # noqa: PLC0415 - brings pyarrow, 80 MB

                self._loop.parent_calls = partial(parent_calls, self._parent_calls)
            self._steps = self._loop.standing(end)
        loop, steps, self._stands = self._loop, self._steps, False
        loop.until, loop.is_told = end, stands and self._is_told
        try:
            async with AsyncExitStack() as stack:
                stack.push_async_callback(self._end_steps)
                async for step in steps:
                    if step is None:
                        if stands:
                            stack.pop_all()
                            self._stands = True
                        break
                    again = False
                    await self._run_step(step, loop, society, homes)
        except Fenced:
            if not again:  # with `again`, another process may have run the group's steps since the last call
                raise
            return False
        except StepAborted as error:
            if type(error.__cause__) is ConnectionFailed:  # the step has waited for the server as long as it may
                raise error.__cause__ from None
            logger.warning("%s; the step runs again", error)
            return False
        return True

    async def _load(self, group: str, messaging: "Messaging | None", inputs: RunInputs) -> None:
        plan: GroupPlan = await inputs.plans[group]
        model, options, shared = await inputs.model, await inputs.options, await inputs.shared
        self._society = society_of(plan, model, options, shared, self._thread, stores_states=inputs.stores_states)
        self._society.change, self._parent_calls, self._ahead = inputs.change, inputs.parent_calls, inputs.ahead
        self._run = inputs.run
        self._watch = ModelWatch(model, {"shared": shared, "me.data": changeable(plan.rows)}, self._told)
        self._homes = Homes(plan, inputs.plans)
        self._others = len(inputs.plans) > 1
        if self._limit_calls_here is not None and isinstance(self._society, AgentLoop):
            self._limit_calls_here(self._society, group)
        self._is_told = messaging is not None
        if messaging is not None:
            if isinstance(self._society, AgentLoop):
                self._limit_calls(self._society, messaging, group)
                if inputs.seats:
                    people = people_by(messaging.interceptor)
                    self._society.seat_people(inputs.seats, *people, has_graph=inputs.has_graph)
            await self._reopen(messaging, plan)

    async def _reopen(self, messaging: "Messaging", plan: GroupPlan) -> None:
        """Open the group's mailbox again if this process was restarted.

        If the server cannot be reached, try again for up to MessagingConfig.cut_timeout_s seconds.

        Raises: ConnectionFailed if the server cannot be reached in this time.
        """
        cut_timeout_s = messaging._connection.experiment.settings.cut_timeout_s
        backoff = Backoff(ACTOR_START_RETRY, deadline=time.monotonic() + cut_timeout_s)
        while True:
            try:
                return await self.open(messaging, plan)
            except ConnectionFailed as error:
                if isinstance(error, ServerRefused) or backoff.exhausted:
                    raise
                logger.warning("group %r waits for its server, up to %g s: %s", plan.name, cut_timeout_s, error)
            await backoff.sleep()

    async def _run_step(self, step: Step, loop: StepLoop, society: AgentLoop | CrowdSociety, homes: Homes) -> None:
        await homes.prepare(step.places.agents)
        assert self._watch is not None
        assert self._messager is not None
        tracer = self._messager.engine.tracer
        if isinstance(society, AgentLoop):
            society.tracer = tracer
        with self._watch.over(step.number), tracer.step(step.number):
            if isinstance(society, AgentLoop):
                ahead = self._may_run_ahead(step, loop) if self._ahead else None
                await society.run(step, loop.calls_of(step.number), ahead)
            else:
                await society.run(step)
        self._collected = step.number, step.series
        if isinstance(society, AgentLoop) and society.moves:
            await move_agents(self._messager, society.moves, step.number)

    def _may_run_ahead(self, step: Step, loop: StepLoop) -> Ahead:
        """Return which steps agents may run now: `step`, and later steps ahead of time.

        If rules may block or change messages, agents may not run ahead of time.
        """
        assert self._messager is not None
        engine = self._messager.engine
        self._is_judged = self._is_judged or bool(len(step.blocked))
        free = engine.verdict_client.judges_nothing and not self._is_judged
        numbers = range(step.number, min(loop.until, step.number + self._ahead + 1) if free else step.number + 1)
        memories = {number: loop.calls_of(number) for number in numbers}
        if free and self._others and self._news is None and isinstance(self._society, AgentLoop):
            self._news = AheadNews(engine.transport.steps, self._run, self._messager.name, self._society.hear)
        tell = None if self._news is None else self._news.tell
        return Ahead(memories, engine.settings.payload_bytes, step.sends.horizon, tell)

    def _limit_calls(self, society: AgentLoop, messaging: "Messaging", group: str) -> None:
        """Set how the agents of a group make calls through `me.remember`, by the settings of the experiment."""
        society.records_calls = messaging.log_dir is not None
        self._tell_calls = partial(messaging.interceptor.tell_calls.remote, group)
        if messaging.calls is not None:
            society.call_settings = messaging.calls
            society.call_store = store_of(messaging.calls)
        settings = society.call_settings
        if settings.limited:
            interceptor = messaging.interceptor
            # Whether a limit depends on which calls have ended, or on what they have used.
            at_ends = settings.concurrency is not None or settings.needs_usage
            noted = interceptor.note_calls.remote if at_ends else lambda _: None
            society.call_gate = CallGate(group, interceptor.take_calls.remote, noted)

    async def _end_steps(self) -> None:
        """Stop running the group's steps in this process, so that another process can run them."""
        steps, self._steps, self._stands = self._steps, None, False
        if steps is not None:
            await steps.aclose()

    async def end_after(self, last: int, turn: int) -> None:
        """Make the call of `run` with the number `turn` end after step `last`. Do nothing if another call runs now."""
        if turn == self._turn:
            self._last = last
            if self._loop is not None:
                self._loop.until = min(self._loop.until, last + 1)
            if isinstance(self._society, AgentLoop):
                self._society.end_after(last)

    async def calls_now(self) -> tuple[dict[str, int], int]:
        """Return the `CallCounts` of the current call of `run`, as a dict, and how many calls wait for a limit now.

        The calls are those through `me.remember`. The dict has only the fields that have been counted so far.
        """
        if not isinstance(self._society, AgentLoop):
            return {}, 0
        gate = self._society.call_gate
        return dict(self._society.call_counts), 0 if gate is None else gate.waiting

    async def end_step(self) -> None:
        """End the step that the model runs, if any, without committing it.

        Wait until the calls that agents have begun through `me.remember` have ended, or have exceeded their time limit.
        """
        if isinstance(self._society, AgentLoop):
            await self._society.end()

    async def of_shared(self, method: str, *args: Any) -> Any:  # noqa: ANN401 - as above
        """Call an async method of this process's copy of `shared`, and return its result.

        Return None if no run is loaded, or if its model is called for whole groups.
        """
        society = self._society
        return await getattr(society.shared, method)(*args) if isinstance(society, AgentLoop) else None

    async def close(self) -> None:
        """Wait until calls through `me.remember` that are under way have ended; then leave the mailbox.

        The mailbox stays on the server, for a run that is resumed.
        """
        self._ahead = 0  # no agent runs ahead of time any more
        await self.end_step()
        if self._news is not None:
            news, self._news = self._news, None
            await news.close()
        if self._stands:  # if not, the running call of `run` ends the steps
            await self._end_steps()
        if self._messager is not None:
            await self._messager.close()

    async def rest(self) -> None:
        """Leave the mailbox, and forget the run, which has ended, so that this process can be used for the next run."""
        await self.close()
        self._messager = self._loop = self._society = self._homes = self._watch = self._last = None
        self._tell_calls = None
        self._is_judged = False
        gc.collect()  # agents and their group refer to each other, so only the garbage collector frees them

    async def forget(self) -> None:
        """Forget a run that has ended: free its agents at once, and close the model's event loop and its clients."""
        if isinstance(self._society, AgentLoop):
            self._society.forget()
        await self._thread.close()

    def is_current(self) -> bool:
        """Return whether no file of a module that this process has imported has changed since the process began."""
        for module in [*sys.modules.values()]:
            file = getattr(module, "__file__", None)
            with suppress(OSError):  # some modules have no file, such as modules in an archive
                if file and Path(file).stat().st_mtime > self._since:
                    return False
        return True


def store_of(settings: "Calls") -> "CallStore | None":
    """Return the store of answers that `Calls(store=)` names, or None if it names none.

    Raises: the same errors as `CallStore`.
    """
    if settings.store is None:
        return None
    from ray_messaging.steps.call_store import CallStore  # noqa: PLC0415 - sqlite3 is for those who use it

    return CallStore.at(str(settings.store))


def society_of(
    plan: GroupPlan,
    model: Any,  # noqa: ANN401 - as above
    options: RunOptions,
    shared: object,
    thread: ModelThread | None = None,
    *,
    stores_states: bool = True,
) -> "AgentLoop | CrowdSociety":
    """Return an object that runs the model of a group's agents step by step, in `thread` (None: a new one).

    Args: with `stores_states`, the agents' states are stored after each step, so that the next step can run again.
    """
    collector = None if options.collect is None else Collector(options.collect, options.collect_every)
    model, start = as_one(model, 2), as_one(options.start, 1)
    if options.by == "group":
        return CrowdSociety(
            plan.name, model, start=start, shared=shared, thread=thread, collector=collector, kinds=plan.kinds
        )
    return AgentLoop(
        plan.name,
        model,
        start=start,
        shared=shared,
        rows=plan.rows,
        kinds=plan.kinds,
        concurrency=options.concurrency,
        timeout=options.timeout,
        thread=thread,
        collector=collector,
        only_active=options.only_active,
        reached=plan.reached,
        stores_states=stores_states,
    )


async def move_agents(messager: "GroupMessager", moves: Mapping[AgentId, str], step: int) -> None:
    """Move agents to other groups in the step that their group runs now.

    An agent that has already left is ignored, because another call has moved it, or this step runs again.

    Args: `moves` maps each agent to the group that it has chosen.
    Raises: StepFailed if a group does not exist, or an agent cannot move.
    """
    await messager.subscription.adopt()  # read the current directory
    for target in sorted({*moves.values()} - {messager.name}):
        wanted = AgentSet.of([agent for agent, to in moves.items() if to == target])
        while leaving := wanted & messager.subscription.hosted:
            try:
                await messager.move_agents(leaving, to=target)
            except (UnknownName, MoveFailed) as error:
                if isinstance(error, MoveFailed) or error.kind != "agent":  # an unknown agent was moved by another call
                    raise step_failed(error, "me.move", messager.name, step, next(iter(leaving))) from error


async def _has_moved(messaging: "Messaging", group: str) -> bool:
    """Return whether agents have come to a group or left it."""
    return group in await messaging.interceptor.moved.remote()
