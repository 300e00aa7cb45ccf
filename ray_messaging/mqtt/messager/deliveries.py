"""Fetched messages with the interface of aiomqtt's, each with our typed view."""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, overload

from ray_messaging.message import Message
from ray_messaging.messages import Messages, Slice
from ray_messaging.mqtt.messager.addresses import agent_of, uuid_of
from ray_messaging.mqtt.wire.topics import topic_of_received

if TYPE_CHECKING:
    from aiomqtt import Topic

# Topics repeat, and building one takes longer than the rest of an item.
_topic_of = lru_cache(50_000)(topic_of_received)


class Delivery:
    """Fetched message: `topic` and `payload` as in aiomqtt, and `message` with its sender and id."""

    __slots__ = ("message",)

    def __init__(self, message: Message) -> None:
        self.message = message

    @property
    def topic(self) -> "Topic":
        """Return the topic; `.value` is its text, `.matches(filter)` compares it with a filter."""
        from aiomqtt import Topic  # noqa: PLC0415 - of an extra; `connect` has raised ConfigError without it

        return Topic(self._topic)

    @property
    def _topic(self) -> str:
        return _topic_of(self.message.channel)

    @property
    def payload(self) -> bytes:
        """Return the payload as sent: JSON, or any bytes of a foreign client."""
        return self.message.data

    @property
    def from_uuid(self) -> str | None:
        """Return the sender; None is the user, or a foreign client."""
        return uuid_of(self.message.from_id)

    @property
    def to_uuid(self) -> str | None:
        """Return the recipient; None if it was not given and the topic is no agent's."""
        to_id = self.message.to_id
        return uuid_of(agent_of(self._topic) if to_id is None else to_id)

    def __eq__(self, other: object) -> bool:
        return self.message == other.message if isinstance(other, Delivery) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.message)

    def __reduce__(self) -> tuple[Any, ...]:
        return Delivery, (self.message,)

    def __repr__(self) -> str:
        return f"Delivery(topic={self._topic!r}, from_uuid={self.from_uuid!r}, {len(self.payload)} bytes)"


class Deliveries(Sequence[Delivery]):
    """Fetched batch in order, with items built on access; `messages` has it in columns."""

    __slots__ = ("messages",)

    def __init__(self, messages: Messages) -> None:
        self.messages = messages

    def __len__(self) -> int:
        return len(self.messages)

    @overload
    def __getitem__(self, index: int) -> Delivery: ...
    @overload
    def __getitem__(self, index: slice) -> list[Delivery]: ...
    def __getitem__(self, index: int | slice) -> Delivery | list[Delivery]:
        found = self.messages[index]
        return Delivery(found) if isinstance(found, Message) else [*map(Delivery, found)]

    def __iter__(self) -> Iterator[Delivery]:
        return map(Delivery, self.messages)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Deliveries | list):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # as a list's

    def __add__(self, other: Iterable[Delivery]) -> list[Delivery]:
        return [*self, *other]

    def __radd__(self, other: Iterable[Delivery]) -> list[Delivery]:
        return [*other, *self]

    def split(self, count: int) -> "tuple[Deliveries, Deliveries]":
        """Return the first `count` messages, and the others."""
        head: list[Slice] = []
        rest: list[Slice] = []
        for batch, low, high, pattern in self.messages.slices:
            middle = min(high, low + count)
            count -= middle - low
            head += [Slice(batch, low, middle, pattern)] if middle > low else []
            rest += [Slice(batch, middle, high, pattern)] if high > middle else []
        return Deliveries(Messages(self.messages.exp_id, head)), Deliveries(Messages(self.messages.exp_id, rest))

    def __reduce__(self) -> tuple[Any, ...]:
        return Deliveries, (self.messages,)

    def __repr__(self) -> str:
        return f"Deliveries({len(self):,} messages)"
