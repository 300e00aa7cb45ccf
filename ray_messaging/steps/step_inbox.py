"""The inbox of a step: the messages for a group's agents, in canonical order, and the broadcasts that they hear."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import repeat
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId
from ray_messaging.audiences.cache import audience_of
from ray_messaging.audiences.edges import Edges
from ray_messaging.audiences.folding import kept_places, unfold
from ray_messaging.audiences.heard import Heard
from ray_messaging.audiences.hearer_pairs import Pairs
from ray_messaging.audiences.member_edges import MemberEdges
from ray_messaging.conversations.replies import check_questions
from ray_messaging.errors import ConfigError, NoQuestion
from ray_messaging.message import Message
from ray_messaging.messages import Messages, Slice, decoded_messages
from ray_messaging.model.agent_sets import NO_AGENTS
from ray_messaging.model.batch import Batch
from ray_messaging.model.joining import joined_ids
from ray_messaging.model.json_form import ReadMessages
from ray_messaging.receiving.ack_ranges import Acked, slices_of
from ray_messaging.steps.agent_places import AgentPlaces
from ray_messaging.steps.canonical_order import joined_in_order


class FoldedBatch(NamedTuple):
    """Broadcasts, one in each row, and the pairs of sender and hearer in which the hearer is an agent of this group."""

    batch: Batch
    edges: Edges


def _removed(folded: Sequence[FoldedBatch]) -> Pairs | None:
    """Return the pairs of broadcast and hearer that were taken out, such as by a rule, or None if there are none."""
    rows: list[NDArray[np.intp]] = []
    hearers, low = [], 0
    for batch, edges in folded:
        assert batch.fold is not None
        if batch.fold.kept:
            pairs = edges.expand(batch.from_ids)
            lost = np.ones(len(pairs.rows), np.bool_)
            lost[kept_places(batch.fold.kept, len(pairs.rows))] = False
            rows.append(pairs.rows[lost] + low)
            hearers.append(pairs.hearers.take(lost))
        low += batch.rows
    return Pairs(np.concatenate(rows), joined_ids(hearers)) if rows else None


EVERYBODY = slice(None)  # the places of all agents
# About how many rows are decoded at once. If more were decoded, the first of them would leave the processor's cache
# before they are read.
_AHEAD = 64


class StepInbox:
    """The messages of one step for some agents, in one sequence or agent by agent.

    Args: `batches` are the committed batches of the step's box. Each row has the step of sending, and an ordinal: its
    number among its sender's messages in that step. `folded` are the broadcasts that the agents hear, which are turned
    into messages only when a message is read.
    """

    def __init__(
        self, exp_id: str, agents: AgentPlaces, batches: Sequence[Batch], folded: Sequence[FoldedBatch] = ()
    ) -> None:
        self._exp_id = exp_id
        self._agents = agents
        self._batches = batches
        self._folded = folded

    @cached_property
    def _batch(self) -> Batch | None:
        """Return all messages as one batch in canonical order, or None if there are none."""
        broadcasts = [unfold(*each) for each in self._folded]  # one message for each pair of sender and hearer
        filled = [batch for batch in (*self._batches, *broadcasts) if batch.rows]
        return joined_in_order(filled)[0] if filled else None

    @cached_property
    def messages(self) -> Messages:
        """Return all messages that the agents read in the step, in canonical order, which is the same in every run."""
        return self._slice(0, 0 if self._batch is None else self._batch.rows)

    def heard(self, name: str) -> Heard:
        """Return the broadcasts to one audience, as the agents hear them.

        Raises: ConfigError if the audience changed between the broadcasts that are read in this step, or if their
        subtopics have different agents of the group as hearers.
        """
        found = [each for each in self._folded if audience_of(each.batch).name == name]
        versions = sorted({audience_of(each.batch).version for each in found})
        if len(versions) > 1:
            listed = ", ".join(map(str, versions))
            raise ConfigError(
                f"heard({name!r}) cannot return the broadcasts of this step together, because the audience changed "
                f"between them (versions {listed}): read these broadcasts from step.messages"
            )
        if len({each.batch.fold.agents for each in found if each.batch.fold is not None}) > 1:
            raise ConfigError(
                f"heard({name!r}) cannot return the broadcasts of this step together, because they went to different "
                "agents of this group, which listen on different subtopics: read these broadcasts from step.messages"
            )
        agents = self._agents.agents
        if not found:
            return Heard(MemberEdges.among(NO_AGENTS), agents, NO_AGENTS.column, [])
        parts = [each.batch.lines for each in found]
        return Heard(
            found[0].edges, agents, joined_ids([each.batch.from_ids for each in found]), parts, _removed(found)
        )

    @cached_property
    def _spans(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return, for each agent, the index of its first message, and the number of its messages."""
        if self._batch is None:
            none = np.zeros(len(self._agents), np.int64)
            return none, none
        # For each message, the place of the recipient, or -1 if the recipient is not one of the inbox's agents.
        places = self._agents.find(self._batch.to_ids)
        if places.min(initial=0) >= 0:
            counts = np.bincount(places, minlength=len(self._agents))
            return np.cumsum(counts) - counts, counts
        # Messages on plain channels, which belong to no agent, may lie between the agents' messages.
        owned = np.flatnonzero(places >= 0)
        counts = np.bincount(places[owned], minlength=len(self._agents))
        return np.append(owned, 0)[np.cumsum(counts) - counts], counts

    @property
    def counts(self) -> NDArray[np.int64]:
        """Return the number of messages of each agent."""
        return self._spans[1]

    def of(self, place: int) -> Messages:
        """Return the messages of the agent at index `place` among the agents."""
        low, count = (int(each[place]) for each in self._spans)
        return self._slice(low, low + count)

    def questions_of(self, messages: Acked, number: int) -> list[Slice]:
        """Return messages that an agent is about to answer, as slices of the batch of all messages.

        Args: `number` is the number of the open step.

        Raises: NoQuestion if a message is not a question, was answered, or was read in another step.
        """
        found = slices_of(messages)
        check_questions(found)
        for part in found:
            if part.batch is not self._batch:
                question, agent = part.batch.message_id(part.low), part.batch.to_ids[part.low]
                raise NoQuestion(
                    f"agent {agent!r} cannot answer message {question} in step {number}, because the agent has not "
                    "read it in this step: answer a question in the step in which it is read. To deliver the answer "
                    "in a later step, pass deliver_at=",
                    question=question,
                    agent=agent,
                )
        return found

    def by_agent(self) -> Iterator[tuple[AgentId, Messages]]:
        """Yield each agent with its messages, also agents without messages."""
        return zip(self._agents, self.inboxes(), strict=True)

    def inboxes(self, places: "NDArray[np.intp] | slice" = EVERYBODY) -> Iterator[Messages]:
        """Return the messages of each agent at `places`, also of agents without messages.

        The messages of an agent are in canonical order, which is the same in every run.

        Args: `places` are indices among the agents; by default all agents.
        """
        lows, counts = (each[places] for each in self._spans)
        nothing = _NoMessages.of(self._exp_id)
        if self._batch is None:
            return cast("Iterator[Messages]", repeat(nothing, len(counts)))
        rows = _DecodedRows(self._exp_id, self._batch)
        full = np.flatnonzero(counts)
        if 2 * len(full) > len(counts):
            return cast("Iterator[Messages]", map(_AgentMessages, repeat(rows), lows.tolist(), counts.tolist()))
        # Most agents have no messages, and share one empty object, which nobody can change.
        found: list[_AgentMessages | _NoMessages] = [nothing] * len(counts)
        for place, low, count in zip(full.tolist(), lows[full].tolist(), counts[full].tolist(), strict=True):
            found[place] = _AgentMessages(rows, low, count)
        return cast("Iterator[Messages]", iter(found))

    def _slice(self, low: int, high: int) -> Messages:
        found = [] if self._batch is None or low == high else [Slice(self._batch, low, high)]
        return Messages(self._exp_id, found)


