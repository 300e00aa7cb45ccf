"""The columns of a batch that have ids and JSON payloads, and the encoding of payloads."""

from collections.abc import Iterable, Sequence
from struct import Struct as Packer
from struct import error as StructError  # noqa: N812 - it is a class
from struct import pack
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId, check_id
from ray_messaging.common.texts import short_repr
from ray_messaging.compat.msg import Msg
from ray_messaging.compat.payload_objects import is_native, is_object
from ray_messaging.errors import InvalidAddress, InvalidPayload, PayloadTooLarge
from ray_messaging.model.finite import MAYBE_NULL, NULL, all_finite, may_have_null, parts_of
from ray_messaging.model.json_form import (
    INT_DIGITS,
    LINE_END,
    encode_dict,
    encode_lines,
    encode_plain,
    encode_whole,
    is_plain,
    json_form,
    plain_lines,
    plain_text,
    strictly,
)

INT, STR, NONE = 0, 1, 2
_value_at = Packer("<q").unpack_from


# `IdColumn` is a msgspec.Struct, which C code builds faster than an ordinary object. The time matters, because each
# batch has two of these columns, and even a single message is a batch.
class IdColumn(msgspec.Struct, eq=False):
    """A column of n ids: `values` int64 (n,), `kinds` uint8 (n,) or None if all ids are ints, and `strings`.

    `kinds` says what the id of each row is. INT: the id is the row's value. STR: the id is `strings[value]`. NONE: the
    id is None, which stands for the user, outside of the simulation. The values are stored as an array, or as encoded
    bytes, from which the array is made on first use. The bytes are int64, or int32 if `_small` is true.
    """

    _values: NDArray[np.int64] | None
    kinds: NDArray[np.uint8] | None = None
    strings: tuple[str, ...] = ()
    _packed: bytes | memoryview = b""  # the values as little-endian bytes, until the array is made
    _objects: list[AgentId | None] | None = None
    _small: bool = False

    @classmethod
    def of(cls, ids: Sequence[AgentId | None]) -> "IdColumn":
        """Build a column from ids in canonical form (see `channels.check_id`)."""
        try:
            # `pack` is twice as fast as numpy. It also refuses strs, while numpy would read "007" as 7.
            return cls(None, None, (), pack(f"<{len(ids)}q", *ids))
        except StructError:
            return cls._of_mixed(ids)

    @classmethod
    def _of_mixed(cls, ids: Sequence[AgentId | None]) -> "IdColumn":
        table: dict[str, int] = {}
        values = np.zeros(len(ids), np.int64)
        kinds = np.zeros(len(ids), np.uint8)
        for row, agent_id in enumerate(ids):
            if agent_id is None:
                kinds[row] = NONE
            elif isinstance(agent_id, str):
                kinds[row] = STR
                values[row] = table.setdefault(agent_id, len(table))
            else:
                values[row] = agent_id
        return cls(_read_only(values), _read_only(kinds), tuple(table))

    @classmethod
    def checked(cls, ids: object, *, none: bool = False) -> "IdColumn":
        """Build a column from ids that a user passed; raise InvalidAddress for the first invalid id.

        Args: `ids` is a numpy integer array or any iterable of ids. An id may be None if `none` is true.
        """
        if isinstance(ids, np.ma.MaskedArray) and np.ma.is_masked(ids):
            row = int(np.flatnonzero(np.ma.getmaskarray(ids))[0])
            raise InvalidAddress(f"row {row} of the ids is masked: fill it, or leave it out", value=None)
        if isinstance(ids, np.ndarray) and ids.ndim == 1 and ids.dtype.kind in "iu" and ids.dtype != np.uint64:
            return cls(_read_only(ids.astype(np.int64, copy=True)))
        if not isinstance(ids, Iterable) or isinstance(ids, str | bytes) or getattr(ids, "ndim", 1) == 0:
            raise InvalidAddress(
                f"ids must be a one-dimensional array or a list of ids, not {short_repr(ids)}", value=ids
            )
        return cls.of([None if none and agent_id is None else check_id(agent_id) for agent_id in ids])

    @classmethod
    def constant(cls, agent_id: AgentId | None, rows: int) -> "IdColumn":
        """Build a column that repeats one id."""
        if isinstance(agent_id, int):
            return cls(_read_only(np.full(rows, agent_id, np.int64)))
        kind = NONE if agent_id is None else STR
        return cls(np.zeros(rows, np.int64), np.full(rows, kind, np.uint8), () if agent_id is None else (agent_id,))

    @property
    def values(self) -> NDArray[np.int64]:
        """Return the numbers that stand for the ids, int64 (n,). `kinds` says what they mean."""
        if self._values is None:
            self._values = (
                _read_only(self.stored.astype(np.int64)) if self._small else np.frombuffer(self._packed, "<i8")
            )
        return self._values

    @property
    def stored(self) -> NDArray[np.integer[Any]]:
        """Return the numbers that stand for the ids, with the type that the column stores: int64 or int32 (n,)."""
        return np.frombuffer(self._packed, "<i4" if self._small else "<i8") if self._values is None else self._values

    @property
    def packed(self) -> bytes | memoryview:
        """Return the encoded form of the numbers that stand for the ids: int64 (n,), little endian."""
        return self._packed if self._values is None and not self._small else np.ascontiguousarray(self.values).data

    def __len__(self) -> int:
        return len(self._packed) // (4 if self._small else 8) if self._values is None else len(self._values)

    def take(self, rows: Any) -> "IdColumn":  # noqa: ANN401 - a slice, a mask or an index array
        """Return a column of some rows. `rows` is a slice, a mask or an array of indices."""
        values, kinds = self.values[rows], None if self.kinds is None else self.kinds[rows]
        if kinds is None or len(values) >= len(self.strings):
            return IdColumn(values, kinds, self.strings)
        # All of `strings` is encoded with the column, so strs that no row uses are left out.
        named = kinds == STR
        used, places = np.unique(values[named], return_inverse=True)
        values = values.copy()
        values[named] = places
        return IdColumn(values, kinds, tuple(self.strings[place] for place in used.tolist()))

    @property
    def width(self) -> int:
        """Return the most bytes that an encoded id takes besides its number: the size of the longest str id."""
        return max((len(name.encode()) for name in self.strings), default=0)

    def tolist(self) -> list[AgentId | None]:
        """Return the ids as Python objects. The list is cached: do not change it."""
        if self._objects is None:
            objects: list[Any] = self.values.tolist()
            if self.kinds is not None:
                for row in np.flatnonzero(self.kinds).tolist():
                    objects[row] = self.strings[objects[row]] if self.kinds[row] == STR else None
            self._objects = objects
        return self._objects

    def __getitem__(self, row: int) -> AgentId | None:
        if self.kinds is not None:
            return self.tolist()[row]
        if self._values is None and not self._small and row >= 0:
            found: int = _value_at(self._packed, row * 8)[0]
            return found
        return self.values.item(row)

    def __reduce__(self) -> tuple[Any, ...]:
        return IdColumn, (self.values, self.kinds, self.strings)

    def to_numpy(self) -> NDArray[Any]:
        """Return the ids as an int64 array if all are ints, otherwise as an object array."""
        return self.values if self.kinds is None else np.array(self.tolist(), dtype=object)


