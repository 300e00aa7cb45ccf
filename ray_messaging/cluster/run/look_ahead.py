"""Look-ahead: agents run in later steps ahead of time, so that their remembered calls are under way early.

An agent runs ahead in a step once it has ended the step before, and all agents that may send to it have, too. It runs
on a copy of its state, with the messages that these agents have sent ahead. Nothing of what it does is committed: later
the step itself runs as always, calls the model again, and finds the calls under way or answered. So what runs ahead can
change no result. If it is wrong, for example because of a message from outside, a call was made in vain.

Where it cannot be known what an agent does to others, the agents that it may reach wait for the step itself.

Groups tell each other which agents have ended steps ahead, and what these have sent. If such news is lost, agents also
wait for the step itself.
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
from ray_messaging.steps.agent_places import NO_PLACES, AgentPlaces
from ray_messaging.steps.call_memory import CallMemory
from ray_messaging.steps.random_numbers import StepGenerators
from ray_messaging.steps.step import Step
from ray_messaging.steps.step_sends import question_id

if TYPE_CHECKING:
    from ray_messaging.cluster.run.agent import Agent, AgentLoop, Model
    from ray_messaging.cluster.run.run_plan import Reached

logger = logging.getLogger(__name__)

MOST_PAUSE: Final = 64  # after wrong guesses nothing runs ahead for up to this many steps
_END_S: Final = 1.0  # calls that were cancelled get this time to end


class Ahead(NamedTuple):
    """How far agents may run ahead of the open step, and where results of their calls are kept.

    The calls are those through `me.remember`.

    `memories` has, by step, the store of results, for the open step and the later steps that may run ahead. `tell` is
    `AheadNews.tell`, which tells the other groups about agents that run ahead (None: there are no other groups).
    """

    memories: dict[int, CallMemory]
    payload_bytes: int
    horizon: int
    tell: Callable[..., None] | None = None

    @property
    def last(self) -> int:
        """Return the number of the last step that agents may run ahead of time, or -1 if there is none."""
        return max(self.memories, default=-1)


class _Sent(NamedTuple):
    """A message that an agent has sent ahead of time. Such tuples sort in the order that messages have in an inbox.

    `step` is the step in which it was sent. The other fields are those of a `ToldMessage`.
    """

    step: int
    sender: tuple[int, int, str]  # the key by which ids are sorted, see `_rank`
    ordinal: int
    line: bytes
    topic: str
    asks: bool
    answers: str | None


def _rank(agent: AgentId) -> tuple[int, int, str]:
    """Return the sort key of an id in the canonical order: ints come before strs."""
    return (1, 0, agent) if isinstance(agent, str) else (0, agent, "")


class _ToldSent(NamedTuple):
    """What an agent of another group has sent when it ran ahead in a later step.

    `begun` says how often the agent's `group` had begun anew to run ahead. What was told before that may be wrong.
    """

    group: str
    begun: int
    sent: Sequence[ToldMessage]


class _Circle(NamedTuple):
    """Agents (`hearers`, by their numbers in the look-ahead) to which exactly the same agents may send.

    `senders` is the number of the agents that may send to them.
    """

    senders: int
    hearers: list[int]


class _StepAhead:
    """A step that runs ahead: it takes the place of the group's `AgentLoop`, and of the open step, for its agents.

    `unclear` has those agents, by number, that did something whose effect on other agents is not known here.
    """

    step = None  # agents that run ahead see no messages as blocked
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
        # By the sender's place: the recipient, the step of delivery, the message.
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
        """Note that an agent broadcasts. Its hearers are not known here."""
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
        """Note a question that an agent asks ahead of time; return the id that it will have.

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
        deliver = self.number + 1 if deliver_at is None else int(deliver_at)
        if not self.number < deliver <= self.number + self._ahead.horizon:
            raise ConfigError(
                f"deliver_at={deliver_at!r} must be after step {self.number}, and not too far ahead of it"
            )
        sent = _Sent(self.number, _rank(from_id), len(mine), line, topic, asks, answers)
        mine.append((to_id, deliver, sent))
        return sent


