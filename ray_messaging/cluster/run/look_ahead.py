"""Look-ahead: agents run steps ahead of time, so that their calls through `me.remember` begin early.

An agent runs a step ahead of time once it has ended the step before, and so have all agents that may send to it. It
runs on a copy of its state, and its inbox has the messages that these agents have sent ahead of time. Nothing of what
it does is committed. Later the step itself runs as always: it calls the model again, and uses the calls through
`me.remember` that are already under way or answered. So the look-ahead cannot change a result. If an agent does
something else in the step itself, for example because a message has come from outside the simulation, some calls were
made in vain.

If it cannot be known what an agent does to other agents, those to which it may send wait until the step itself has
ended.

Groups tell each other which agents have ended steps ahead of time, and what these agents have sent. If such news is
lost, the agents that need it also wait until the step itself has ended.
"""

import asyncio
import inspect
import logging
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AGENT_CHAT, AgentId, check_id, check_subtopic
from ray_messaging.cluster.run.ahead_news import Told, ToldMessage, ToldStep
from ray_messaging.cluster.run.model_thread import Holder, Turns
from ray_messaging.cluster.run.step_calls import CALLS_END_S, RememberedCalls
from ray_messaging.common.awaitables import RAISED
from ray_messaging.errors import ConfigError, NoQuestion
from ray_messaging.message import Message
from ray_messaging.messages import Messages, Slice
from ray_messaging.model.batch import Batch, topic_column
from ray_messaging.model.columns import IdColumn, PayloadColumn, encode_payload
from ray_messaging.model.exact import decode_exactly, encode_exactly
from ray_messaging.model.extension import Extension
from ray_messaging.model.message_ids import MessageIdColumn
from ray_messaging.model.whole_numbers import delivery_step
from ray_messaging.steps.agent_places import NO_PLACES, AgentPlaces
from ray_messaging.steps.call_memory import CallMemory
from ray_messaging.steps.random_numbers import StepGenerators
from ray_messaging.steps.step import Step
from ray_messaging.steps.step_sends import question_id

if TYPE_CHECKING:
    from ray_messaging.cluster.run.agent import Agent, AgentLoop, Model
    from ray_messaging.cluster.run.run_plan import Reached

logger = logging.getLogger(__name__)

MOST_PAUSE: Final = 64  # if calls were made in vain, no agent runs ahead of time for up to this many steps
_END_S: Final = 1.0  # the seconds in which calls through `me.remember` must end after they were cancelled


class Ahead(NamedTuple):
    """The steps that agents may run now, and what they need to run the later ones of these steps ahead of time.

    The keys of `memories` are the current step and the later steps that agents may run ahead of time. The values are
    the stores for the results of calls through `me.remember` in these steps. A payload may have up to `payload_bytes`
    bytes, and a message may be delivered up to `horizon` steps after the step in which it is sent. `tell` is
    `AheadNews.tell`, which tells the other groups what agents have done ahead of time (None: nobody is told).
    """

    memories: dict[int, CallMemory]
    payload_bytes: int
    horizon: int
    tell: Callable[..., None] | None = None

    @property
    def last(self) -> int:
        """Return the number of the last step that agents may run now, or -1 if there is none.

        It is the current step if no agent may run ahead of time.
        """
        return max(self.memories, default=-1)


class _Sent(NamedTuple):
    """A message that an agent has sent ahead of time. Such tuples sort in the order that messages have in an inbox.

    `step` is the step in which the message was sent, and `sender` the agent's key in this order, from `_rank`. The
    other fields are those of a `ToldMessage`.
    """

    step: int
    sender: tuple[int, int, str]
    ordinal: int
    line: bytes
    topic: str
    asks: bool
    answers: str | None


def _rank(agent: AgentId) -> tuple[int, int, str]:
    """Return a key by which ids of agents are sorted as in an inbox: ints come before strs."""
    return (1, 0, agent) if isinstance(agent, str) else (0, agent, "")


class _ToldSent(NamedTuple):
    """What an agent of another group has sent in a step that it ran ahead of time.

    `group` is the agent's group, which told this group the messages in `sent`. `begun` is how often `group` had stopped
    its look-ahead, or begun it anew, before it told them. If `group` has done so again since, `sent` may be wrong.
    """

    group: str
    begun: int
    sent: Sequence[ToldMessage]