def nobody(rows: int) -> IdColumn:
    """Return a column of `rows` ids that are all None. Its memory does not depend on `rows`."""
    return IdColumn(np.broadcast_to(np.int64(0), rows), np.broadcast_to(np.uint8(NONE), rows))


def _read_only(values: NDArray[Any]) -> NDArray[Any]:
    """Make an array read-only, and return it.

    A rule in this process gets the same array that is sent, and must not change it.
    """
    values.flags.writeable = False
    return values


# If there are more than this many lines per row, `_distinct` sorts the line numbers of the rows. Otherwise it marks
# these lines in an array that has an item for each line, which is then faster.
_SPARSE = 8
# If the size of a blob in bytes is between these two, numpy counts its newlines: for a smaller blob `bytes.count` is
# faster, and for a larger one numpy would need too much memory, once more the size of the blob.
_FEW, _MANY = 2**14, 2**26
# Encoders raise these errors for a value that they refuse.
_REFUSALS = (TypeError, ValueError, OverflowError, RecursionError, UnicodeError, msgspec.MsgspecError)
_NEWLINE = "this payload holds a msgspec.Raw with a newline: encode it without line breaks"


def encode_payload(payload: object, limit_bytes: int) -> bytes:
    """Encode one payload: a dict, a Msg, or an object.

    Raises: InvalidPayload if the payload cannot become a JSON object; PayloadTooLarge if this JSON has more than
    `limit_bytes` bytes.
    """
    line = encode_plain(payload) if type(payload) is dict else None
    if line is None:
        line = _encode_any(payload)
    if len(line) > limit_bytes:
        raise too_large(len(line), limit_bytes)
    return line


