"""The class `Agent`, whose objects a model's function gets as `me`, and the loop over a group's agents in a step."""

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import get_ident
from time import perf_counter
from traceback import StackSummary, TracebackException
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar, overload

import msgspec
import numpy as np
from numpy.typing import NDArray
from orjson import dumps

from ray_messaging.addressing.channels import AGENT_CHAT, AgentId, check_id, check_name
from ray_messaging.cluster.run.ahead_news import Told
from ray_messaging.cluster.run.collector import Collector
from ray_messaging.cluster.run.kinds import Kinds
from ray_messaging.cluster.run.look_ahead import Ahead, LookAhead
from ray_messaging.cluster.run.model_thread import Holder, ModelThread
from ray_messaging.cluster.run.run_plan import Reached, Rows
from ray_messaging.cluster.run.seated import AskSeat, SeatedModel, TellSeat
from ray_messaging.cluster.run.step_calls import NO_LIMITS, Flights, RememberedCalls, StepCalls
from ray_messaging.common.awaitables import RAISED, is_async
from ray_messaging.errors import Closed, ConfigError, InvalidPayload, MessagingError, NoQuestion, StepFailed
from ray_messaging.message import Message
from ray_messaging.messages import Messages
from ray_messaging.model.agent_sets import NO_AGENTS, AgentSet
from ray_messaging.model.calls import UNUSED, AgentAtCalls, CallRecord, CallsNow, encode_calls
from ray_messaging.model.exact import (
    BLOCK,
    decode_exactly,
    encode_exactly,
    is_kept_exactly,
    joined_lists,
    kept_exactly,
)
from ray_messaging.model.json_form import PLAIN
from ray_messaging.model.read_only import ReadOnlyAttributes, ReadOnlyDict
from ray_messaging.observability.tracing.untraced import UNTRACED, AnyTracer
from ray_messaging.steps.agent_places import NO_PLACES
from ray_messaging.steps.call_limits import CallGate
from ray_messaging.steps.call_memory import CallMemory
from ray_messaging.steps.digests import id_bytes
from ray_messaging.steps.moved_agents import Arrival
from ray_messaging.steps.random_numbers import StepGenerators, step_generator
from ray_messaging.steps.step import Step
from ray_messaging.steps.step_account import BlockedSend
from ray_messaging.steps.step_inbox import EVERYBODY
from ray_messaging.steps.step_sends import SMALL, StepSends

if TYPE_CHECKING:
    from ray_messaging.steps.call_store import CallStore

P = ParamSpec("P")
R = TypeVar("R")

_encode = msgspec.msgpack.Encoder().encode
_parts_of = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_STATE = "me.state"  # the name, in errors, of a state that cannot be stored
_OURS = f"{Path(__file__).parents[2]}/"
_LIBRARY = re.compile(r"/lib(64)?/python3|^<frozen |^[^/<]")  # `^[^/<]`: relative paths, as of numpy's compiled code
_NO_ROW: tuple[Mapping[str, Any], Sequence[AgentId]] = ReadOnlyDict(), ()
_LISTED, _NAMED = 50, 5  # the most agents that `calls_now` lists, and the most neighbours that it names for each agent
START = -1  # the step number while the `start` function runs, before the first step


