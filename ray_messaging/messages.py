"""The class `Messages`: fetched messages as a sequence, and their fields as columns."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, chain, repeat
from typing import Any, NamedTuple, TypeVar, overload

import msgspec
import numpy as np
from numpy.typing import NDArray

from ray_messaging.common.notebook import SHOWN, html_table
from ray_messaging.common.tables import data_frame, utc_times, with_exact_integers
from ray_messaging.message import UNSET, DecodedMessage, Message
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import PayloadColumn
from ray_messaging.model.typed.typed_table import TypedColumns
from ray_messaging.model.typed.typed_values import Part, arrow_columns, column_of, filled_column, names_of, part_of

_decoder = msgspec.json.Decoder()
T = TypeVar("T")


class Slice(NamedTuple):
    """Adjacent messages of one batch: its rows from `low` to before `high`.

    `pattern` is the subscribed pattern that the messages' channels matched, or None.
    """

    batch: Batch
    low: int
    high: int
    pattern: bytes | None = None


_IDS = ("step", "from_id", "to_id")


def slice_of(message: Message) -> Slice:
    """Return the `Slice` that has only this message."""
    return Slice(message._batch, message._row, message._row + 1, message._pattern)


class Messages(Sequence[Message]):
    """A batch of received messages in order of arrival: a sequence, with columns as numpy arrays.

    `more` is False if the server has said that no message follows these. It is True if more messages follow, or if the
    server was not asked. Only a fetch with `complete=True` always asks the server.
    """

    __slots__ = ("_ends", "exp_id", "more", "slices")

    def __init__(
        self,
        exp_id: str,
        slices: Sequence[Slice],
        more: bool = False,  # noqa: FBT001 - `__reduce__` passes it by position
    ) -> None:
        self.exp_id = exp_id
        self.slices = slices if type(slices) is list else list(slices)
        self.more = more
        # For each slice, the number of messages in it and in all slices before it. The list is made on first use.
        self._ends: list[int] | None = None

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
            raise IndexError(f"there is no message {index}: the number of messages is {len(self)}")
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
        payloads: Iterable[Any] = repeat(UNSET)
        if isinstance(batch.lines, TypedColumns):
            payloads = batch.lines.payloads(low, high)
        elif batch.lines is not None:
            payloads = batch.lines.by_row[low:high]
        return map(Message, repeat(self.exp_id), repeat(batch), range(low, high), repeat(pattern), payloads)

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
        """Return the senders: int64 (n,), or object if some are str or None."""
        return _joined([part.batch.from_ids.take(slice(part.low, part.high)).to_numpy() for part in self.slices])

    @property
    def to_ids(self) -> NDArray[Any]:
        """Return the recipients: int64 (n,), or object if some are str or None."""
        return _joined([part.batch.to_ids.take(slice(part.low, part.high)).to_numpy() for part in self.slices])

    @property
    def sent_at(self) -> NDArray[np.float64]:
        """Return the times of sending, float64 (n,), in unix seconds."""
        return np.array(_joined([_column(part, part.batch.sent_at) for part in self.slices]), np.float64)

    @property
    def steps(self) -> NDArray[Any]:
        """Return the simulation steps in which the messages were sent: int64 (n,), or object if some have none."""
        return _joined([_column(part, part.batch.step) for part in self.slices])

    @property
    def payloads(self) -> list[Any]:
        """Return the payloads, decoded; raise FrameError if a payload is not valid JSON."""
        return [message.payload for message in self]

    def to(self, kind: type[T]) -> list[T]:
        """Return the payloads as objects of a type: a pydantic model, a msgspec.Struct, a dataclass or a TypedDict.

        Raises: PayloadMismatch if a payload does not fit the type, FrameError if it is not valid JSON.
        """
        return [message.to(kind) for message in self]

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

    @property
    def _payload_parts(self) -> list[Part]:
        return [part_of(part.batch.lines, part.low, part.high) for part in self.slices]

    def column(self, name: str) -> NDArray[Any]:
        """Return the value with this name in each payload: an array (n,), or (n, k) for vectors of k numbers.

        Strings come as an array of objects. If the payloads were sent as arrays, by `ray_messaging.columns`, the array
        may be read-only. Raises InvalidColumns if a payload has no such value.
        """
        return column_of(self._payload_parts, name)

    def to_arrow(self) -> Any:  # noqa: ANN401 - pyarrow.Table
        """Return a pyarrow.Table with the columns of `to_pandas`.

        JSON payloads are strings. A column of ids is int64. If one of its ids is a str, the column has strings. If all
        its ids are None, its type is null.

        Raises: InvalidColumns if the values of a column that was sent by `ray_messaging.columns` have two types.
        """
        import pyarrow as pa  # noqa: PLC0415 - 80 MB that a group need not load

        facts = {name: _arrow_column(values) for name, values in self._facts().items()}
        return with_exact_integers(pa.table(facts | arrow_columns(self._payload_parts)), _IDS)

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas.DataFrame, where pandas is installed
        """Return a pandas.DataFrame whose columns have the names and types of the event log's columns.

        These are message_id, step, channel, subtopic, from_id, to_id, in_reply_to, labels, sent_at (UTC), and payload.
        Payloads that were sent as arrays, by `ray_messaging.columns`, have one column for each value, such as
        `payload.price`. The column `step`, and each column of ids without a str, is pandas' Int64.
        """
        parts = self._payload_parts
        typed = {f"payload.{name}": filled_column(parts, name) for name in names_of(parts)}
        facts = self._facts()
        facts["sent_at"] = facts["sent_at"].to_pandas()
        if parts and all(isinstance(part, TypedColumns) for part in parts):
            return data_frame(facts | typed, _IDS)
        payloads = [None if isinstance(found._batch.lines, TypedColumns) else found.payload for found in self]
        return data_frame(facts | {"payload": payloads} | typed, _IDS)

    def _facts(self) -> dict[str, Any]:
        messages = list(self)
        return {
            "message_id": [message.id for message in messages],
            "step": self.steps,
            "channel": [message.channel for message in messages],
            "subtopic": [message.subtopic for message in messages],
            "from_id": self.from_ids,
            "to_id": self.to_ids,
            "in_reply_to": [message.in_reply_to for message in messages],
            "labels": [list(message.labels) or None for message in messages],
            "sent_at": utc_times(self.sent_at),
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return Messages, (self.exp_id, self.slices, self.more)

    def __repr__(self) -> str:
        return f"Messages({len(self):,} messages)"

    def _repr_html_(self) -> str:
        first = self[:SHOWN]
        columns: dict[str, list[Any]] = {
            "from": [message.from_id for message in first],
            "to": [message.to_id for message in first],
            "subtopic": [message.subtopic or message.channel for message in first],
            "step": [message.step for message in first],
            "payload": [message.data for message in first],
            "labels": [", ".join(message.labels) for message in first],
        }
        return html_table(repr(self), columns, len(self))


def _column(part: Slice, values: Any) -> NDArray[Any]:  # noqa: ANN401 - a column, or one value for all
    if isinstance(values, np.ndarray):
        return values[part.low : part.high]
    return np.full(part.high - part.low, values, None if values is not None else object)


def _arrow_column(values: Any) -> Any:  # noqa: ANN401 - values of any kind, as a pyarrow.Array
    import pyarrow as pa  # noqa: PLC0415 - 80 MB that a group need not load

    listed = values.tolist() if isinstance(values, np.ndarray) and values.dtype == object else values
    if isinstance(listed, list) and str in set(map(type, listed)):  # ids are ints and strs
        listed = [None if value is None else str(value) for value in listed]
    return pa.array(listed)


def _joined(columns: list[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(columns) if columns else np.zeros(0, np.int64)


def decoded_messages(exp_id: str, batch: Batch, low: int, high: int) -> list[Message]:
    """Return the messages of the rows from `low` to before `high`.

    JSON payloads are decoded in one call, which takes a third of the time of one call for each payload.
    """
    if isinstance(batch.lines, PayloadColumn) and not batch.lines.raw:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            payloads = _decoder.decode_lines(b"\n".join(batch.lines.by_row[low:high]))
            if len(payloads) == high - low:  # an empty line has no value, so there would be fewer payloads than rows
                same = repeat(exp_id), repeat(batch), range(low, high), repeat(None)
                return list(map(DecodedMessage, *same, payloads))
    # If some payload is not valid JSON, each message decodes its own payload when it is read.
    return list(Messages(exp_id, [Slice(batch, low, high)]))