def _encode_any(payload: Any) -> bytes:  # noqa: ANN401 - any payload
    encode = encode_dict
    if not isinstance(payload, dict):
        if is_object(payload):
            encode = encode_whole
        else:
            payload = _dict_of(payload)
    try:
        line = encode(payload)
        plain = is_plain(payload if isinstance(payload, dict) else parts_of(payload))
    except InvalidPayload:
        raise
    except _REFUSALS:
        plain, line = False, b""
    doubtful = (MAYBE_NULL in line and line.find(NULL) >= 0) or len(line) > INT_DIGITS
    if not plain or (doubtful and not all_finite(payload)):
        form = json_form(payload)  # if the payload is invalid, this raises an error that names the part
        try:
            line = encode(form)
        except _REFUSALS as error:
            raise InvalidPayload(
                f"this payload cannot become JSON: {error}; use dicts, lists, str, numbers, bool and None"
            ) from error
    # LINE_END is an int, because `in` with bytes would internally raise and catch an error, which takes time.
    if LINE_END in line:
        raise InvalidPayload(_NEWLINE)
    return line


def _dict_of(payload: object) -> dict[str, Any]:
    """Return the dict of a Msg; raise InvalidPayload for another object, or if the dict would not give an equal Msg."""
    if not isinstance(payload, Msg):
        raise InvalidPayload(
            "a payload must be a dict, a Msg, a dataclass, a msgspec.Struct or a pydantic model, and not a "
            f"{type(payload).__name__}: put the value into a dict, as in {{'content': ...}}"
        )
    kind = type(payload)
    if kind is not Msg:
        raise InvalidPayload(
            f"a {kind.__name__}, a subclass of Msg, would arrive as a plain Msg: send its to_dict(), and decode it by "
            f"{kind.__name__}.from_dict(message.payload)"
        )
    fields = payload.to_dict()
    for name, value in fields.items():
        if type(value) is not str and value is not None:
            try:
                strictly(value)
            except (TypeError, ValueError, RecursionError) as error:
                raise InvalidPayload(
                    f"the {name} of this Msg cannot become JSON: {error}; use dicts, lists, str, finite numbers, bool "
                    "and None"
                ) from error
    return fields


def too_large(size: int, limit: int) -> PayloadTooLarge:
    """Build the error for a payload above the limit."""
    return PayloadTooLarge(
        f"this payload takes {size:,} bytes, but the limit is {limit:,}: send a reference to the data instead, "
        "or raise MessagingConfig.payload_bytes",
        size=size,
        limit=limit,
    )