class _DecodedRows:
    """The rows of an inbox. When an agent reads its rows, the rows of the following agents are decoded, too.

    So if agents read in the order of their rows, as in most models, most get messages that are decoded already.
    """

    __slots__ = ("_decoded", "batch", "exp_id")

    def __init__(self, exp_id: str, batch: Batch | None) -> None:
        self.exp_id, self.batch = exp_id, batch
        # The first decoded row, the row after the last decoded row, and the list of the decoded messages. When an agent
        # reads its messages, None takes the place of its first message in this list. So a second read decodes the
        # messages again, because the agent may have changed the objects. The tuple is replaced as a whole, because
        # agents may read in several threads.
        self._decoded: tuple[int, int, list[Any]] = 0, 0, []

    def take(self, low: int, high: int) -> list[Message]:
        """Return the messages of one agent, rows `low` to before `high`. Each call returns new Message objects."""
        batch = self.batch
        if batch is None or low == high:
            return []
        first, end, messages = self._decoded
        if low >= end:
            first, end = low, max(high, min(low + _AHEAD, batch.rows))
            messages = decoded_messages(self.exp_id, batch, first, end)
            self._decoded = first, end, messages
        at = low - first
        if at < 0 or high > end or messages[at] is None:
            return decoded_messages(self.exp_id, batch, low, high)
        found: list[Message] = messages[at : high - first]
        messages[at] = None
        return found


