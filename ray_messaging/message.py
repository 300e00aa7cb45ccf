"""What users hold: a message received, a message to send."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

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
from ray_messaging.compat.msg import Msg, Payload, msg_of
from ray_messaging.errors import FrameError, InvalidPayload
from ray_messaging.model.batch import Batch

# One reused decoder: payloads are JSON of any shape, foreign clients' included.
_decode = msgspec.json.Decoder().decode
_UNSET: Any = object()


class Message:
    """Be one message received; a view of its frame, taken apart when it is looked at.

    It also answers like redis-py's dicts: `message["channel"]` and `message["data"]` as bytes, `["type"]`,
    `["pattern"]`.
    """

    __slots__ = ("_batch", "_exp_id", "_msg", "_pattern", "_payload", "_row")

    def __init__(self, exp_id: str, batch: Batch, row: int, pattern: bytes | None = None) -> None:
        self._exp_id = exp_id
        self._batch = batch
        self._row = row
        self._pattern = pattern
        self._payload = _UNSET

    @property
    def id(self) -> str:
        """Return the message's id: the same in receipts, logs and under every retry."""
        return self._batch.message_id(self._row)

    @property
    def from_id(self) -> AgentId | None:
        """Return who sent it; None is the user, or a foreign client."""
        return self._batch.from_ids[self._row]

    @property
    def to_id(self) -> AgentId | None:
        """Return whom it was sent to; None where the channel is no agent's."""
        return self._batch.to_ids[self._row]

    @property
    def subtopic(self) -> str | None:
        """Return the last part of an agent's channel; None on other channels."""
        topic = self._batch.topic_of(self._row)
        return None if topic[0] == ":" else topic

    @property
    def channel(self) -> str:
        """Return the channel it came by."""
        return build_channel(self._exp_id, self.to_id, self._batch.topic_of(self._row))

    @property
    def data(self) -> bytes:
        """Return the payload as it travelled: JSON text, or whatever a foreign client published."""
        lines = self._batch.lines
        if lines is None:
            raise InvalidPayload(
                "this message came by its ids alone: a rule that reads payloads sets needs_payload = True"
            )
        return lines.row(self._row)

    @property
    def payload(self) -> Any:  # noqa: ANN401 - JSON of any shape
        """Return the payload, decoded on first use; raise FrameError where a foreign client sent no JSON."""
        if self._payload is _UNSET:
            try:
                self._payload = _decode(self.data)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise FrameError(
                    f"the payload of message {self.id} on {self.channel} is no JSON ({error}): read message.data"
                ) from error
        return self._payload

    @property
    def msg(self) -> Msg | None:
        """Return the Msg that was sent, built on first use; None where the payload is none.

        Raises: InvalidMsg for a payload that says it is one, and is broken.
        """
        if not hasattr(self, "_msg"):  # most messages are never asked: no time is spent on it before
            try:
                payload = self.payload
            except FrameError:  # what is no JSON is no Msg
                payload = None
            self._msg = msg_of(payload)
        return self._msg

    @property
    def step(self) -> int | None:
        """Return the simulation step its sender was in, if it said so."""
        step = self._batch.step
        return step if step is None or isinstance(step, int) else int(step[self._row])

    @property
    def sent_at(self) -> float:
        """Return when it was sent, in unix seconds."""
        times = self._batch.sent_at
        return times if isinstance(times, float) else float(times[self._row])

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the labels that rules put on it."""
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
        """Return the keys of redis-py's dicts."""
        return _KEYS

    def values(self) -> tuple[Any, ...]:
        """Return what redis-py's dicts hold."""
        return tuple(self[key] for key in _KEYS)

    def items(self) -> tuple[tuple[str, Any], ...]:
        """Return key and value of each entry of redis-py's dicts."""
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
        import numpy as np  # noqa: PLC0415 - only for the rare pickle of a single message

        return Message, (self._exp_id, self._batch.take(np.array([self._row])), 0, self._pattern)

    def __repr__(self) -> str:
        return f"Message(id={self.id!r}, channel={self.channel!r}, from_id={self.from_id!r}, {len(self.data)} bytes)"


_KEYS = ("type", "pattern", "channel", "data")


class Outgoing:
    """Be one message to send, or one payload to many recipients.

    Build it with a channel, or by `to_agent` and `to_agents` with recipients; ids are checked here, the channel when it
    is sent. A from_id of None is the user; so is one that is left out, except in a group, which wants to be told.
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
        """Address one agent."""
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
        """Address many agents with one payload, which is encoded once; there is one receipt for each."""
        made = cls(None, payload, from_id)
        made.to_ids = [check_id(to_id) for to_id in to_ids]
        made.subtopic = check_subtopic(subtopic)
        return made

    def __repr__(self) -> str:
        where = self.channel or (self.to_id if self.to_ids is None else f"{len(self.to_ids)} agents")
        return f"Outgoing({where!r}, from_id={self.from_id!r})"
