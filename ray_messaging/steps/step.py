"""One open step of a group, and its parts."""

import html
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AGENT_CHAT, AgentId, check_id
from ray_messaging.audiences.book import name_of
from ray_messaging.audiences.heard import Heard
from ray_messaging.conversations.replies import naming, note_replied
from ray_messaging.errors import ConfigError, InvalidParts, UnknownName
from ray_messaging.message import Message
from ray_messaging.messages import Messages, Slice
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.columns import IdColumn
from ray_messaging.model.joining import joined_arrays, joined_ids
from ray_messaging.steps.agent_places import AgentPlaces
from ray_messaging.steps.inbox import StepInbox
from ray_messaging.steps.moved_agents import Arrival
from ray_messaging.steps.random_numbers import StepGenerators, agent_generator, uniform_rows
from ray_messaging.steps.step_moves import StepMoves
from ray_messaging.steps.step_routes import StepQuestionIds
from ray_messaging.steps.step_sends import StepSends
from ray_messaging.transaction import check_state


class StepPart:
    """Some agents of a step with their messages, for another task: `step.split` makes it, `step.join` takes its sends.

    It pickles as columns. The task returns it, or only its `sends`, which are less where the agents read much.
    """

    def __init__(self, number: int, *, seed: int, agents: AgentPlaces, inbox: StepInbox, sends: StepSends) -> None:
        self.number = number
        self.sends = sends
        self.seed = seed
        self.places = agents
        self._inbox = inbox
        self.send = sends.send  # a method here would be one call more: a tenth of the whole send
        self.generators = StepGenerators(seed, number, agents)

    def __repr__(self) -> str:
        sizes = f"{len(self.places):,} agents, {len(self.messages):,} messages"
        return f"{type(self).__name__}({self.number}, {sizes})"

    def _repr_html_(self) -> str:
        return f"<p><b>{html.escape(repr(self))}</b></p>{self.messages._repr_html_()}"

    @property
    def agents(self) -> Sequence[AgentId]:
        """Return the agents, ascending: ints before strs."""
        return self.places

    @property
    def messages(self) -> Messages:
        """Return all messages for the agents, in canonical order: by (to_id, step sent, from_id, n-th send)."""
        return self._inbox.messages

    def by_agent(self) -> Iterator[tuple[AgentId, Messages]]:
        """Yield each agent with its messages, agents ascending; also agents without messages."""
        return self._inbox.by_agent()

    def inbox(self, agent: AgentId) -> Messages:
        """Return the messages of one agent; raise UnknownName where it is none of these, InvalidAddress."""
        place = self.places.place(check_id(agent))
        if place < 0:
            raise UnknownName(
                f"agent {agent!r} is none of the {len(self.places):,} agents of this step's group or part", name=agent
            )
        return self._inbox.of(place)

    def rng(self, agent: AgentId) -> np.random.Generator:
        """Return the random numbers of one agent in this step; each call begins them anew. Raises InvalidAddress."""
        place = self.places.place(agent if type(agent) is int else check_id(agent))
        return self.generators.at(place) if place >= 0 else agent_generator(self.seed, self.number, check_id(agent))

    def uniform(self, k: int = 1) -> NDArray[np.float64]:
        """Return k uniform random numbers in [0, 1) for each agent, float64 (n, k), rows as in `agents`.

        Raises: ConfigError unless k is a number of at least 0.
        """
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 0:
            raise ConfigError(f"uniform({k!r}): write how many numbers each agent gets")
        return uniform_rows(self.seed, self.number, self.places, k)

    def send_columns(
        self,
        from_ids: object,
        to_ids: object,
        payloads: object,
        *,
        subtopic: str = AGENT_CHAT,
        deliver_at: int | None = None,
    ) -> None:
        """Send n messages given as columns, as `Messager.send_columns` takes them; raises as `send`."""
        self.sends.add_columns(from_ids, to_ids, payloads, subtopic, deliver_at)

    def broadcast(
        self,
        from_id: AgentId,
        audience: object,
        payload: object,
        *,
        subtopic: str = AGENT_CHAT,
        deliver_at: int | None = None,
    ) -> None:
        """Send one message to all hearers of an agent in an audience, by its handle or name.

        Raises: as `send`, and UnknownName for an audience that does not count in this step.
        """
        self.sends.broadcast(from_id, audience, payload, subtopic, deliver_at)

    def broadcast_columns(
        self,
        from_ids: object,
        audience: object,
        payloads: object,
        *,
        subtopic: str = AGENT_CHAT,
        deliver_at: int | None = None,
    ) -> None:
        """Send n broadcasts given as columns; raises as `broadcast`, and InvalidColumns."""
        self.sends.add_broadcasts(from_ids, audience, payloads, subtopic, deliver_at)

    def heard(self, audience: object) -> Heard:
        """Return the broadcasts to an audience, as the agents hear them: means, sums, columns in the order of `agents`.

        They are among `messages`, too, which makes an object of each only when it is read.

        Raises: UnknownName for what names no audience; ConfigError in a part of a step, or after a change between
        the broadcasts.
        """
        return self._inbox.heard(name_of(audience))

    def ask(
        self,
        from_id: AgentId,
        to_id: AgentId,
        payload: object,
        *,
        subtopic: str = AGENT_CHAT,
        deliver_at: int | None = None,
    ) -> str:
        """Ask an agent in the next step, or in `deliver_at`; return the question's id.

        The answer has that id as its `in_reply_to`. One that is given at once is read in the step after the question
        is. Raises as `send`.
        """
        return self.sends.ask(from_id, to_id, payload, subtopic, deliver_at)

    def ask_columns(
        self,
        from_ids: object,
        to_ids: object,
        payloads: object,
        *,
        subtopic: str = AGENT_CHAT,
        deliver_at: int | None = None,
    ) -> Sequence[str]:
        """Ask n agents, with columns as of `send_columns`; return the questions' ids. Raises as `send_columns`."""
        senders, ordinals = self.sends.add_columns(from_ids, to_ids, payloads, subtopic, deliver_at, asks=True)
        return StepQuestionIds(self.number, joined_ids(senders), joined_arrays(ordinals))

    def reply(self, message: Message, payload: object, *, deliver_at: int | None = None) -> None:
        """Answer a question that this step has read; the answer is read in the next step, or in `deliver_at`.

        Raises: NoQuestion for a message that is no question, was answered, or was read in another step; as `send`.
        """
        questions = self._inbox.questions_of(message, self.number)
        with naming(questions):
            self.sends.reply(questions[0], payload, self.messages.exp_id, deliver_at)
        note_replied(questions)

    def reply_columns(
        self, messages: Message | Iterable[Message], payloads: object, *, deliver_at: int | None = None
    ) -> None:
        """Answer many questions, with a payload each or one for all; raises as `reply`, and InvalidColumns."""
        questions = self._inbox.questions_of(messages, self.number)
        if questions:
            rows = np.concatenate([np.arange(part.low, part.high) for part in questions])
            asked = Slice(questions[0].batch.take(rows), 0, len(rows))  # all are of the step's one batch
            with naming(questions):
                self.sends.add_replies(asked, payloads, self.messages.exp_id, deliver_at)
            note_replied(questions)