class PayloadColumn(msgspec.Struct, eq=False):
    """The JSON payloads of a batch.

    There are `count` lines, each of which is one encoded payload. Rows may share a line. `index`, uint32, has the
    number of the line of each row; if it is None, row i has line i.

    The lines are stored as one blob, in which each line ends with a newline, or as a list of lines without newlines.
    The blob is made from the list, or the list from the blob, on first use.
    """

    _blob: bytes | None
    count: int
    index: NDArray[np.uint32] | None = None
    _at: int = 0  # the position in the blob at which the lines begin; the blob may be a whole frame
    _list: list[bytes] | None = None
    _nbytes: int = -1  # the size of all lines in bytes; -1: not counted yet
    _ends: NDArray[np.intp] | None = None
    raw: bool = False
    _by_row: list[bytes] | None = None

    def __repr__(self) -> str:
        return f"PayloadColumn({self.count:,} payloads)"  # payloads are left out, as this text may be logged

    @classmethod
    def of(
        cls, lines: list[bytes], index: NDArray[np.uint32] | None = None, *, raw: bool = False, nbytes: int = -1
    ) -> "PayloadColumn":
        """Build a column from encoded payloads, one for each line.

        With `raw` the lines were published by programs without this library, and may contain newlines.

        Args: `index` has the line of each row (None: row i has line i). `nbytes` is the size of all lines with their
        newlines (-1: unknown).
        """
        return cls(None, len(lines), index, 0, lines, nbytes, None, raw)

    @classmethod
    def cut(cls, blob: bytes, lengths: Sequence[int], index: NDArray[np.uint32] | None = None) -> "PayloadColumn":
        """Build a column of `raw` lines from a blob in which they follow each other without separators.

        Args: `lengths` has the size of each line. `index` has the line of each row (None: row i has line i).
        """
        ends = np.cumsum(np.asarray(lengths, np.int64)).tolist()
        return cls.of([blob[end - length : end] for end, length in zip(ends, lengths, strict=True)], index, raw=True)

    @classmethod
    def encode(cls, payloads: Sequence[object], limit_bytes: int) -> "PayloadColumn":
        """Encode payloads, one for each row, in a single pass if possible.

        Raises: InvalidPayload or PayloadTooLarge. The error names the row, but if a payload has a msgspec.Raw with a
        newline, the error may name no row.
        """
        kinds = set(map(type, payloads))
        if kinds <= {dict} or (len(kinds) == 1 and is_native(*kinds)):
            try:
                text = plain_text(payloads if kinds <= {dict} else [*map(parts_of, payloads)])
                lines = plain_lines(text, payloads) if text is not None and kinds == {dict} else None
                blob = encode_lines(payloads) if lines is None else lines
                doubtful = text is None or (may_have_null(blob) and not all_finite(payloads))
            except _REFUSALS:
                doubtful = True
            if not doubtful:  # doubtful payloads are encoded row by row below, where an error names the row
                made = cls(blob, len(payloads))
                if _count(blob, 0) != len(payloads):
                    raise InvalidPayload(_NEWLINE)
                # If the blob is not above the limit, no payload is. Each line has one byte more than its payload.
                if len(blob) <= limit_bytes or int(made.weights.max()) - 1 <= limit_bytes:
                    return made
        return cls.of([_encode_row(row, payload, limit_bytes) for row, payload in enumerate(payloads)])

    @property
    def small(self) -> bool:
        """Return whether all rows are known to be small, so that a batch may have more of them.

        This is False, because only the rows of typed columns are known to be small.
        """
        return False

    @property
    def json(self) -> "PayloadColumn":
        """Return the payloads as JSON lines, which is this object itself."""
        return self

    @property
    def blob(self) -> bytes:
        """Return all lines as one blob, in which a newline follows each line, unless the lines are raw."""
        if self._blob is None:
            assert self._list is not None
            self._blob = b"".join(self._list) if self.raw else b"\n".join([*self._list, b""])
        elif self._at:
            self._blob, self._at, self._ends = self._blob[self._at :], 0, None
        return self._blob

    @property
    def view(self) -> bytes | memoryview:
        """Return the same bytes as `blob`, without a copy if the column was decoded from the end of a larger buffer."""
        return memoryview(self._blob)[self._at :] if self._blob is not None and self._at else self.blob

    @property
    def list(self) -> "list[bytes]":
        """Return the lines, without newlines."""
        if self._list is None:
            assert self._blob is not None
            # This is a temporary copy, which is freed after the split.
            text = self._blob[self._at :] if self._at else self._blob
            self._list = text.split(b"\n")[:-1]
        return self._list

    @property
    def by_row(self) -> Sequence[bytes]:
        """Return the payload of each row."""
        if self._by_row is None:
            lines = self.list
            self._by_row = lines if self.index is None else [*map(lines.__getitem__, self.index.tolist())]
        return self._by_row

    @property
    def nbytes(self) -> int:
        """Return the size of the lines in bytes, without making the blob."""
        if self._nbytes < 0:
            if self._list is not None:
                self._nbytes = sum(map(len, self._list)) + self.count
            else:
                self._nbytes = len(self._blob or b"") - self._at
        return self._nbytes

    @property
    def weights(self) -> NDArray[np.int64]:
        """Return the size of each line in bytes with its newline, int64 (count,)."""
        if self._list is not None:
            return np.fromiter(map(len, self._list), np.int64, self.count) + 1
        return np.diff(self._line_ends(), prepend=self._at)

    @property
    def volumes(self) -> NDArray[np.int64]:
        """Return for each line the size of all lines up to and including it, with newlines, int64 (count,)."""
        return self._line_ends() - self._at if self._list is None else np.cumsum(self.weights)

    def _line_ends(self) -> NDArray[np.intp]:
        """Return the positions in `_blob` after each newline. The column must have a blob, and no raw lines."""
        if self._ends is None:
            assert self._blob is not None
            text = np.frombuffer(self._blob, np.uint8, offset=self._at)
            self._ends = np.flatnonzero(text == LINE_END) + (self._at + 1)
        return self._ends

    def pack(self) -> None:
        """Keep the lines only as a blob, unless they are raw.

        The list of lines is dropped now, because a list would be slow to free later.
        """
        if not self.raw:
            if self._blob is None:
                self._blob = self.blob
            self._list = self._by_row = self._ends = None

    def row(self, row: int) -> bytes:
        """Return the payload of a row."""
        return self.list[row if self.index is None else self.index[row]]

    def take(self, rows: NDArray[np.intp]) -> "PayloadColumn":
        """Return the payloads of some rows. A line that several rows share is stored once."""
        if self.index is None and self._list is None and self._blob is not None and adjoin(rows):
            ends, low = self._line_ends(), int(rows[0])
            return PayloadColumn(self._blob[ends[low - 1] if low else self._at : ends[rows[-1]]], len(rows))
        lines = self.list
        if self.index is None:
            return PayloadColumn.of([lines[row] for row in rows.tolist()], raw=self.raw)
        used, index = _distinct(self.index[rows], self.count)
        return PayloadColumn.of([*map(lines.__getitem__, used.tolist())], index, raw=self.raw)

    def with_index(self, index: NDArray[np.uint32] | None) -> "PayloadColumn":
        """Return a column with the same lines. In it, `index` says for each row which line the row has."""
        return PayloadColumn(self._blob, self.count, index, self._at, self._list, self._nbytes, self._ends, self.raw)

    def replaced(self, changed: "dict[int, bytes]", rows: int) -> "PayloadColumn":
        """Return a column in which the payloads of some rows are replaced.

        Args: `changed` has the new payloads, encoded, by row. `rows` is the number of rows of this column.
        """
        if self.index is None:
            lines = list(self.list)
            for row, line in changed.items():
                lines[row] = line
            return PayloadColumn.of(lines, raw=self.raw)
        index, places = self.index.copy(), dict[bytes, int]()  # rows with equal new payloads share a line
        index[list(changed)] = [self.count + places.setdefault(line, len(places)) for line in changed.values()]
        return PayloadColumn.of([*self.list, *places], index, raw=self.raw).take(np.arange(rows))

    def whole(self, rows: int) -> bool:
        """Return whether a decoded column is consistent, and has a line for each of its `rows` rows."""
        if not self.raw:
            blob = self.blob if self._blob is None else self._blob
            if _count(blob, self._at) != self.count or (len(blob) > self._at and blob[-1] != LINE_END):
                return False
        if self.index is None:
            return self.count == rows
        return not rows or int(self.index.max()) < self.count