class _Circle(NamedTuple):
    """Agents to which exactly the same agents may send, so that they can begin a step at the same time.

    `hearers` has these agents, by their numbers in the look-ahead. `senders` says how many agents may send to each of
    them, where each agent also counts as its own sender.
    """

    senders: int
    hearers: list[int]


class _StepAhead:
    """A step that agents of a group run ahead of time.

    For these agents, this object stands in for the `AgentLoop` and for the `Step`. It only notes what they send.
    `unclear` has the agents, by their numbers in the look-ahead, that did something whose effect on other agents is not
    known here, such as a broadcast.
    """

    step = None  # `Agent.blocked` returns () if this is None
    sends = None

    def __init__(self, look: "LookAhead", number: int, calls: RememberedCalls, ahead: Ahead) -> None:
        society = look.society
        self.rows, self.shared, self.seed = society.rows, society.shared, look.seed
        self.number = number
        self.calls = calls
        self.open_step = self
        self.drawn: dict[int, np.random.Generator] = {}
        self.generators = StepGenerators(look.seed, number, look.places)
        self.moves: dict[AgentId, str] = {}
        self.staying: set[int] = set()
        self.stopping: set[int] = set()
        self.unclear: set[int] = set()
        # By the sender's place: for each of its messages, the recipient, the step of delivery, and the message.
        self.sent: defaultdict[int, list[tuple[AgentId | None, int, _Sent]]] = defaultdict(list)
        self._places = look.places
        self._ahead = ahead

    def send(
        self,
        from_id: AgentId,
        to_id: AgentId | tuple[Any, ...],
        payload: object,
        subtopic: str = AGENT_CHAT,
        deliver_at: int | None = None,
        _place: int | None = None,
    ) -> None:
        """Note a message that an agent sends ahead of time; raise the same errors as `Step.send`."""
        self._note(from_id, check_id(to_id), payload, check_subtopic(subtopic), deliver_at)

    def broadcast(self, from_id: AgentId, *_given: object, **_options: object) -> None:
        """Record that an agent broadcasts. Who will hear it is not known here."""
        self.unclear.add(self._places.place(from_id))

    def ask(
        self,
        from_id: AgentId,
        to_id: AgentId,
        payload: object,
        *,
        subtopic: str = AGENT_CHAT,
        deliver_at: int | None = None,
    ) -> str:
        """Note a question that an agent asks ahead of time; return the id that the question has in the step itself.

        Raises the same errors as `Step.ask`.
        """
        sent = self._note(from_id, to_id, payload, check_subtopic(subtopic), deliver_at, asks=True)
        return question_id(self.number, sent.ordinal, from_id)

    def reply(self, message: Message, payload: object, *, deliver_at: int | None = None) -> None:
        """Note an answer that an agent gives ahead of time; raise the same errors as `Step.reply`."""
        if not message.expects_answer:
            raise NoQuestion(
                f"message {message.id} cannot be answered, because it is not a question: send an ordinary message",
                question=message.id,
                agent=message.to_id,
            )
        assert message.to_id is not None
        topic = message.subtopic or AGENT_CHAT
        self._note(message.to_id, message.from_id, payload, topic, deliver_at, answers=message.id)

    def cannot(self, what: str, agent: AgentId) -> ConfigError:
        """Build the error for an agent that acts outside of the model's function. `what` is the act, such as "send"."""
        return ConfigError(f"agent {agent!r} cannot {what} outside of the model's function: do so in that function")

    def _note(
        self,
        from_id: AgentId,
        to_id: AgentId | None,
        payload: object,
        topic: str,
        deliver_at: int | None,
        *,
        asks: bool = False,
        answers: str | None = None,
    ) -> _Sent:
        line = encode_payload(payload, self._ahead.payload_bytes)
        place = self._places.place(from_id)
        mine = self.sent[place]
        deliver = delivery_step(deliver_at, self.number, self._ahead.horizon)
        sent = _Sent(self.number, _rank(from_id), len(mine), line, topic, asks, answers)
        mine.append((to_id, deliver, sent))
        return sent