class Step(StepPart):
    """One step of a group: the messages that its agents read and send, and the state that they leave.

    Messages go out when the step is committed, which is when the next one is asked for. The inbox, its order and
    the random numbers are the same each time the step runs again. `arrivals` are the agents that came with this step
    from other groups, with the states of these; `before` are the group's own agents of the step before.
    """

    def __init__(
        self,
        number: int,
        *,
        seed: int,
        agents: AgentPlaces,
        inbox: StepInbox,
        sends: StepSends,
        state: bytes | None,
        state_bytes: int,
        arrivals: tuple[Arrival, ...] = (),
        before: AgentSet | None = None,
    ) -> None:
        super().__init__(number, seed=seed, agents=agents, inbox=inbox, sends=sends)
        self.moves = StepMoves()
        self.arrivals = arrivals
        self.before = agents.agents if before is None else before
        self._state = state
        self._state_bytes = state_bytes

    def __reduce__(self) -> Any:  # noqa: ANN401 - it never returns
        raise ConfigError(
            f"step {self.number} stays with its loop: give other tasks parts of it, by `step.split(n)`, and take their "
            "sends by `step.join(parts)`"
        )

    def split(self, n: int) -> list[StepPart]:
        """Return the step as at most n parts, each with some of the agents, for tasks that run beside each other.

            step.join(ray.get([think.remote(part) for part in step.split(8)]))

        The messages, their order and the random numbers of an agent do not depend on n. Until all parts are joined,
        only they can send. A part has no messages for recipients that are no agents of the group.

        Raises: InvalidParts unless n is at least 1, or while the parts of an earlier split are out; Closed.
        """
        return [
            StepPart(
                self.number,
                seed=self.seed,
                agents=sends.agents,
                inbox=self._inbox.part(places.start, places.stop),
                sends=sends,
            )
            for places, sends in self.sends.split(n)
        ]

    def join(self, parts: Iterable[StepPart | StepSends]) -> None:
        """Take over the messages of some parts, in any order; the step cannot be committed until all are here.

        Args: parts as `split` made them, or copies from other processes, or their `sends`.
        Raises: InvalidParts for one that was joined, or is of another step or split: then none is joined. Closed.
        """
        given = [parts] if isinstance(parts, StepPart | StepSends) or not isinstance(parts, Iterable) else parts
        listed = [part.sends if isinstance(part, StepPart) else part for part in given]
        if strange := [part for part in listed if not isinstance(part, StepSends)]:
            raise InvalidParts(
                f"step.join takes parts of `step.split`, or their `sends`, not a {type(strange[0]).__name__}",
                step=self.number,
            )
        if answered := self.sends.join(listed):
            self._inbox.note_answered(answered)

    def move(self, audience: object, ids: object, positions: object) -> None:
        """Set the positions of some of the group's agents in an audience, an array (n, 2) or (n, 3).

        All groups read them in the next step, as one new version of the audience. Of an agent that moves twice in a
        step the last position counts. An agent without a position, and another kind of audience, raise at the commit.

        Raises: UnknownName for an audience that does not count in this step, UnknownSender for an agent of another
        group, InvalidColumns, Closed; at the commit also UnknownName and ConfigError, and it does not happen.
        """
        self.sends.check_open()
        name, column = name_of(audience), IdColumn.checked(ids)
        self.sends.audiences.of(name, self.number)
        self.sends.check_ours(column)
        self.moves.add(name, column, positions)

    @property
    def state(self) -> bytes | None:
        """Return the group's state: that of the step before, or the one set in this step. None: there is none.

        Setting it raises InvalidPayload unless it is bytes or None, PayloadTooLarge above MessagingConfig.state_bytes,
        Closed after the step.
        """
        return self._state

    @state.setter
    def state(self, state: bytes | None) -> None:
        self.sends.check_open()
        self._state = check_state(state, self._state_bytes, "step.state")
