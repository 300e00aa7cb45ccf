"""One open step of a group, with which the group's agents read and send."""

import html
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AGENT_CHAT, AgentId, check_id
from ray_messaging.audiences.cache import name_of
from ray_messaging.audiences.heard import Heard
from ray_messaging.conversations.replies import naming, note_replied
from ray_messaging.errors import ConfigError, PayloadTooLarge, UnknownName
from ray_messaging.message import Message
from ray_messaging.messages import Messages, Slice
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.columns import IdColumn
from ray_messaging.model.exact import check_state
from ray_messaging.model.joining import joined_arrays, joined_ids
from ray_messaging.steps.agent_places import AgentPlaces
from ray_messaging.steps.moved_agents import Arrival
from ray_messaging.steps.random_numbers import StepGenerators, agent_generator, step_generator, uniform_rows
from ray_messaging.steps.step_account import NOTHING_BLOCKED, BlockedSends
from ray_messaging.steps.step_inbox import EVERYBODY, StepInbox
from ray_messaging.steps.step_moves import StepMoves
from ray_messaging.steps.step_sends import StepQuestionIds, StepSends


class Step:
    """One step of a group: the messages that its agents read and send, and the group's state.

    `number` is the number of the step. `send(from_id, to_id, payload, subtopic, deliver_at)` sends one message, which
    is read in the next step, or in step `deliver_at`. Messages are sent when the step is committed. A request for the
    next step commits this step. If the step runs again after a fault, its inbox, the order of the inbox, and the random
    numbers are the same. `arrivals` has the agents that came from other groups at this step, with the states of these
    groups. `before` has the agents that the group had in the previous step. `blocked` has the messages that the group's
    agents sent in the previous step, but that rules blocked.
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
        blocked: BlockedSends = NOTHING_BLOCKED,
    ) -> None:
        self.number = number
        self.sends = sends
        self.seed = seed
        self.places = agents
        self._inbox = inbox
        # `send` is not defined as a method, because one more function call would add a tenth to the time of a send.
        self.send = sends.send
        self.generators = StepGenerators(seed, number, agents)
        self.moves: StepMoves | None = None  # the agents' new positions in audiences; None: no position was set
        self.arrivals = arrivals
        self.blocked = blocked
        self.before = agents.agents if before is None else before
        self.series = b""  # the encoded data that the run's `collect=` has recorded in this step
        self.calls = b""  # the calls that the agents have made through `me.remember`, encoded
        self._state = state
        self._state_bytes = state_bytes

    def __reduce__(self) -> Any:  # noqa: ANN401 - it never returns
        raise ConfigError(
            f"step {self.number} cannot be sent to another process, because only the process that drives the group "
            "can send the step's messages: to use more processes, spread the agents over more groups"
        )

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
        """Return all messages for the agents, sorted by to_id, step of sending, from_id, and order of sending."""
        return self._inbox.messages

    def by_agent(self) -> Iterator[tuple[AgentId, Messages]]:
        """Yield each agent, even one without messages, with its messages; agents are in ascending order."""
        return self._inbox.by_agent()

    def inboxes(self, places: NDArray[np.intp] | slice = EVERYBODY) -> Iterator[Messages]:
        """Yield the messages of each agent, in the order of `agents`.

        Args: `places` chooses agents by their indices in `agents`, as an array or a slice; by default all agents.
        """
        return self._inbox.inboxes(places)

    @property
    def heard_counts(self) -> NDArray[np.int64]:
        """Return how many messages each agent reads in this step, in the order of `agents`, int64 (n,)."""
        return self._inbox.counts

    def inbox(self, agent: AgentId) -> Messages:
        """Return the messages of one agent.

        Raises: UnknownName if the group has no such agent; InvalidAddress for an invalid id.
        """
        place = self.places.place(check_id(agent))
        if place < 0:
            raise UnknownName(
                f"agent {agent!r} is not one of the {len(self.places):,} agents of this step's group: see step.agents",
                kind="agent",
                value=agent,
            )
        return self._inbox.of(place)

    def rng(self, agent: AgentId | None = None) -> np.random.Generator:
        """Return a new random number generator, at its beginning, for one agent in this step.

        Without an agent, return the generator of the step itself. It is the same in all groups, so it suits numbers
        that all agents share, such as the weather.

        Raises: InvalidAddress for an invalid id.
        """
        if agent is None:
            return step_generator(self.seed, self.number)
        place = self.places.place(agent if type(agent) is int else check_id(agent))
        return self.generators.at(place) if place >= 0 else agent_generator(self.seed, self.number, check_id(agent))

    def uniform(self, k: int = 1) -> NDArray[np.float64]:
        """Return k uniform random numbers in [0, 1) for each agent, float64 (n, k). Row i belongs to `agents[i]`.

        Raises: ConfigError unless k is a whole number of at least 0.
        """
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
        """Send n messages given as columns. They are read in the next step, or in step `deliver_at`.

        Args: from_ids and to_ids are integer arrays (n,) or sequences of n ids; in place of either, a single id stands
        for all messages; payloads is a sequence of n dicts, or one dict for all messages.
        Raises: UnknownSender for a from_id that is not an agent of this group; InvalidAddress for an invalid id or
        subtopic; InvalidColumns if the columns do not fit together; InvalidPayload or PayloadTooLarge for an invalid
        payload; ConfigError for a `deliver_at` that is not a later step or is too far ahead, and for a send from a
        second thread; Closed if the step has ended.
        """
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
        """Send one message from an agent to all its hearers in an audience.

        The hearers read the message in the next step, or in step `deliver_at`. An audience is a named set of pairs of
        sender and hearer. `audience` is the audience's handle or name.

        Raises: UnknownName for an audience that does not exist in this step; otherwise the same errors as
        `send_columns`, such as UnknownSender, InvalidPayload and ConfigError.
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
        """Send n broadcasts given as columns. They are read in the next step, or in step `deliver_at`.

        Args: from_ids and payloads are as for `send_columns`, audience is as for `broadcast`.
        Raises: InvalidColumns if the columns do not fit together; otherwise the same errors as `broadcast`, such as
        UnknownName, UnknownSender and InvalidPayload.
        """
        self.sends.add_broadcasts(from_ids, audience, payloads, subtopic, deliver_at)

    def heard(self, audience: object) -> Heard:
        """Return the broadcasts to an audience that the group's agents hear in this step, as columns.

        The result can compute means and sums of what each agent hears. `audience` is the audience's handle or name.

        The broadcasts are also in `messages`, as one message for each hearer. Such a message is made only when it is
        read.

        Raises: UnknownName if `audience` is not an audience or its name; ConfigError if the audience changed between
        the broadcasts that are read in this step, or if their subtopics have different agents of the group as hearers.
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
        """Ask an agent, which reads the question in the next step or in step `deliver_at`. Return the question's id.

        The answer has this id in its field `in_reply_to`. If the agent answers in the step in which it reads the
        question, the answer is read in the following step.

        Raises: the same errors as `send_columns`, such as UnknownSender, InvalidPayload and ConfigError.
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
        """Ask n agents, with columns as in `send_columns`; return the questions' ids, in the order of the rows.

        Raises: the same errors as `send_columns`, such as InvalidColumns, UnknownSender and InvalidPayload.
        """
        senders, ordinals = self.sends.add_columns(from_ids, to_ids, payloads, subtopic, deliver_at, asks=True)
        return StepQuestionIds(self.number, joined_ids(senders), joined_arrays(ordinals))

    def reply(self, message: Message, payload: object, *, deliver_at: int | None = None) -> None:
        """Answer a question that was read in this step. The answer is read in the next step, or in step `deliver_at`.

        Raises: NoQuestion for a message that is not a question, was answered, or was read in another step; otherwise
        the same errors as `send_columns`, such as InvalidPayload and ConfigError.
        """
        questions = self._inbox.questions_of(message, self.number)
        with naming(questions):
            self.sends.reply(questions[0], payload, self.messages.exp_id, deliver_at)
        note_replied(questions)

    def reply_columns(
        self, messages: Message | Iterable[Message], payloads: object, *, deliver_at: int | None = None
    ) -> None:
        """Answer many questions that were read in this step, with one payload for each question or one for all.

        The answers are read in the next step, or in step `deliver_at`.

        Raises: InvalidColumns unless there is one payload, or one for each question; otherwise the same errors as
        `reply`, such as NoQuestion, InvalidPayload and ConfigError.
        """
        questions = self._inbox.questions_of(messages, self.number)
        if questions:
            rows = np.concatenate([np.arange(part.low, part.high) for part in questions])
            asked = Slice(questions[0].batch.take(rows), 0, len(rows))  # All questions of a step are rows of one batch.
            with naming(questions):
                self.sends.add_replies(asked, payloads, self.messages.exp_id, deliver_at)
            note_replied(questions)

    def move(self, audience: object, ids: object, positions: object) -> None:
        """Set the positions of some of the group's agents in an audience.

        All groups use the new positions from the next step on. If a position is set twice in a step, the last one
        counts.

        Args: `audience` is the audience's handle or name, `ids` are n agents, and `positions` is an array (n, 2) or
        (n, 3).
        Raises: UnknownName for an audience that does not exist in this step; UnknownSender for an agent of another
        group; InvalidColumns if the arguments do not fit together; Closed if the step has ended. The commit raises
        UnknownName for an agent without a position, InvalidColumns for a wrong number of dimensions, and ConfigError
        for an audience that was not made of positions, or without Steps(wait_for="all"). Then the step is not
        committed.
        """
        self.sends.check_open()
        name, column = name_of(audience), IdColumn.checked(ids)
        self.sends.audiences.of(name, self.number)
        self.sends.check_ours(column)
        self.moves = self.moves or StepMoves()
        self.moves.add(name, column, positions)

    def keep_series(self, series: bytes) -> None:
        """Store the data that a run has recorded with `collect` in this step.

        The data are written when the step is committed.

        Raises: PayloadTooLarge if the data are larger than MessagingConfig.state_bytes.
        """
        self._check_size(series, "collects", "collect less, or in fewer steps by collect_every=")
        self.series = series

    def keep_calls(self, calls: bytes) -> None:
        """Set the record of the calls that agents have made through `me.remember` in this step.

        The record is written when the step is committed. Another call of `keep_calls` replaces it.

        Args: `calls` is the record, as `encode_calls` of `ray_messaging.model.calls` returns it.

        Raises: PayloadTooLarge if the record is larger than MessagingConfig.state_bytes.
        """
        self._check_size(calls, "has calls of", "return less from the remembered functions")
        self.calls = calls

    def _check_size(self, collected: bytes, what: str, remedy: str) -> None:
        if len(collected) > self._state_bytes:
            raise PayloadTooLarge(
                f"step {self.number} {what} {len(collected):,} bytes, but the limit is {self._state_bytes:,}: "
                f"{remedy}, use more groups, or raise MessagingConfig.state_bytes",
                size=len(collected),
                limit=self._state_bytes,
            )

    @property
    def state(self) -> bytes | None:
        """Return the state that this step has set, or else the state of the previous step. None means no state.

        Setting the state raises InvalidPayload for anything except bytes or None, PayloadTooLarge for more bytes than
        MessagingConfig.state_bytes, and Closed if the step has ended.
        """
        return self._state

    @state.setter
    def state(self, state: bytes | None) -> None:
        self.sends.check_open()
        self._state = check_state(state, self._state_bytes, "step.state")