class LookAhead:
    """The agents of a group that run in later steps ahead of time.

    Methods are called in the model's event loop, or while that loop does not run. `news` gets each `Told` of another
    group from any thread. Then `take_news` must be called.

    Each agent has a place, which is a number. The group's own agents have the first places. Agents of other groups get
    the following places when they become known here.

    Args: `reached` says to which agents of the group, according to the graph, agents of other groups may send.
    """

    def __init__(
        self, society: "AgentLoop", model: "Model", holder: Holder, concurrency: int, reached: "Reached"
    ) -> None:
        self.society = society
        self.places: AgentPlaces = NO_PLACES
        self.seed = 0
        self._model = model
        self._holder = holder
        self._most = concurrency
        self._reached = reached
        self.news: deque[Told] = deque()
        # What agents of other groups have sent ahead of time, by the step in which they sent it, and by agent.
        self._told: defaultdict[int, dict[AgentId, _ToldSent]] = defaultdict(dict)
        self._begun = Counter[str]()  # by group, how often its look-ahead has stopped or begun anew
        self._to_tell: list[ToldStep] = []
        self._number = -1  # the number of the step that the group itself runs
        # Pairs of sender and hearer that the graph may lack: the sender has sent to the hearer, or will send an answer.
        self._learned: set[tuple[AgentId, AgentId]] = set()
        self._answering: set[AgentId] = set()  # this group's agents that agents of other groups have asked a question
        self._calls_of: Callable[[CallMemory], RememberedCalls] = _nothing
        self._ahead = Ahead({}, 0, 0)
        self._misses = 0
        self._paused_until = -1
        self._in_vain = False  # whether calls were made ahead of time for the last step, which did not need them
        # Whether the next step must begin the look-ahead anew, because an edge was missing (see `_learn`), or because
        # another group has told something else about an agent's step than before.
        self._wrong = False
        self._agents: Sequence[Agent] = []
        self._exp_id = ""
        # The calls through `me.remember` that are still under way for steps that agents no longer run ahead of time.
        self._old: list[RememberedCalls] = []
        self._tasks: dict[int, asyncio.Task[None]] = {}  # the tasks of the agents that run, by the agents' places
        self._forget()

    def _forget(self) -> None:
        self.places = NO_PLACES
        self._far: dict[AgentId, int] = {}  # the places of agents of other groups
        self._far_ids: list[AgentId] = []  # the agents of other groups, in the order of their places
        # The places of this group's agents for which an agent of another group may wait. When one of them ends a step,
        # the other groups are told.
        self._tells: set[int] = set()
        self._steps: dict[int, _StepAhead] = {}
        self._next: list[int] = []  # by the agent's place, the next step that the agent may end ahead of time
        self._running: dict[int, int] = {}  # by the agent's place, the step that the agent runs now
        self._states: list[dict[str, Any]] = []
        self._stopped: list[bool] = []
        self._active: list[bool] = []
        self._circles: list[_Circle] = []
        # By the agent's place, the indexes of those `_circles` to whose hearers the agent may send.
        self._circles_of: list[list[int]] = []
        # By the agent's place, the places of all agents that may send to it, and its own place.
        self._senders: list[frozenset[int]] = []
        # By step and index of a circle, how many of the circle's senders have ended the preceding step.
        self._ended: defaultdict[int, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
        self._inboxes: defaultdict[int, defaultdict[int, list[_Sent]]] = defaultdict(lambda: defaultdict(list))
        # By step and agent's place, how many messages the agent had in its inbox when it ran the step ahead of time.
        self._counts: defaultdict[int, dict[int, int]] = defaultdict(dict)
        # By the agent's place: the agent's inbox in the step that the group itself runs now, for the agent's copy. The
        # inbox is removed when the copy begins this step.
        self._real: dict[int, Messages] = {}
        self._ready: list[tuple[int, int]] = []  # a heap of (step, place of an agent that may begin this step)
        # By step, the places of agents that can begin this step, but wait until `_ahead.last` has reached it.
        self._held: defaultdict[int, list[int]] = defaultdict(list)

    # -- the step that the group itself runs ----------------------------------------------------------------------

    def begin(
        self,
        step: Step,
        agents: "Sequence[Agent]",
        called: NDArray[np.intp] | slice,
        ahead: Ahead,
        calls_of: Callable[[CallMemory], RememberedCalls],
        *,
        anew: bool,
    ) -> None:
        """Let agents run in later steps ahead of time, while the group itself runs `step`, and after that.

        Args: `agents` are the group's agents. `called` selects, by their indexes, those for which the model is called
        in `step`. `ahead` says which steps may run. `calls_of` makes the object that handles a step's calls through
        `me.remember`. With `anew`, the step runs again, or the step before it ran in another process, so that what
        agents have done ahead of time is dropped.
        """
        number = self._number = step.number
        self._calls_of = calls_of
        self._ahead = ahead
        changed = anew or step.places.agents != self.places.agents
        self.take_news()
        if changed or ahead.last <= number or self._wrong or self._differs(step):
            self.stop()
        self._pause(number)
        if ahead.last <= number or number < self._paused_until:
            return
        if self.places is NO_PLACES:
            self._start(step, number)
        self._agents, self._exp_id = agents, step.messages.exp_id
        for old in [each for each in self._steps if each < number]:
            self._retire(self._steps.pop(old))
        self._next[len(self.places) :] = [max(each, number) for each in self._next[len(self.places) :]]
        kept: dict[int, Any]
        for kept in (self._ended, self._inboxes, self._counts, self._held):
            for old in [each for each in kept if each < number]:
                del kept[old]
        if all(self._waits):
            return
        self._seed(step, number, agents, called)
        for held in [each for each in self._held if each <= ahead.last]:
            for place in self._held.pop(held):
                heappush(self._ready, (held, place))
        self._pump()

    def _start(self, step: Step, number: int) -> None:
        self.places, self.seed = step.places, step.seed
        senders = self._senders_by_graph()
        self._tells.update(place for agent in self._answering if (place := step.places.place(agent)) >= 0)
        # Agents to which exactly the same agents may send form one circle.
        together: dict[frozenset[int], list[int]] = {}
        for place, of_place in enumerate(senders):
            together.setdefault(frozenset(of_place), []).append(place)
        count = len(step.places)
        self._circles = [_Circle(len(found), hearers) for found, hearers in together.items()]
        self._circles_of = [[] for _ in range(count + len(self._far))]
        for circle, found in enumerate(together):
            for place in found:
                self._circles_of[place].append(circle)
        self._senders = [frozenset[int]()] * count
        for found, hearers in together.items():
            for place in hearers:
                self._senders[place] = found
        self._waits = [len(found) == self._reached.everybody for found in self._senders]
        self._next = [number] * (count + len(self._far))
        self._states, self._stopped, self._active = [{}] * count, [False] * count, [True] * count
        if self._ahead.tell is not None:
            self._ahead.tell([], anew=True)
        for told in sorted(self._told):
            # What a group told before its look-ahead stopped or began anew may be wrong, so it is dropped.
            known = {agent: each for agent, each in self._told[told].items() if each.begun == self._begun[each.group]}
            self._told[told] = known
            for agent, each in known.items():
                self._hear(agent, told, each.sent)

    def _senders_by_graph(self) -> list[set[int]]:
        """Return, for each of the group's agents, the agents that may send to it, and the agent itself.

        Agents are given by their places. Also add the group's agents that may send to other groups to `_tells`.
        """
        place_of = self.places.place
        senders = [{place} for place in range(len(self.places))]
        pairs = ((agent, other) for agent, (_, others) in self.society.rows.items() for other in others)
        far = ((agent, other) for other, agents in self._reached.senders.items() for agent in agents)
        for sender, hearer in chain(pairs, far, self._learned):
            place, to = place_of(sender), place_of(hearer)
            if to >= 0:
                senders[to].add(place if place >= 0 else self._far_place(sender))
            elif place >= 0:
                self._tells.add(place)
        return senders

    def _far_place(self, agent: AgentId) -> int:
        """Return the place of an agent of another group: the number by which this look-ahead refers to the agent.

        An agent without a place gets the next free one.
        """
        found = self._far.get(agent)
        if found is None:
            found = self._far[agent] = len(self.places) + len(self._far)
            self._far_ids.append(agent)
            if self._next:
                self._next.append(self._number)
                self._circles_of.append([])
        return found

    def _id(self, place: int) -> AgentId:
        count = len(self.places)
        return self.places[place] if place < count else self._far_ids[place - count]

    def _seed(self, step: Step, number: int, agents: "Sequence[Agent]", called: NDArray[np.intp] | slice) -> None:
        """Let copies of agents begin the step `number`, which the group itself runs now.

        The copies have the states and inboxes that the agents have in this step. Agents for which people act, and
        agents that run this step ahead of time, or have done so, are left out.
        """
        counts = step.heard_counts
        seeds = [
            place
            for place, following in enumerate(self._next[: len(self.places)])
            if following <= number and self._running.get(place) != number
        ]
        if not seeds:
            return
        copies = decode_exactly(encode_exactly([agents[place].state for place in seeds], "me.state"))
        runs = range(len(agents)) if isinstance(called, slice) else {*called.tolist()}
        for place, state in zip(seeds, copies, strict=True):
            self._cancel(place)
            self._next[place], self._states[place] = number, state
            self._stopped[place] = agents[place].stopped
            self._counts[number][place] = int(counts[place])
            if step.places[place] in self.society.seats:
                self._next[place] = number + 1  # nobody knows what a person will do
            elif place in runs:
                self._real[place] = step.inbox(step.places[place])
                heappush(self._ready, (number, place))
            else:
                self._active[place] = False
                self._end(place, number, ())

    def _differs(self, step: Step) -> bool:
        """Return whether an agent has fewer or more messages in a step than it read when it ran the step ahead of time.

        For each such agent, also record who has sent it messages in this step: from now on these senders count as
        agents that may send to it, because the graph may have no edge from them.
        """
        counts = step.heard_counts
        places = [place for place, count in self._counts.get(step.number, {}).items() if counts[place] != count]
        for hearer in (step.places[place] for place in places):
            for message in step.inbox(hearer):
                if message.from_id is not None:
                    self._learned.add((message.from_id, hearer))
        return bool(places)

    def _pause(self, number: int) -> None:
        """If calls through `me.remember` were made in vain, let no agent run ahead of time for some steps.

        Each time that this happens, the number of these steps doubles, up to MOST_PAUSE.
        """
        if not self._in_vain:
            return
        self._in_vain = False
        if not self._misses:
            logger.warning(
                "agents of group %r do something else in step %d than when they ran ahead, so some calls were made in "
                "vain: give graph= an edge for each pair of agents that write to each other, and let the model depend "
                "on nothing but me and its inbox",
                self.society.group, number,
            )  # fmt: skip
        self._misses += 1
        self._paused_until = number + min(2**self._misses, MOST_PAUSE)
        self.stop()

    def unneeded(self) -> None:
        """Record that calls through `me.remember` were made ahead of time for a step that ended without using them."""
        self._in_vain = True

    def stop(self) -> set[asyncio.Task[Any]]:
        """Let no agent run ahead of time until the next call of `begin`, and forget what agents did ahead of time.

        Calls through `me.remember` that are under way go on. Return their tasks.
        """
        for each in self._steps.values():
            self._retire(each)
        for place in [*self._tasks]:
            self._cancel(place)
        self._to_tell.clear()
        if self.places is not NO_PLACES and self._ahead.tell is not None:
            self._ahead.tell([], anew=True)
        self._forget()
        self._wrong = False
        return {task for calls in self._old for task in calls.under_way}

    async def end(self, closed: int) -> None:
        """Stop running agents ahead of time, and wait until the calls through `me.remember` have ended.

        Calls for steps after `closed`, the last step that the group has ended, are still needed if the run goes on
        later. So these calls get CALLS_END_S seconds to end, and their results are kept. All other calls are cancelled,
        and get _END_S seconds to end.
        """
        self.stop()
        wanted: set[asyncio.Task[Any]] = set()
        for calls in self._old:
            if calls.memory.step > closed:
                wanted |= calls.under_way
            else:
                for task in calls.under_way:
                    task.cancel()
        if wanted:
            await asyncio.wait(wanted, timeout=CALLS_END_S)
        left = {task for calls in self._old for task in calls.under_way}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=_END_S)

    def end_after(self, last: int) -> None:
        """Let no agent run in steps after `last`, until a later call of `begin` allows it again."""
        memories = self._ahead.memories
        self._ahead = self._ahead._replace(memories={step: memories[step] for step in memories if step <= last})
        for place in [place for place, number in self._running.items() if number > last]:
            self._cancel(place)

    @property
    def listens(self) -> bool:
        """Return whether agents of other groups may send to agents of this group, so that news must be read."""
        return bool(self._far)

    @property
    def is_busy(self) -> bool:
        """Return whether agents run ahead of time now, or calls through `me.remember` of stopped steps are under way.

        A step is stopped if agents no longer run it ahead of time.
        """
        return bool(self._tasks or any(calls.under_way for calls in self._old))

    def _retire(self, step: _StepAhead) -> None:
        step.calls.ending = True  # calls that are under way go on, even if their agents are cancelled
        self._old = [calls for calls in (*self._old, step.calls) if calls.under_way]

    def _cancel(self, place: int) -> None:
        self._running.pop(place, None)
        if (task := self._tasks.pop(place, None)) is not None:
            task.cancel()

    # -- steps ahead of time --------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Let agents begin steps ahead of time, as many agents as the limits allow, and the earliest steps first."""
        while self._ready and len(self._tasks) < self._most:
            number, place = heappop(self._ready)
            if number > self._ahead.last:
                self._held[number].append(place)
                continue
            if self._next[place] != number or place in self._running:
                continue
            inbox = self._real.pop(place, None)
            if inbox is None:
                sent = self._inboxes[number].pop(place, [])
                self._counts[number][place] = len(sent)
                if self._stopped[place] or not (self._active[place] or sent):
                    self._end(place, number, ())
                    continue
                inbox = self._messages(place, number, sent)
            self._running[place] = number
            run = self._run(place, number, inbox)
            self._tasks[place] = asyncio.create_task(run, name="ray_messaging look-ahead")

    async def _run(self, place: int, number: int, inbox: Messages) -> None:
        from ray_messaging.cluster.run.agent import Agent  # noqa: PLC0415 - it imports this module

        mine, step = asyncio.current_task(), self._step(number)
        agent = Agent(cast("AgentLoop", step), self.places[place], place, self._agents[place].kind)
        agent.state = self._states[place]
        state: dict[str, Any] | None = None
        try:
            answer = self._model(agent, inbox)
            if inspect.isawaitable(answer):
                answer = await Turns(answer, self._holder, agent, "the model")
            if answer is None and isinstance(agent.state, dict):
                state = decode_exactly(encode_exactly(agent.state, "me.state"))
        except RAISED:
            if self._tasks.get(place) is not mine:  # the task was cancelled
                raise
            # The error is ignored here. When the group runs this step itself, the model raises the error again.
        if self._tasks.get(place) is not mine:
            return
        del self._tasks[place], self._running[place]
        if state is None or place in step.unclear or agent.id in step.moves:
            self._next[place] = number + 1  # agents to which this agent may send wait for the real step
        else:
            self._states[place], self._stopped[place] = state, agent.stopped
            self._active[place] = not self.society.only_active or place in step.staying
            self._end(place, number, step.sent.pop(place, ()))
        self._pump()

    def _step(self, number: int) -> _StepAhead:
        found = self._steps.get(number)
        if found is None:
            calls = self._calls_of(self._ahead.memories[number])
            found = self._steps[number] = _StepAhead(self, number, calls, self._ahead)
        return found

    def _end(self, place: int, number: int, sent: Iterable[tuple[AgentId | None, int, _Sent]]) -> None:
        """Note that an agent has ended the step `number` ahead of time, and what it has sent.

        Agents that have waited only for this agent become ready for the next step, or are held until `_ahead.last` has
        reached that step.

        Args: `place` is the agent's number in this look-ahead. Each item of `sent` is a recipient, the step of
        delivery, and the message.
        """
        self._next[place] = following = number + 1
        far = self._deliver(place, sent)
        if self._ahead.tell is not None and (far or place in self._tells):
            self._tell(ToldStep(self.places[place], number, far))
        ended = self._ended[following]
        for number_of in self._circles_of[place]:
            ended[number_of] += 1
            circle = self._circles[number_of]
            if ended[number_of] < circle.senders:
                continue
            for to in circle.hearers:
                if self._waits[to]:
                    continue
                if following <= self._ahead.last:
                    heappush(self._ready, (following, to))
                else:
                    self._held[following].append(to)

    def _deliver(self, place: int, sent: Iterable[tuple[AgentId | None, int, _Sent]]) -> list[ToldMessage]:
        """Put what an agent has sent ahead of time into the inboxes of its recipients in this group.

        Return the messages to agents of other groups, or [] if the sender itself is in another group.

        Args: `place` is the sender's number in this look-ahead. Each item of `sent` is a recipient, the step of
        delivery, and the message.
        """
        count, far = len(self.places), list[ToldMessage]()
        for to_id, deliver, message in sent:
            to = -1 if to_id is None else self.places.place(to_id)
            if to >= 0:
                if self._next[to] > deliver or self._running.get(to) == deliver:
                    self._learn(place, to)  # the recipient did not wait for the message
                self._inboxes[deliver][to].append(message)
            elif to_id is not None and place < count:
                far.append(ToldMessage(to_id, deliver, *message[2:]))
                to = self._far_place(to_id) if message.asks else to
            if message.asks and to >= 0:  # the recipient will send an answer
                self._learn(to, place)
        return far

    # -- news from and for other groups ---------------------------------------------------------------------------

    def _tell(self, step: ToldStep) -> None:
        if not self._to_tell:
            asyncio.get_running_loop().call_soon(self._tell_all)
        self._to_tell.append(step)

    def _tell_all(self) -> None:
        steps, self._to_tell = self._to_tell, []
        if steps and self._ahead.tell is not None:
            self._ahead.tell(steps)

    def take_news(self) -> None:
        """Read what other groups have told in `news`, and let agents go on that have waited only for this news."""
        for old in [each for each in self._told if each < self._number]:
            del self._told[old]
        while self.news:
            _, group, anew, steps = self.news.popleft()
            self._begun[group] += anew
            for agent, number, sent in steps:
                before = self._told[number].get(agent)
                self._told[number][agent] = _ToldSent(group, self._begun[group], sent)
                if before is None and self.places is not NO_PLACES:
                    self._hear(agent, number, sent)
                elif before is not None and before.sent != sent:
                    self._wrong = True
        self._pump()

    def _hear(self, agent: AgentId, number: int, sent: Sequence[ToldMessage]) -> None:
        """Note that an agent of another group has ended step `number` ahead of time, and what it sent in this step."""
        if self.places.place(agent) >= 0:  # the agent has moved to this group
            return
        place, rank = self._far_place(agent), _rank(agent)
        messages = [(each.to, each.deliver, _Sent(number, rank, *each[2:])) for each in sent]
        if number >= self._next[place]:
            self._end(place, number, messages)
        else:  # step `number` has ended, so only its messages for steps after the current one are not yet delivered
            self._deliver(place, [each for each in messages if each[1] > self._number])

    def _learn(self, sender: int, hearer: int) -> None:
        """Note that one agent may send to another, the hearer, although the graph may have no edge between them.

        If the hearer is in this group, the next step begins the look-ahead anew with this edge, unless the edge was
        known. If the hearer is in another group, that group is told from now on which steps the sender has ended.

        Args: `sender` and `hearer` are the agents' numbers in this look-ahead.
        """
        if hearer >= len(self.places):
            self._tells.add(sender)
            self._answering.add(self.places[sender])
        elif sender not in self._senders[hearer]:
            self._learned.add((self._id(sender), self._id(hearer)))
            self._wrong = True

    def _messages(self, place: int, number: int, sent: list[_Sent]) -> Messages:
        """Return the inbox of an agent in the step `number`, which it runs ahead of time.

        The inbox has the messages `sent`, in the order that they have in the step itself.

        Args: `place` is the agent's number in this look-ahead.
        """
        if not sent:
            return Messages(self._exp_id, [])
        sent.sort()
        count = len(sent)
        topics = {each.topic: None for each in sent}
        table = {name: at for at, name in enumerate(topics)}
        answers = MessageIdColumn.of([each.answers for each in sent]) if any(each.answers for each in sent) else None
        asks = np.array([each.asks for each in sent]) if any(each.asks for each in sent) else None
        batch = Batch(
            sender=self.society.group,
            epoch=0,
            first=0,
            from_ids=IdColumn.of([each.sender[2 if each.sender[0] else 1] for each in sent]),
            to_ids=IdColumn.of([self.places[place]] * count),
            topics=(*table,),
            topic=topic_column([table[each.topic] for each in sent], len(table)) if len(table) > 1 else None,
            step=np.array([each.step for each in sent], np.int64),
            sent_at=time.time(),
            lines=PayloadColumn.of([each.line for each in sent]),
            rows=count,
            extension=Extension(
                deliver=number,
                ordinal=np.array([each.ordinal for each in sent], np.uint32),
                in_reply_to=answers,
                expects_answer=asks,
            ),
        )
        return Messages(self._exp_id, [Slice(batch, 0, count)])


def _nothing(_memory: CallMemory) -> RememberedCalls:
    raise AssertionError
