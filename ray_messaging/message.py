"""The messages that users hold: one received, a fetched batch, one to send."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, repeat
from typing import Any, NamedTuple, overload

import msgspec
import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import (
    AGENT_CHAT,
    OMITTED,
    AgentId,
    SenderId,
    build_channel,
    check_id,
    check_subtopic,
    no_channel,
)
from ray_messaging.common.tables import data_frame
from ray_messaging.compat.msg import Msg, Payload, msg_of
from ray_messaging.errors import FrameError, InvalidPayload
from ray_messaging.model.batch import Batch

# One reused decoder: payloads are JSON of any shape, foreign clients' included.
_decode = msgspec.json.Decoder().decode
_UNSET: Any = object()


# A struct is built in C, in a third of the time.
class Message(msgspec.Struct, eq=False, gc=False):
    """One received message: a view of its frame, decoded on access.

    It also answers like the dicts of redis-py: `message["channel"]` and `message["data"]` as bytes, `["type"]`,
    `["pattern"]`.
    """

    _exp_id: str
    _batch: Batch
    _row: int
    _pattern: bytes | None = None
    _payload: Any = _UNSET  # bytes, which JSON has not: they are not decoded yet
    _msg: Msg | None = _UNSET

    @property
    def id(self) -> str:
        """Return the message's id. It is the same in receipts, in logs and after every retry."""
        return self._batch.message_id(self._row)

    @property
    def from_id(self) -> AgentId | None:
        """Return the sender's id; None is the user or a foreign client."""
        return self._batch.from_ids[self._row]

    @property
    def to_id(self) -> AgentId | None:
        """Return the recipient's id; None where the channel is not an agent's."""
        return self._batch.to_ids[self._row]

    @property
    def subtopic(self) -> str | None:
        """Return the last part of an agent's channel; None on other channels."""
        topic = self._batch.topic_of(self._row)
        return None if topic[0] == ":" else topic

    @property
    def channel(self) -> str:
        """Return the channel on which it was sent."""
        return build_channel(self._exp_id, self.to_id, self._batch.topic_of(self._row))

    @property
    def data(self) -> bytes:
        """Return the encoded payload: JSON text, or any bytes from a foreign client."""
        lines = self._batch.lines
        if lines is None:
            raise InvalidPayload(
                "this message has no payload, only ids: a rule that reads payloads sets needs_payload = True"
            )
        return lines.row(self._row)

    @property
    def payload(self) -> Any:  # noqa: ANN401 - JSON of any shape
        """Return the payload, decoded on first use; raise FrameError where a foreign client sent no JSON."""
        found = self._payload
        if found is _UNSET or type(found) is bytes:
            try:
                found = self._payload = _decode(self.data if found is _UNSET else found)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise FrameError(
                    f"the payload of message {self.id} on {self.channel} is not JSON ({error}): read message.data"
                ) from error
        return found

    @property
    def msg(self) -> Msg | None:
        """Return the payload as a Msg, built on first use; None where the payload is not a Msg.

        Raises: InvalidMsg for a payload that has a Msg's marks, and is broken.
        """
        if self._msg is _UNSET:
            try:
                payload = self.payload
            except FrameError:
                payload = None
            self._msg = msg_of(payload)
        return self._msg

    @property
    def step(self) -> int | None:
        """Return the sender's simulation step, None where the sender gave none."""
        step = self._batch.step
        return step if step is None or isinstance(step, int) else int(step[self._row])

    @property
    def sent_at(self) -> float:
        """Return the time of sending, in unix seconds."""
        times = self._batch.sent_at
        return times if isinstance(times, float) else float(times[self._row])

    @property
    def in_reply_to(self) -> str | None:
        """Return the id of the question that this message answers; None: it answers none."""
        extension = self._batch.extension
        return None if extension is None or extension.in_reply_to is None else extension.in_reply_to[self._row]

    @property
    def expects_answer(self) -> bool:
        """Tell whether this message is a question, which `reply` answers."""
        expects = None if self._batch.extension is None else self._batch.extension.expects_answer
        return expects is not None and bool(expects[self._row])

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the labels that rules gave it."""
        return self._batch.labels_of(self._row)

    def __getitem__(self, key: str) -> Any:  # noqa: ANN401 - redis-py's dicts mix types
        if key == "type":
            return "message" if self._pattern is None else "pmessage"
        if key == "pattern":
            return self._pattern
        if key == "channel":
            return self.channel.encode()
        if key == "data":
            return self.data
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return key in _KEYS

    def keys(self) -> tuple[str, ...]:
        """Return the keys of a redis-py dict."""
        return _KEYS

    def values(self) -> tuple[Any, ...]:
        """Return the values of a redis-py dict."""
        return tuple(self[key] for key in _KEYS)

    def items(self) -> tuple[tuple[str, Any], ...]:
        """Return the keys and values of a redis-py dict."""
        return tuple((key, self[key]) for key in _KEYS)

    def __iter__(self) -> Iterator[str]:
        return iter(_KEYS)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return self.id == other.id and self.channel == other.channel

    def __hash__(self) -> int:
        return hash(self.id)

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ANN401 - as dict.get
        """Return `message[key]`, or `default` for an unknown key."""
        return self[key] if key in _KEYS else default

    def __reduce__(self) -> tuple[Any, ...]:
        return Message, (self._exp_id, self._batch.take(np.array([self._row])), 0, self._pattern)

    def __repr__(self) -> str:
        return f"Message(id={self.id!r}, channel={self.channel!r}, from_id={self.from_id!r}, {len(self.data)} bytes)"


_KEYS = ("type", "pattern", "channel", "data")


class Slice(NamedTuple):
    """Rows `low` to `high` of one frame."""

    batch: Batch
    low: int
    high: int
    pattern: bytes | None = None


def slice_of(message: Message) -> Slice:
    """Return a message as a slice of one row."""
    return Slice(message._batch, message._row, message._row + 1, message._pattern)


class Messages(Sequence[Message]):
    """A batch of received messages in order of arrival: a sequence, with columns as numpy arrays.

    `more` is False where the reader's last answer from the server had nothing behind these messages. True: there are
    more, or the reader has not asked since. Only a fetch with `complete=True` asks by itself.
    """

    __slots__ = ("_ends", "exp_id", "more", "slices")

    def __init__(self, exp_id: str, slices: Sequence[Slice], more: bool = False) -> None:  # noqa: FBT001 - as unpickled
        self.exp_id = exp_id
        self.slices = list(slices)
        self.more = more
        self._ends: list[int] | None = None  # of the slices, once it is asked for

    def __len__(self) -> int:
        return sum([part.high - part.low for part in self.slices])

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        row = index + len(self) if index < 0 else index
        if not 0 <= row < len(self):
            raise IndexError(f"message {index} of {len(self)}")
        if self._ends is None:
            self._ends = [*accumulate([part.high - part.low for part in self.slices])]
        at = bisect_right(self._ends, row)
        part = self.slices[at]
        return Message(self.exp_id, part.batch, row - self._ends[at] + part.high, part.pattern)

    def __iter__(self) -> Iterator[Message]:
        if len(self.slices) == 1:
            return self._messages_of(self.slices[0])
        return chain.from_iterable(map(self._messages_of, self.slices))

    def _messages_of(self, part: Slice) -> Iterator[Message]:
        batch, low, high, pattern = part
        lines = repeat(_UNSET) if batch.lines is None else batch.lines.by_row[low:high]
        return map(Message, repeat(self.exp_id), repeat(batch), range(low, high), repeat(pattern), lines)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Messages | list):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # as a list's

    def __add__(self, other: Iterable[Message]) -> list[Message]:
        return [*self, *other]

    def __radd__(self, other: Iterable[Message]) -> list[Message]:
        return [*other, *self]

    @property
    def from_ids(self) -> NDArray[Any]:
        """Return the senders: int64 (n,), or object where some are str or None."""
        return _joined([part.batch.from_ids.take(slice(part.low, part.high)).to_numpy() for part in self.slices])

    @property
    def to_ids(self) -> NDArray[Any]:
        """Return the recipients: int64 (n,), or object where some are str or None."""
        return _joined([part.batch.to_ids.take(slice(part.low, part.high)).to_numpy() for part in self.slices])

    @property
    def sent_at(self) -> NDArray[np.float64]:
        """Return the times of sending, float64 (n,), in unix seconds."""
        return np.array(_joined([_column(part, part.batch.sent_at) for part in self.slices]), np.float64)

    @property
    def steps(self) -> NDArray[Any]:
        """Return the senders' simulation steps: int64 (n,), or object where some have none."""
        return _joined([_column(part, part.batch.step) for part in self.slices])

    @property
    def payloads(self) -> list[Any]:
        """Return the payloads, decoded; raise FrameError where a foreign client sent no JSON."""
        return [message.payload for message in self]

    @property
    def data(self) -> list[bytes]:
        """Return the encoded payloads."""
        found: list[bytes] = []
        for part in self.slices:
            lines = part.batch.lines
            if lines is not None and lines.index is None:
                found += lines.list[part.low : part.high]
            elif lines is not None:
                found += [lines.row(row) for row in range(part.low, part.high)]
        return found

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas.DataFrame, where pandas is installed
        """Return a pandas.DataFrame of id, channel, from_id, to_id, step, sent_at (unix s), payload."""
        return data_frame(
            {
                "id": [message.id for message in self],
                "channel": [message.channel for message in self],
                "from_id": self.from_ids,
                "to_id": self.to_ids,
                "step": self.steps,
                "sent_at": self.sent_at,
                "payload": self.payloads,
            }
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return Messages, (self.exp_id, self.slices, self.more)

    def __repr__(self) -> str:
        return f"Messages({len(self):,} messages)"


def _column(part: Slice, values: Any) -> NDArray[Any]:  # noqa: ANN401 - a column, or one value for all
    if isinstance(values, np.ndarray):
        return values[part.low : part.high]
    return np.full(part.high - part.low, values, None if values is not None else object)


def _joined(columns: list[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(columns) if columns else np.zeros(0, np.int64)


class Outgoing:
    """One message to send, or one payload for many recipients.

    Build it with a channel, or with recipients by `to_agent` and `to_agents`. Ids are checked here, the channel when it
    is sent. A from_id of None is the user. So is a missing one, except in a group, where from_id is required.
    """

    __slots__ = ("channel", "from_id", "payload", "subtopic", "to_id", "to_ids", "unnamed")

    def __init__(
        self, channel: str | None, payload: Payload, from_id: SenderId = OMITTED, to_id: AgentId | None = None
    ) -> None:
        if not isinstance(channel, str | None):
            raise no_channel(channel)
        self.channel = channel
        self.payload = payload
        self.unnamed = from_id is OMITTED
        self.from_id = None if from_id is None or from_id is OMITTED else check_id(from_id)
        self.to_id = None if to_id is None else check_id(to_id)
        self.to_ids: list[AgentId] | None = None
        self.subtopic = ""

    @classmethod
    def to_agent(
        cls, to_id: AgentId, payload: Payload, from_id: SenderId = OMITTED, subtopic: str = AGENT_CHAT
    ) -> "Outgoing":
        """Build a message for one agent."""
        made = cls(None, payload, from_id, to_id)
        made.subtopic = check_subtopic(subtopic)
        return made

    @classmethod
    def to_agents(
        cls,
        to_ids: Iterable[AgentId],
        payload: Payload,
        from_id: SenderId = OMITTED,
        subtopic: str = AGENT_CHAT,
    ) -> "Outgoing":
        """Build a message with one payload for many agents. It is encoded once; each agent has a receipt."""
        made = cls(None, payload, from_id)
        made.to_ids = [check_id(to_id) for to_id in to_ids]
        made.subtopic = check_subtopic(subtopic)
        return made

    def __repr__(self) -> str:
        where = self.channel or (self.to_id if self.to_ids is None else f"{len(self.to_ids)} agents")
        return f"Outgoing({where!r}, from_id={self.from_id!r})"