class LookAhead:
    """The agents of a group that run in later steps ahead of time.

    All methods except `prepare` are called in the model's event loop.

    Each agent has a place, which is a number. The group's own agents have the first places. Agents of other groups get
    the following places when they become known here.

    Args: `reached` says to which agents of the group, according to the graph, agents of other groups may send.

    The caller appends what other groups tell about their agents (`Told`) to `news`, and then calls `take_news`.
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
        # What other groups have told, by step and agent.
        self._told: defaultdict[int, dict[AgentId, _ToldSent]] = defaultdict(dict)
        self._begun = Counter[str]()  # by group, how often its look-ahead has begun anew
        self._to_tell: list[ToldStep] = []
        self._number = -1  # the open step
        self._learned: set[tuple[AgentId, AgentId]] = set()  # edges that the graph does not have
        self._answering: set[AgentId] = set()  # agents whom agents of other groups have asked
        self._calls_of: Callable[[CallMemory], RememberedCalls] = _nothing
        self._ahead = Ahead({}, 0, 0)
        self._misses = 0
        self._paused_until = -1
        self._in_vain = False  # calls of the last step were made in vain
        self._wrong = False  # an edge is known now that was not known when agents began to run ahead
        self._agents: Sequence[Agent] = []
        self._exp_id = ""
        self._old: list[RememberedCalls] = []  # the calls of steps that are no longer run ahead
        self._tasks: dict[int, asyncio.Task[None]] = {}  # the tasks of the agents that run, by the agents' places
        self._forget()

    def _forget(self) -> None:
        self.places = NO_PLACES
        self._far: dict[AgentId, int] = {}  # the places of agents of other groups
        self._far_ids: list[AgentId] = []  # these agents, in the order of their places
        self._tells: set[int] = set()  # the places of agents for which agents of other groups may wait
        self._steps: dict[int, _StepAhead] = {}
        self._next: list[int] = []  # by the agent's place, the first step that the agent is not known to have ended
        self._running: dict[int, int] = {}  # by the agent's place, the step in which it runs
        self._states: list[dict[str, Any]] = []
        self._stopped: list[bool] = []
        self._active: list[bool] = []
        self._circles: list[_Circle] = []
        self._circles_of: list[list[int]] = []  # by the agent's place, the circles to which it may send
        # By the agent's place, the places of all agents that may send to it, and its own place.
        self._senders: list[frozenset[int]] = []
        # By step and circle: how many of the circle's senders have ended the step before.
        self._ended: defaultdict[int, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
        self._inboxes: defaultdict[int, defaultdict[int, list[_Sent]]] = defaultdict(lambda: defaultdict(list))
        # By step and agent's place, how many messages it read.
        self._counts: defaultdict[int, dict[int, int]] = defaultdict(dict)
        self._real: dict[int, Messages] = {}  # the inboxes of the open step, by the agents' places
        self._ready: list[tuple[int, int]] = []  # a heap of (step, agent's place) that may begin
        # By step, the places of agents that wait until this step may run ahead.
        self._held: defaultdict[int, list[int]] = defaultdict(list)

    # -- of the open step -----------------------------------------------------------------------------------------

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
        """Begin to let agents run in later steps ahead of time, while the model runs for `step`, and after that.

        Args: `agents` are the group's agents. `called` selects those for which the model is called in `step`.
        `calls_of` makes the object that handles a step's calls through `me.remember`. With `anew`, the step runs again,
        or the step before it ran in another process.
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
        # Agents that hear exactly the same agents wait for them together, as one circle.
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
            # What a group has not told again since it began anew may be wrong.
            known = {agent: each for agent, each in self._told[told].items() if each.begun == self._begun[each.group]}
            self._told[told] = known
            for agent, each in known.items():
                self._hear(agent, told, each.sent)

    def _senders_by_graph(self) -> list[set[int]]:
        """Return, for each of the group's agents, the agents that may send to it, and itself, all as numbers.

        These numbers are the places of agents in this look-ahead.
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
        """Return the number of an agent of another group in this look-ahead; give it one if it has none.

        These numbers come after those of the group's own agents.
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
        """Let agents begin the open step, with its states and inboxes, if they have not run ahead that far."""
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
        """Return whether an agent read fewer or more messages when it ran ahead than it has in the step itself."""
        counts = step.heard_counts
        places = [place for place, count in self._counts.get(step.number, {}).items() if counts[place] != count]
        for hearer in (step.places[place] for place in places):
            for message in step.inbox(hearer):
                if message.from_id is not None:
                    self._learned.add((message.from_id, hearer))
        return bool(places)

    def _pause(self, number: int) -> None:
        """If calls through `me.remember` were made in vain, let nothing run ahead for some steps.

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
        """Record that calls through `me.remember` were made ahead of a step that has ended and did not need them."""
        self._in_vain = True

    def stop(self) -> set[asyncio.Task[Any]]:
        """Let no agent run in a later step ahead of time any more.

        Return the tasks of the calls through `me.remember` that are under way.
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
        """Stop running agents ahead of time.

        Calls through `me.remember` for steps after `closed`, the last closed step, cost money even if they are given
        up. So they get some time to end, and their results are kept.
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
        """Return whether agents of other groups may send to agents of this group, so that their news must be read."""
        return bool(self._far)

    @property
    def is_busy(self) -> bool:
        """Return whether agents run ahead of the open step now, or calls that they have made there are under way.

        The calls are those through `me.remember`.
        """
        return bool(self._tasks or any(calls.under_way for calls in self._old))

    def _retire(self, step: _StepAhead) -> None:
        step.calls.ending = True  # calls that are under way go on, even if their agents are cancelled
        self._old = [calls for calls in (*self._old, step.calls) if calls.under_way]

    def _cancel(self, place: int) -> None:
        self._running.pop(place, None)
        if (task := self._tasks.pop(place, None)) is not None:
            task.cancel()

    # -- ahead ----------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Let agents begin to run ahead of time, as many as the limits allow, those in the earliest step first."""
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
            # The step itself raises the error.
        if self._tasks.get(place) is not mine:
            return
        del self._tasks[place], self._running[place]
        if state is None or place in step.unclear or agent.id in step.moves:
            self._next[place] = number + 1  # the agents that it may reach wait for the step itself
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

        Return the messages to agents of other groups, or [] if the sender itself is in another group. `place` is the
        sender's number in this look-ahead, and `sent` is as for `_end`.
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

    # -- of other groups ------------------------------------------------------------------------------------------

    def _tell(self, step: ToldStep) -> None:
        if not self._to_tell:
            asyncio.get_running_loop().call_soon(self._tell_all)
        self._to_tell.append(step)

    def _tell_all(self) -> None:
        steps, self._to_tell = self._to_tell, []
        if steps and self._ahead.tell is not None:
            self._ahead.tell(steps)

    def take_news(self) -> None:
        """Take note of what other groups have told about their agents that run ahead, and remove it from `news`."""
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
        """Note that an agent of another group has ended a step, and what it has sent."""
        if self.places.place(agent) >= 0:  # it has come to this group
            return
        place, rank = self._far_place(agent), _rank(agent)
        messages = [(each.to, each.deliver, _Sent(number, rank, *each[2:])) for each in sent]
        if number >= self._next[place]:
            self._end(place, number, messages)
        else:  # the step itself has ended, and the inboxes of the open step have what it has sent
            self._deliver(place, [each for each in messages if each[1] > self._number])

    def _learn(self, sender: int, hearer: int) -> None:
        """Note that one agent sends to another although the graph has no edge between them.

        When the next step begins, the look-ahead begins anew with this edge.
        """
        if hearer >= len(self.places):
            self._tells.add(sender)
            self._answering.add(self.places[sender])
        elif sender not in self._senders[hearer]:
            self._learned.add((self._id(sender), self._id(hearer)))
            self._wrong = True

    def _messages(self, place: int, number: int, sent: list[_Sent]) -> Messages:
        """Return an inbox with the messages `sent` ahead of time, in the order that they will have in the step.

        Args: the inbox is that of the agent with the number `place` in this look-ahead, in the step `number`.
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