class _Inbox(ReadMessages):
    """The messages of one agent in a step. Any use except `len` and a `for` loop builds a `Messages` of them."""

    __slots__ = ()

    @property
    def _messages(self) -> Messages:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any field or method of Messages
        return getattr(self._messages, name)

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401 - a Message, or Messages for a slice
        return self._messages[index]

    def __eq__(self, other: object) -> bool:
        return self._messages == other

    __hash__ = None  # type: ignore[assignment]  # like a list, it cannot be hashed

    def __add__(self, other: Iterable[Message]) -> list[Message]:
        return [*self._messages, *other]

    def __radd__(self, other: Iterable[Message]) -> list[Message]:
        return [*other, *self._messages]

    def __reduce__(self) -> tuple[Any, ...]:
        return self._messages.__reduce__()

    def __repr__(self) -> str:
        return repr(self._messages)


# This is a msgspec.Struct instead of a subclass of Messages, because an instance is created in a third of the time.
class _AgentMessages(_Inbox, msgspec.Struct, eq=False, gc=False):
    """The messages of one agent in a step. A loop over them decodes them. `len` needs no decoding."""

    _decoded: _DecodedRows
    _low: int
    _count: int
    _built: Messages | None = None

    @property
    def _messages(self) -> Messages:
        if self._built is None:
            decoded, high = self._decoded, self._low + self._count
            slices = [] if decoded.batch is None or not self._count else [Slice(decoded.batch, self._low, high)]
            self._built = Messages(decoded.exp_id, slices)
        return self._built

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Message]:
        return iter(self._decoded.take(self._low, self._low + self._count))


# This is a tuple, because most models ask for the length of each inbox in each step, and Python finds the length of a
# tuple without a function call.
class _NoMessages(_Inbox, tuple[()]):  # type: ignore[misc]  # noqa: SLOT001 - it has an attribute
    """The messages of an agent that has none."""

    exp_id: str

    @classmethod
    def of(cls, exp_id: str) -> "_NoMessages":
        """Return the empty inbox of an agent of an experiment."""
        found = cls()
        found.exp_id = exp_id
        return found

    @property
    def _messages(self) -> Messages:
        return Messages(self.exp_id, [])


Messages.register(_Inbox)
