"""A received message, and the context in which a message is being handled."""

from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

import msgspec
import numpy as np

from ray_messaging.addressing.channels import AgentId, build_channel
from ray_messaging.compat.msg import Msg, msg_of
from ray_messaging.compat.payload_objects import Misfit, reader_of
from ray_messaging.errors import FrameError, InvalidPayload, PayloadMismatch
from ray_messaging.model.batch import Batch
from ray_messaging.model.typed.typed_table import TypedColumns

# All messages share one decoder. It has no type, because payloads may be any JSON.
_decode = msgspec.json.Decoder().decode
T = TypeVar("T")
UNSET: Any = object()


# This is a Struct, because msgspec's C code builds one in a third of the time that an ordinary class takes.
class Message(msgspec.Struct, eq=False, gc=False):
    """One received message, whose fields are decoded when they are read.

    A message can also be read like redis-py's message dicts. `message["channel"]` and `message["data"]` are bytes, and
    there are `message["type"]` and `message["pattern"]`.
    """

    _exp_id: str
    _batch: Batch
    _row: int
    _pattern: bytes | None = None
    _payload: Any = UNSET  # UNSET or bytes until the payload is decoded; a decoded payload is never bytes
    _msg: Msg | None = UNSET

    @property
    def id(self) -> str:
        """Return the message's id. It is the same in receipts, in logs and after every retry."""
        return self._batch.message_id(self._row)

    @property
    def from_id(self) -> AgentId | None:
        """Return the sender's id; None is the user, or a client such as redis-py that does not use this package."""
        return self._batch.from_ids[self._row]

    @property
    def to_id(self) -> AgentId | None:
        """Return the recipient's id, or None if the channel is not an agent's."""
        return self._batch.to_ids[self._row]

    @property
    def subtopic(self) -> str | None:
        """Return the last part of the message's channel if this is a channel of an agent, otherwise None."""
        topic = self._batch.topic_of(self._row)
        return None if topic[0] == ":" else topic

    @property
    def channel(self) -> str:
        """Return the channel on which the message was sent."""
        return build_channel(self._exp_id, self.to_id, self._batch.topic_of(self._row))

    @property
    def data(self) -> bytes:
        """Return the encoded payload: JSON text, or any bytes from a client that does not use this package."""
        lines = self._batch.lines
        if lines is None:
            raise InvalidPayload(
                "this message has no payload, only ids: set needs_payload = True in a rule that reads payloads"
            )
        return lines.row(self._row)

    @property
    def payload(self) -> Any:  # noqa: ANN401 - JSON of any shape
        """Return the payload, decoded on first use; raise FrameError if it is not valid JSON."""
        found = self._payload
        if found is UNSET and isinstance(self._batch.lines, TypedColumns):
            found = self._payload = self._batch.lines.payload(self._row)
        if found is UNSET or type(found) is bytes:
            try:
                found = self._payload = _decode(self.data if found is UNSET else found)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise self._no_json(error) from error
        return found

    @property
    def msg(self) -> Msg | None:
        """Return the payload as a Msg, built on first use, or None if the payload is not a Msg.

        Raises: InvalidMsg if the payload claims to be a Msg, but is not a valid one.
        """
        if self._msg is UNSET:
            try:
                payload = self.payload
            except FrameError:
                payload = None
            self._msg = msg_of(payload)
        return self._msg

    def to(self, kind: type[T]) -> T:
        """Return the payload as an object of a type: a pydantic model, a msgspec.Struct, a dataclass or a TypedDict.

        Raises: PayloadMismatch if the payload does not fit the type, FrameError if it is not valid JSON.
        """
        # A typed payload is not read from `data`, because NaN would become null in JSON.
        typed = isinstance(self._batch.lines, TypedColumns)
        try:
            return reader_of(kind)(self.payload if typed else self.data)
        except Misfit as misfit:
            where = misfit.field or "the payload"
            raise PayloadMismatch(
                f"message {self.id} of agent {self.from_id!r} on {self.channel} does not fit {_name(kind)}: "
                f"{where}: {misfit.reason}",
                field=misfit.field,
                agent=self.from_id,
                message_id=self.id,
            ) from misfit
        except (ValueError, RecursionError) as error:
            raise self._no_json(error) from error

    def _no_json(self, error: Exception) -> FrameError:
        return FrameError(
            f"the payload of message {self.id} on {self.channel} is not JSON ({error}): read the bytes of the payload "
            "from message.data"
        )

    @property
    def step(self) -> int | None:
        """Return the sender's simulation step, or None if the sender had none."""
        step = self._batch.step
        return step if step is None or isinstance(step, int) else int(step[self._row])

    @property
    def sent_at(self) -> float:
        """Return the time of sending, in unix seconds."""
        return self._batch.sent_time(self._row)

    @property
    def in_reply_to(self) -> str | None:
        """Return the id of the question that this message answers, or None if it is not an answer."""
        extension = self._batch.extension
        return None if extension is None or extension.in_reply_to is None else extension.in_reply_to[self._row]

    @property
    def caused_by(self) -> str | None:
        """Return the id of the message that the sender was handling when it sent this message (None: no message).

        A handler of `serve` is handling its message until the handler ends. The body of an `async for` loop is handling
        its message until the loop requests the next one. For an answer this is None: see `in_reply_to`. For messages
        that were sent in a step, use `EventLog.why`.
        """
        extension = self._batch.extension
        return None if extension is None or extension.caused_by is None else extension.caused_by[self._row]

    @property
    def expects_answer(self) -> bool:
        """Return whether this message is a question, which can be answered with `reply`."""
        expects = None if self._batch.extension is None else self._batch.extension.expects_answer
        return expects is not None and bool(expects[self._row])

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the labels that rules gave this message."""
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
        """Return the keys of a redis-py message dict, such as "channel" and "data"."""
        return _KEYS

    def values(self) -> tuple[Any, ...]:
        """Return the values that a redis-py message dict would have."""
        return tuple(self[key] for key in _KEYS)

    def items(self) -> tuple[tuple[str, Any], ...]:
        """Return the keys and values that a redis-py message dict would have."""
        return tuple((key, self[key]) for key in _KEYS)

    def __iter__(self) -> Iterator[str]:
        return iter(_KEYS)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return self.id == other.id and self.channel == other.channel

    def __hash__(self) -> int:
        return hash(self.id)

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ANN401 - any default
        """Return `message[key]`, or `default` for an unknown key."""
        return self[key] if key in _KEYS else default

    def __reduce__(self) -> tuple[Any, ...]:
        return Message, (self._exp_id, self._batch.take(np.array([self._row])), 0, self._pattern)

    def __repr__(self) -> str:
        return f"Message(id={self.id!r}, channel={self.channel!r}, from_id={self.from_id!r}, {len(self.data)} bytes)"


class DecodedMessage(Message, eq=False, gc=False):
    """A message whose payload is already decoded, so that reading the payload runs no Python code."""

    payload = Message.__dict__["_payload"]  # the Struct's own slot, which Python reads without a call


def _name(kind: object) -> str:
    return getattr(kind, "__name__", None) or repr(kind)


_KEYS = ("type", "pattern", "channel", "data")


class Handled:
    """A message that code is handling, in one context (see `contextvars`) and in the tasks that this code starts.

    The handling begins when the object is made, and ends when `over` is set. If it began while other code was handling
    a message, `outer` is the Handled of that message.
    """

    __slots__ = ("message", "outer", "over")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.over = False
        self.outer = handled_here()
        HANDLED.set(self)


HANDLED: ContextVar[Handled | None] = ContextVar("ray_messaging handled", default=None)


def handled_here() -> Handled | None:
    """Return the message that is being handled in this context, as its `Handled`, or None if there is none.

    If the handling of a message began during that of another one, the message whose handling began last is returned.
    """
    found = HANDLED.get()
    while found is not None and found.over:
        found = found.outer
    return found


def cause_here() -> str | None:
    """Return the id of the message that is being handled in this context, or None if there is none."""
    handled = handled_here()
    return None if handled is None else handled.message.id