def _distinct(lines: NDArray[np.uint32], count: int) -> tuple[NDArray[Any], NDArray[np.uint32]]:
    """Return the distinct line numbers, ascending, and for each item of `lines` its index among the distinct numbers.

    Each line number is less than `count`.
    """
    if count > _SPARSE * len(lines):
        used, index = np.unique(lines, return_inverse=True)
        return used, index.astype(np.uint32)
    occurs = np.zeros(count, np.bool_)
    occurs[lines] = True
    # For each line that occurs, its position among the lines that occur, from 1.
    places = np.cumsum(occurs, dtype=np.uint32)
    places -= np.uint32(1)
    return np.flatnonzero(occurs), places[lines]


def _count(blob: bytes, at: int) -> int:
    """Return the number of newlines in a blob from the position `at` on."""
    if not _FEW <= len(blob) - at <= _MANY:
        return blob.count(b"\n", at)
    return int(np.count_nonzero(np.frombuffer(blob, np.uint8, offset=at) == LINE_END))


def adjoin(rows: NDArray[np.intp]) -> bool:
    """Return whether rows are consecutive."""
    return len(rows) > 0 and int(rows[-1]) - int(rows[0]) == len(rows) - 1 and bool((np.diff(rows) == 1).all())


def _encode_row(row: int, payload: object, limit_bytes: int) -> bytes:
    try:
        return encode_payload(payload, limit_bytes)
    except (InvalidPayload, PayloadTooLarge) as error:
        error.args = (f"row {row}: {error}",)
        raise