class Agent(ReadOnlyAttributes):
    """One agent of a simulation in one step: what the agent knows, and what it can do.

    `state` is the agent's own dict. What the dict holds when a step ends is there in the next step, too. `data` is the
    agent's row of the DataFrame that was passed to `run` as `agents`, `shared` is the object that was passed to `run`,
    and `neighbours` are the agents to which this agent has an edge in the graph. `kind` is the agent's kind, such as
    "trader", if the run has several kinds of agents, each with its own function.
    """

    __slots__ = ("_place", "_society", "_stopped", "data", "id", "kind", "neighbours", "shared", "state")
    if TYPE_CHECKING:
        id: AgentId
        kind: str | None
        data: Mapping[str, Any]
        neighbours: Sequence[AgentId]
        shared: Any
        state: dict[str, Any]
        _stopped: bool
        _society: "AgentLoop"
        _place: int

    _called, _given = "me", frozenset(("data", "id", "kind", "neighbours", "shared"))

    def __init__(self, society: "AgentLoop", agent_id: AgentId, place: int, kind: str | None = None) -> None:
        data, neighbours = society.rows.get(agent_id) or _NO_ROW
        # Changes of the data are refused, because they would be lost when the step runs again.
        if type(data) is not ReadOnlyDict:
            data = ReadOnlyDict(data)
            society.rows[agent_id] = data, neighbours
        put = self._put  # three times as fast as assignments, which matters with a million agents
        put("id", agent_id)
        put("kind", kind)
        put("data", data)
        put("neighbours", neighbours)
        put("shared", society.shared)
        put("state", {})
        put("_stopped", False)
        put("_society", society)
        put("_place", place)

    def __repr__(self) -> str:
        return f"Agent({self.id!r}, step={self.step})"

    @property
    def step(self) -> int:
        """Return the number of the step in which the agent acts, or -1 in the function passed to `run` as `start`."""
        return self._society.number

    @property
    def stopped(self) -> bool:
        """Return whether the agent has called `stop`."""
        return self._stopped

    @property
    def rng(self) -> np.random.Generator:
        """Return the agent's random number generator of this step, which depends only on seed, step and agent."""
        drawn = self._society.drawn
        found = drawn.get(self._place)
        if found is None:
            found = drawn[self._place] = self._society.generators.at(self._place)
        return found

    @property
    def step_rng(self) -> np.random.Generator:
        """Return a generator of random numbers that are the same for all agents in this step, such as for the weather.

        The numbers depend only on the seed and the step. Each agent gets a generator of its own, which begins with the
        first number.
        """
        drawn, mine = self._society.drawn, ~self._place
        found = drawn.get(mine)
        if found is None:
            found = drawn[mine] = step_generator(self._society.seed, self._society.number)
        return found

    @property
    def blocked(self) -> Sequence[BlockedSend]:
        """Return the messages that the agent sent in the previous step, and that a rule blocked.

        Each of these messages has `message_id`, `to_id`, the `rule` that blocked it, and the `reason`.

        A blocked question gets no answer. The `message_id` of a blocked question is the id that `ask` returned.
        """
        return () if self._society.step is None else self._society.step.blocked.of(self._place)

    def send(
        self,
        to: AgentId | tuple[Any, ...],
        payload: object,
        *,
        subtopic: str = AGENT_CHAT,
        deliver_at: int | None = None,
    ) -> None:
        """Send a message to agent `to`, which reads it in the next step, or in step `deliver_at`.

        `subtopic` is the last part of the channel, the address on the server to which the message goes.

        Raises: InvalidAddress for an invalid id or subtopic; InvalidPayload or PayloadTooLarge for an invalid payload;
        ConfigError in the functions passed to `run` as `start` and `collect`, or for a `deliver_at` that has passed or
        is too far ahead; Closed if the step has ended.
        """
        # This is the common case of `StepSends.send`, inlined, because the call would take a tenth of a send's time.
        try:
            sends = self._society.sends
            if (
                sends is not None
                and subtopic is sends.subtopic
                and deliver_at is sends.deliver_at
                and type(payload) is dict
                and type(to) is int
                and 0 <= to < SMALL
                and get_ident() == sends.thread
            ):
                line = dumps(payload, None, PLAIN)
                if line == sends.line or sends.begin_run(line):
                    sends.to_ids.append(to)
                    sends.from_places.append(self._place)
                    return
        except Exception:  # noqa: BLE001, S110 - for invalid input the full checks below raise
            pass
        self._society.send(self.id, to, payload, subtopic, deliver_at, self._place)

    def broadcast(
        self, audience: object, payload: object, *, subtopic: str = AGENT_CHAT, deliver_at: int | None = None
    ) -> None:
        """Send one message to all hearers of this agent in an audience, a named set of pairs of sender and hearer.

        `audience` is an Audience or its name. The hearers read the message in the next step, or in step `deliver_at`.

        Raises: UnknownName for an audience that does not exist in this step; the errors of `send`, such as
        InvalidPayload and ConfigError.
        """
        self._open_step.broadcast(self.id, audience, payload, subtopic=subtopic, deliver_at=deliver_at)

    def ask(
        self,
        to: AgentId | tuple[Any, ...],
        payload: object,
        *,
        subtopic: str = AGENT_CHAT,
        deliver_at: int | None = None,
    ) -> str:
        """Ask an agent, which reads the question in the next step or in step `deliver_at`. Return the question's id.

        The answer has this id in its field `in_reply_to`. If the agent answers in the step in which it reads the
        question, the answer is read in the following step.

        Raises: the same errors as `send`, such as InvalidAddress, InvalidPayload and ConfigError.
        """
        return self._open_step.ask(self.id, check_id(to), payload, subtopic=subtopic, deliver_at=deliver_at)

    def reply(self, message: Message, payload: object, *, deliver_at: int | None = None) -> None:
        """Answer a question that was read in this step. The answer is read in the next step, or in step `deliver_at`.

        Raises: NoQuestion for a message that is not a question, was answered, was read in another step, or was a
        question to another agent; the errors of `send`, such as InvalidPayload and ConfigError.
        """
        if message.to_id != self.id:
            raise NoQuestion(
                f"agent {self.id!r} cannot answer message {message.id}, because agent {message.to_id!r} was asked",
                question=message.id,
                agent=self.id,
            )
        self._open_step.reply(message, payload, deliver_at=deliver_at)

    @property
    def _open_step(self) -> Step:
        if self._society.open_step is None:
            raise self._society.cannot("send", self.id)
        return self._society.open_step

    @overload
    def remember(
        self, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[R]: ...
    @overload
    def remember(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]: ...
    def remember(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """Call a function, async or plain, and store its result, for the case that the step runs again.

        A step runs again if, for example, its process has died. Calls whose results are stored are then not made again.
        Use this for calls that cost money or whose results vary, such as calls of a language model. The agent's own
        function, which was passed to `run`, must be async, and await the result. A plain function runs in a thread.
        Awaiting the call returns an equal copy of what the function returned. Exceptions are not stored.

        A stored result is used for an equal call. Two calls are equal if the same agent calls the same function (by its
        qualified name) with equal arguments in the same step. If an agent makes several equal calls in one step, each
        of them is made, and has its own result. If msgpack cannot encode the arguments of a call, the call is
        identified by its number among the agent's calls of the function in the step. A run that `Messaging.fork` starts
        from this run uses the stored results too. With `Calls(store=)`, calls of the same function with equal arguments
        are made only once, whichever agent makes them (see `by_content`).

        Raises: the errors of the function; ConfigError if the agent's function is not async, if the function passed to
        `run` as `start` calls this, or if there is a store and the function or its arguments cannot be compared with
        those of other calls; InvalidPayload for a result that cannot be stored exactly (the error names the part of the
        result); PayloadTooLarge for a result above MessagingConfig.payload_bytes.
        """
        calls = self._society.calls
        if calls is None:
            raise ConfigError(f"agent {self.id!r} cannot call me.remember in start=: call it in the model's function")
        return calls.call(self, function, args, kwargs)

    def move(self, to: str) -> None:
        """Move the agent, with its state, to another group from the next step on.

        If the agent calls this several times in a step, only the last call has an effect. If the group does not exist,
        the run ends with StepFailed.

        Raises: ConfigError in the functions passed to `run` as `start` and `collect`; InvalidAddress for an invalid
        name.
        """
        if self._society.open_step is None:
            raise self._society.cannot("move", self.id)
        self._society.moves[self.id] = check_name("group", to)

    def stay_active(self) -> None:
        """Have the agent's function called in the next step even if there are no messages for the agent.

        This has an effect only in a run with only_active=True. In such a run the function is called in a step only for
        some agents, such as those that have messages.
        """
        self._society.staying.add(self._place)

    def stop(self) -> None:
        """Leave the simulation after this step. The agent's function is not called for this agent any more.

        The agent's state stays as it is after this step.
        """
        self._stopped = True
        self._society.stopping.add(self._place)


class StateChange(NamedTuple):
    """New values for the states of some agents, {agent: {key: value}}, which are set before the step `step` runs."""

    step: int
    states: Mapping[AgentId, Mapping[str, Any]]


NO_CHANGE = StateChange(-1, {})


Model = Callable[[Agent, Messages], object]


class AgentLoop:
    """The agents of one group, and the model's function that runs for each of them in each step.

    With `only_active`, the function runs for an agent only if one of these is true: the agent has received a message, a
    rule has blocked one of its messages, the user has set its state, it asked to stay active, or the function has never
    run for it.

    Args: `reached` says to which agents of the group the agents of other groups may send (None: no agent runs in a
    later step ahead of time). Without `stores_states`, states are checked, but not stored, so no step can run again.
    """

    def __init__(
        self,
        group: str,
        model: Model,
        *,
        start: Callable[[Agent], dict[str, Any]] | None = None,
        shared: object = None,
        rows: Rows | None = None,
        kinds: Kinds | None = None,
        concurrency: int = 100,
        timeout: float | None = None,
        thread: ModelThread | None = None,
        collector: Collector | None = None,
        only_active: bool = False,
        reached: Reached | None = None,
        stores_states: bool = True,
    ) -> None:
        self.step: Step | None = None
        self.open_step: Step | None = None  # the step in which agents may send now (None: they may not send)
        self.number = START  # the number of `step`, or START before the first step
        self.send: Callable[..., None] = self._refuse  # the function by which agents send in the step
        self.sends: StepSends | None = None  # what agents have sent in the step (None: they may not send now)
        # The number of the last step that this process ran to its end. The states are those after this step.
        self.last_step: int | None = None
        self.calls: RememberedCalls | None = None  # the step's calls through `me.remember`
        self.change = NO_CHANGE
        self.records_calls = False  # whether calls through `me.remember` are recorded for an event log
        self.call_settings = NO_LIMITS
        self.call_gate: CallGate | None = None
        self.call_store: CallStore | None = None
        self.call_counts: Counter[str] = Counter()
        self.seats = frozenset[AgentId]()  # the agents of the run for which people act
        self._seated: SeatedModel | None = None  # the model that lets people act for these agents
        self.tracer: AnyTracer = UNTRACED
        self.seed = 0
        self.shared = shared
        self.rows = {} if rows is None else rows
        self._kinds = {} if kinds is None else kinds
        # For agents that move to other groups after this step: {agent: the name of its new group}.
        self.moves: dict[AgentId, str] = {}
        # An agent's place is its index among the agents of the group.
        self.staying: set[int] = set()  # the places of the agents that asked to stay active
        self.stopping: set[int] = set()  # the places of the agents that stop after this step
        self.only_active = only_active
        self._stores_states = stores_states
        # With `only_active`: the places of the agents for which the model is called even without messages.
        self._active: list[int] = []
        # With `only_active`: the encoded states of all agents; [] if all of them must be encoded again.
        self._forms: list[msgspec.Raw] = []
        self._places = NO_PLACES
        self.group = group
        self._model = model
        self._start = start
        self._collector = collector
        self._concurrency = concurrency
        self._timeout = timeout
        self._agents: list[Agent] = []
        # The agents for which the model was called in the last step. After states are loaded, all agents.
        self._were_called: list[Agent] = []
        self._ids = b""
        self.generators = StepGenerators(0, START, NO_PLACES)  # makes each agent's generator, by the agent's place
        # The generators that agents have used in this step: {place: the agent's `rng`, ~place: its `step_rng`}.
        self.drawn: dict[int, np.random.Generator] = {}
        self._stopped: list[int] = []  # the places of the agents that have stopped
        self._model_thread = thread or ModelThread()
        self._holder = Holder(group)
        self._calls: StepCalls | None = None  # the calls of the model in the step that runs
        self._threads = ThreadPoolExecutor(concurrency, "remembered call")
        self._look_ahead: LookAhead | None = None
        self._is_async = is_async(model)
        if reached is not None and self._is_async:
            self._look_ahead = LookAhead(self, model, self._holder, concurrency, reached)
        # By step, the calls through `me.remember` that the step shares with agents that run in it ahead of time.
        self._flights: dict[int, Flights] = {}

    async def run(self, step: Step, memory: CallMemory | None = None, ahead: Ahead | None = None) -> None:
        """Run a step: call the model for the agents, in ascending order of their ids, and encode their states.

        Args: `memory` stores the results of calls through `me.remember`. `ahead` says which later steps agents may run
        ahead of time (None: none).
        Raises: StepFailed if a function of the user raises an exception or does not end in time. Before that, calls
        through `me.remember` that are under way get some time to end. StepAborted if a result of such a call could not
        be stored.
        """
        await self._model_thread.pause()
        anew = step.number - 1 != self.last_step
        if anew or step.places.agents != self._places.agents:
            self._load(step)
        self._places, self.last_step = step.places, None
        self.step = self.open_step = step
        self.number, self.send, self.sends = step.number, step.send, step.sends
        self.generators, self.drawn, self.moves = step.generators, {}, {}
        self._holder.reset()
        if step.number == self.change.step:
            self._change_states()
        called: NDArray[np.intp] | slice = EVERYBODY
        agents = self._agents
        if self.only_active or self._stopped:
            called = self._called(step)
            agents = [agents[place] for place in called.tolist()]
        self._were_called = agents
        self.staying = set()
        look = None if memory is None or ahead is None else self._look_ahead
        self.calls = None if memory is None else self._calls_for(memory, shared=look is not None)
        here = self.seats and self.seats.intersection(agent.id for agent in agents)
        seated = self._seated if here else None
        model: Model = seated or self._model
        # Agents for whom people act do not count towards the limit, because people may take long to answer.
        concurrency = min(self._concurrency + len(here), len(agents))
        self._calls = StepCalls(
            model,
            self._is_async or seated is not None,
            self._model_thread,
            self._holder,
            self.calls,
            self._failed,
            concurrency,
            self._timeout,
            here,
        )
        if look is not None and ahead is not None:
            self._run_ahead(look, self._calls, step, called, ahead, anew=anew)
        try:
            await self._calls.run(zip(agents, step.inboxes(called), strict=True))
        finally:
            self._calls = None
        if (error := self._broken) is not None:  # the step fails even if the model has caught the error
            raise error
        records = [] if look is None else self._unused(look)
        if self.calls is not None and self.records_calls:
            step.keep_calls(encode_calls([*self.calls.records(), *records]))
        if self._collector is not None and self._collector.is_due(step.number):
            self.open_step, self.send, self.sends = None, self._refuse, None
            collected = partial(self._collector.of_agents, self._agents, step.places, self._failed)
            step.keep_series(await self._model_thread.call(collected))
        if look is not None and (look.is_busy or look.listens):
            self._model_thread.go_on()
        self._keep_states(step, agents)
        self.last_step = step.number

    def _calls_for(self, memory: CallMemory, *, shared: bool, early: bool = False) -> RememberedCalls:
        """Return the object that makes a step's calls through `me.remember`. `memory` stores their results.

        Args: with `shared`, the step shares its calls with agents that run in it ahead of time. With `early`, the
        returned object is for these agents. Without `early`, it is for the step itself.
        """
        return RememberedCalls(
            memory,
            self._threads,
            self._holder,
            self.call_counts,
            self.records_calls,
            self.call_settings,
            self.call_gate,
            self.call_store,
            self.tracer,
            self._flights.setdefault(memory.step, Flights()) if shared else None,
            early,
        )

    def _run_ahead(
        self,
        look: LookAhead,
        calls: StepCalls,
        step: Step,
        called: NDArray[np.intp] | slice,
        ahead: Ahead,
        *,
        anew: bool,
    ) -> None:
        """Arrange that agents run in later steps ahead of time, from the moment at which `calls` begins the step.

        Args: `called` selects the agents for which the model is called in `step`. `anew` is True if `step` runs again,
        or if the step before it ran in another process.
        """
        # The earlier steps are committed. The calls that had ended when the last of these steps ended are in the
        # records, and are dropped here. Calls that ended later, or are under way, are kept.
        for earlier in [] if anew else [each for each in self._flights if each < step.number]:
            if not self._flights[earlier].forget_told():
                del self._flights[earlier]
        early = partial(self._calls_for, shared=True, early=True)
        calls.begin = partial(look.begin, step, self._agents, called, ahead, early, anew=anew)
        calls.stop = look.stop

    def hear(self, told: Told) -> None:
        """Take the news of another group: what its agents sent in steps that they have ended ahead of time."""
        if (look := self._look_ahead) is not None:
            look.news.append(told)
            self._model_thread.soon(look.take_news)

    def end_after(self, last: int) -> None:
        """Let no agent run ahead of time in steps after `last`, the step after which the run ends."""
        if self._look_ahead is not None:
            self._model_thread.soon(partial(self._look_ahead.end_after, last))

    def _unused(self, look: LookAhead) -> list[CallRecord]:
        """Return records of the calls through `me.remember` that were made ahead of time in vain.

        Each of these calls was made for the step that ends now, or for an earlier step. Either it was answered, but the
        step did not need it, or it failed after it had used tokens.
        """
        found = [flights.in_vain() for step, flights in self._flights.items() if step <= self.number]
        unused = [record for answered, _ in found for record in answered]
        if unused:
            look.unneeded()
        self.call_counts[UNUSED] += len(unused)
        return [*unused, *(record for _, failed in found for record in failed)]

    def seat_people(self, seats: frozenset[AgentId], ask: AskSeat, tell: TellSeat, *, has_graph: bool) -> None:
        """Let people act for the agents in `seats`.

        Args: `ask` asks a person and returns the answer. `tell` shows a person a note. `has_graph` says whether the run
        has a graph.
        """
        self.seats, self._seated = seats, SeatedModel(self._model, seats, ask, tell, has_graph=has_graph)

    def calls_now(self) -> CallsNow:
        """Return the calls through `me.remember` that are under way, also those of agents that run ahead of time.

        Other threads may call this.
        """
        found = [] if self.calls is None else self.calls.calls_now()
        found += [call for flights in self._flights.copy().values() for call in flights.early()]
        now = perf_counter()
        by_agent: dict[tuple[AgentId, int], list[Any]] = {}
        for call in found:
            if call.meter is not None:
                by_agent.setdefault((call.agent.id, call.meter.step), []).append(call)
        agents = []
        for (agent, step), calls in by_agent.items():
            waiting, began = sum(call.meter.waiting for call in calls), min(call.began for call in calls)
            # If no agent runs ahead of time, all agents wait for this one, and not only its neighbours.
            hearers = calls[0].agent.neighbours if self._flights else None
            hears, named = (None, ()) if hearers is None else (len(hearers), (*hearers[:_NAMED],))
            agents.append(AgentAtCalls(agent, step, len(calls), waiting, now - began, hears, named))
        longest = sorted(agents, key=lambda each: -each.seconds)[:_LISTED]
        return CallsNow(sum(each.calls for each in agents), sum(each.waiting for each in agents), longest)

    def _change_states(self) -> None:
        """Set the values that the user of a fork has given for agents' states, and mark these agents as active."""
        for agent in self._agents:
            if agent.id in self.change.states:
                try:
                    agent.state |= decode_exactly(encode_exactly(self.change.states[agent.id], f"states[{agent.id!r}]"))
                except InvalidPayload as error:
                    raise self._failed(agent, error, "states=") from error
                self._active.append(agent._place)
        # All states are encoded again, because the state of an agent that has stopped may have changed, too.
        self._forms = []

    def _called(self, step: Step) -> NDArray[np.intp]:
        """Return the agents for which the model is called in this step, by their indexes in the group."""
        called = step.heard_counts > 0 if self.only_active else np.ones(len(self._agents), np.bool_)
        called[self._active], called[step.blocked.places], called[self._stopped] = True, True, False
        return np.flatnonzero(called)

    async def end(self) -> None:
        """End the step that runs, if any, and let no agent run ahead of time any more.

        Return when the calls through `me.remember` that are under way have ended, or have exceeded their time limit.
        """
        if self._calls is not None:
            await self._calls.end_and_wait(Closed(f"the run of group {self.group!r} has ended, and with it this call"))
            return
        await self._model_thread.pause()
        if self._look_ahead is not None and self._look_ahead.is_busy:
            closed = -1 if self.last_step is None else self.last_step
            await self._model_thread.call(self._model_thread.wait_for, self._look_ahead.end(closed))

    def forget(self) -> None:
        """Forget the agents of a run that has ended.

        Without this call only the garbage collector could free the agents, because they and this object refer to each
        other.
        """
        self._agents = self._were_called = []

    @property
    def states(self) -> dict[AgentId, dict[str, Any]]:
        """Return the state of each agent.

        Raises: StepFailed for a state that cannot be encoded. If the run does not store states, some of the reasons,
        such as deep nesting, are noticed only here.
        """
        for block in () if self._stores_states else _blocks(self._agents):
            self._keep_block(block, "the model", encodes=True)
        return {agent.id: agent.state for agent in self._agents}

    @property
    def states_of_called(self) -> dict[AgentId, dict[str, Any]]:
        """Return the states of the agents for which the model was called in the last step.

        If another process has run that step, return the states of all agents.
        """
        return {agent.id: agent.state for agent in self._were_called}

    @property
    def ids(self) -> dict[str, NDArray[Any]]:
        """Return {}, because `states` has the ids as its keys. Only the arrays of by="group" need separate ids."""
        return {}

    def read(
        self,
        agents: Sequence[AgentId],
        state: bytes | None,
        before: AgentSet | None = None,
        arrivals: Sequence[Arrival] = (),
    ) -> list[Agent]:
        """Load the states of the group's `agents` from committed states; return the agents that have no state there.

        Args: `state` is the group's committed state (None: nothing was committed). `before` has the agents whose states
        are in `state` (None: `agents`). `arrivals` has, for each group from which agents have come, these agents and
        that group's committed state.
        """
        kind_of = {agent: kind for kind, agents_of in self._kinds.items() for agent in agents_of}
        self._agents = self._were_called = [
            Agent(self, agent_id, place, kind_of.get(agent_id)) for place, agent_id in enumerate(agents)
        ]
        self._active, self._forms, self.stopping = [], [], set()
        self._ids = b"".join(map(id_bytes, agents))
        own = Arrival(NO_AGENTS, self.group, state, AgentSet.of(agents) if before is None else before)
        known: dict[AgentId, tuple[dict[str, Any], bool, bool]] = {}
        for part in (own, *arrivals):
            known |= self._kept(part, len(agents))
        for agent in self._agents:
            if agent.id in known:
                agent.state, agent._stopped, active = known[agent.id]
            if agent.id not in known or active:
                self._active.append(agent._place)
        self._stopped = [agent._place for agent in self._agents if agent.stopped]
        return [agent for agent in self._agents if agent.id not in known]

    def _kept(self, part: Arrival, count: int) -> dict[AgentId, tuple[dict[str, Any], bool, bool]]:
        """Return the agents in a group's committed state as {agent: (its state, stopped, active)}.

        `stopped` is True if the agent has called `stop`. `active` is True if the model is called for the agent even
        without messages.
        """
        if part.state is None:
            return {}
        ids, states, stopped, active = kept_parts(part.state, 4, part.group)
        check_agents(ids == b"".join(map(id_bytes, part.before)), part.group, count)
        ended, awake = frozenset(stopped), range(len(states)) if active is None else frozenset(active)
        kept = enumerate(zip(part.before, states, strict=True))
        return {agent: (state, place in ended, place in awake) for place, (agent, state) in kept}

    def _load(self, step: Step) -> None:
        if self.last_step is not None and not self._stores_states:
            raise step_failed(
                RuntimeError(
                    "the group cannot run a step again, because this run does not store its states: begin the run anew"
                ),
                "the run",
                self.group,
                step.number,
            )
        self.generators = StepGenerators(step.seed, START, step.places)
        self.step = self.open_step = None
        self.number, self.send, self.sends = START, self._refuse, None
        self.drawn, self.seed = {}, step.seed
        new = self.read(step.agents, step.state, step.before, step.arrivals)
        if self._start is not None:
            for agent in new:
                try:
                    agent.state = self._start(agent)
                except RAISED as error:
                    raise self._failed(agent, error, "start") from error
            self._keep(new, "start")

    def _refuse(self, from_id: AgentId, *_arguments: object) -> None:
        raise self.cannot("send", from_id)

    def cannot(self, what: str, agent: AgentId) -> ConfigError:
        """Build the error for an agent that acts outside of the model's function. `what` is the act, such as "send"."""
        where = "in start=" if self.step is None else "in collect=, which may only read"
        return ConfigError(f"agent {agent!r} cannot {what} {where}: do so in the model's function")

    def _keep_states(self, step: Step, called: Sequence[Agent]) -> None:
        """Check the agents' states after a step, and set `step.state` to the encoded states if the run stores them.

        Args: `called` are the agents for which the model was called in the step.
        """
        if self.stopping:
            self._stopped, self.stopping = sorted({*self._stopped, *self.stopping}), set()
        if not self._stores_states:
            self._keep(called)
        elif called or not self._forms:
            step.state = self._encoded(called)
        self._active = sorted(self.staying)

    def _encoded(self, called: Sequence[Agent]) -> bytes:
        """Return the bytes to commit: the ids and states of all agents, and who has stopped or stays active.

        If states may share objects with each other or with the model, the agents get decoded copies of their states, as
        after a restart. With `only_active`, only the states of `called`, the agents for which the model was called, are
        encoded again.
        """
        changed = called if self._forms else self._agents
        encoded = joined_lists(self._keep(changed), len(changed))
        if not self.only_active:
            return _encode((self._ids, msgspec.Raw(encoded), self._stopped, None))
        forms = [form.copy() for form in _parts_of(encoded)]
        if self._forms:
            for agent, form in zip(changed, forms, strict=True):
                self._forms[agent._place] = form
        else:
            self._forms = forms
        return _encode((self._ids, self._forms, self._stopped, sorted(self.staying)))

    def _keep(self, agents: Sequence[Agent], function: str = "the model") -> list[bytes]:
        """Return the encoded states of agents, in blocks of up to BLOCK agents.

        If states of a block may share objects, the block's agents get decoded copies of their states. If the run does
        not store states, a block without such copies is b"".

        Raises: StepFailed for a state that cannot be stored; the error says that `function` made the state.
        """
        return [self._keep_block(block, function, encodes=self._stores_states) for block in _blocks(agents)]

    def _keep_block(self, agents: Sequence[Agent], function: str, *, encodes: bool) -> bytes:
        states = [agent.state for agent in agents]
        kinds = {*map(type, states)}
        for agent in () if kinds <= {dict} else agents:
            self._check_state(agent, function)
        if not encodes and is_kept_exactly(states, kinds):
            return b""
        try:
            encoded, kept = kept_exactly(states, kinds, _STATE)
        except InvalidPayload:
            for agent in agents:
                self._check_state(agent, function)
            raise
        if kept is not states:
            for agent, state in zip(agents, kept, strict=True):
                agent.state = state
        return encoded

    def _check_state(self, agent: Agent, function: str) -> None:
        """Raise StepFailed if an agent's state cannot be stored; the error says that `function` made the state."""
        if not isinstance(agent.state, dict):
            what = "me.state must be" if function == "the model" else f"{function} must return"
            raise self._failed(agent, TypeError(f"{what} a dict, not {type(agent.state).__name__}"), function)
        try:
            encode_exactly(agent.state, _STATE)
        except InvalidPayload as error:
            raise self._failed(agent, error, function) from error

    @property
    def _broken(self) -> MessagingError | None:
        """Return the error of a call through `me.remember` that keeps the step from being committed, or None."""
        return None if self.calls is None else self.calls.memory.broken or self.calls.spent

    def _failed(self, agent: Agent, error: BaseException, function: str = "the model") -> MessagingError:
        return self._broken or step_failed(error, function, self.group, max(agent.step, 0), agent.id)


def _blocks(agents: Sequence[Agent]) -> Iterator[Sequence[Agent]]:
    """Yield the agents in blocks of `BLOCK`. Without agents, yield one empty block."""
    for first in range(0, len(agents) or 1, BLOCK):
        yield agents[first : first + BLOCK]


def kept_parts(state: bytes, count: int, group: str) -> Any:  # noqa: ANN401 - as msgpack has them
    """Decode a group's committed state, and return the list of its `count` parts.

    Raises: ConfigError if there is another number of parts, because a run with another `by=`, or code without a model,
    has written the state.
    """
    parts = decode_exactly(state)
    if not isinstance(parts, list) or len(parts) != count:
        raise ConfigError(
            f"the stored state of group {group!r} does not fit this model: it was written by a model with another by= "
            "('agent' instead of 'group', or the reverse), or by code that drove the group without a model. Resume "
            "with the model with which the run began, or begin anew by on_existing='reset'"
        )
    return parts


def check_agents(same: bool, group: str, count: int) -> None:  # noqa: FBT001 - it is what is checked
    """Raise ConfigError if `same` is False, which means that a group's committed state belongs to other agents.

    For the error's text, `count` is the number of the group's agents in this run.
    """
    if not same:
        raise ConfigError(
            f"group {group!r} began with other agents than its {count:,} agents in this run: resume with the same "
            "agents and groups, or begin anew by on_existing='reset'"
        )


def step_failed(error: BaseException, function: str, group: str, step: int, agent: AgentId | None = None) -> StepFailed:
    """Build the error for a function of the user that failed in a step, for an agent of a group.

    If `agent` is None, the function was called for the whole group.
    """
    kind = "" if isinstance(error, MessagingError) else f"{type(error).__name__}: "
    place = f"group {group!r}" if agent is None else f"agent {agent!r} of group {group!r}"
    trace, where = users_trace(error)
    return StepFailed(
        f"{function} failed for {place} in step {step}, which is not committed: {kind}{error}{where}",
        agent=agent,
        step=step,
        group=group,
        trace=trace,
    )


def users_trace(error: BaseException) -> tuple[str, str]:
    """Return an error's traceback without frames of this package, and where in the user's own code it was raised.

    The second str is such as " (model.py:12)". Both are "" if the traceback has no code of the user.
    """
    whole = TracebackException.from_exception(error)
    each: TracebackException | None = whole
    where = ""
    while each is not None:
        frames = [frame for frame in each.stack if not frame.filename.startswith(_OURS)]
        each.stack = StackSummary.from_list(frames)
        # If the model itself is in an installed package, the first frame of such packages is the model's.
        installed = [frame for frame in frames if "-packages/" in frame.filename][:1]
        own = [frame for frame in frames if not _LIBRARY.search(frame.filename)] or installed
        where = where or "".join(f" ({frame.filename}:{frame.lineno})" for frame in own[-1:])
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    return ("".join(whole.format()).rstrip() if where else ""), where
