"""The log's columns of payloads: one column of JSON text, and typed columns, which are stored as they are."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ray_messaging.eventlog.log_schema import KINDS, TEXT, name_with_type
from ray_messaging.eventlog.writing.repeated_columns import coded, nulls, places, repeated
from ray_messaging.model.columns import PayloadColumn
from ray_messaging.model.typed.column import ColumnType
from ray_messaging.model.typed.typed_table import Payloads, TypedColumns

_TEXT = pa.large_string()
_FIRST_NOT_ASCII, _LINE_END = 128, ord("\n")
_MANY_BYTES = 2**16  # data up to this size stay in the processor's cache while they are joined

Kind = tuple[tuple[str, ColumnType], ...]  # the names and types of typed columns; (): the payloads are JSON text


def kind_of(payloads: Payloads | None) -> Kind:
    """Return the names and types of the columns of typed payloads, or () for JSON text."""
    return tuple(payloads.schema.items()) if isinstance(payloads, TypedColumns) else ()


@lru_cache(maxsize=256)
def _text_of(kind: Kind) -> str:
    """Return the text for the column KINDS: a JSON object with the names and types of typed columns."""
    return msgspec.json.encode({name: str(each) for name, each in kind}).decode()


def payload_columns(payloads: Sequence[Payloads | None], counts: Sequence[int]) -> dict[str, pa.Array]:
    """Build the columns of the payloads of several batches. `counts` are the batches' numbers of rows.

    The names of typed columns contain their types. If there are typed columns, the column KINDS names the typed columns
    of each row.
    """
    groups: dict[Kind, list[int]] = {}
    for number, each in enumerate(payloads):
        groups.setdefault(kind_of(each), []).append(number)
    made = [_columns_of(kind, [payloads[number] for number in numbers]) for kind, numbers in groups.items()]
    names = [_text_of(kind) for kind in groups]
    if len(groups) == 1:
        return made[0] if () in groups else made[0] | {KINDS: repeated(names, [sum(counts)])}
    kinds = np.empty(len(payloads), np.int32)
    for kind, numbers in enumerate(groups.values()):
        kinds[numbers] = kind
    kind_of_row = np.repeat(kinds, counts)
    rows = [np.flatnonzero(kind_of_row == kind) for kind in range(len(groups))]
    found: dict[str, list[int]] = {}
    for kind, columns in enumerate(made):
        for name in columns:
            found.setdefault(name, []).append(kind)
    whole = {
        name: _spread([made[kind][name] for kind in own], [rows[kind] for kind in own], sum(counts))
        for name, own in found.items()
    }
    as_text = [kind == () for kind in groups]
    return whole | {KINDS: coded(pa.array(kind_of_row, mask=np.array(as_text)[kind_of_row]), names)}


def _spread(columns: Sequence[pa.Array], rows: Sequence[NDArray[np.intp]], count: int) -> pa.Array:
    """Return a column of `count` rows. The values of each given column go to the given rows; other rows have null."""
    place_of = np.full(count, -1, np.int32)
    found = np.concatenate(rows)
    place_of[found] = places(len(found))
    return pa.concat_arrays(columns).take(pa.array(place_of, mask=place_of < 0))


def _columns_of(kind: Kind, payloads: Sequence[Payloads | None]) -> dict[str, pa.Array]:
    """Build the columns of payloads that all have the same columns and types, in order."""
    if not kind:
        return {TEXT: _text_column([each for each in payloads if isinstance(each, PayloadColumn)])}
    joined = TypedColumns.joined([each for each in payloads if isinstance(each, TypedColumns)])
    return {
        name_with_type(name, str(column.type)): _stored(column.to_arrow()) for name, column in joined.columns.items()
    }


def _stored(column: pa.Array) -> pa.Array:
    """Return a typed column as it is stored.

    Texts and vectors have offsets of 64 bits, because 32 bits are too few for the rows of a step.

    Vectors become lists, which take no space in rows without a vector.
    """
    if pa.types.is_fixed_size_list(column.type):
        width = column.type.list_size
        return pa.LargeListArray.from_arrays(np.arange(0, (len(column) + 1) * width, width), column.flatten())
    return column.cast(_TEXT) if pa.types.is_string(column.type) else column


def _text_column(payloads: Sequence[PayloadColumn]) -> pa.LargeStringArray:
    """Build the column of JSON text from all payloads, in order."""
    columns = []
    for few, found in groupby(payloads, _is_few):
        if few:
            some = [*found]
            columns.append(_texts(b"".join([lines.blob for lines in some]), sum(lines.count for lines in some)))
        else:
            columns += map(_column, found)
    return columns[0] if len(columns) == 1 else pa.concat_arrays(columns)


def _is_few(lines: PayloadColumn) -> bool:
    """Return whether a batch is so small that its payloads are best converted together with those of other batches."""
    return lines.index is None and not lines.raw and lines.nbytes < _MANY_BYTES


def _column(lines: PayloadColumn) -> pa.LargeStringArray:
    column = _readable(lines.list) if lines.raw else _texts(lines.blob, lines.count)
    return column if lines.index is None else column.take(pa.array(lines.index))


def _texts(blob: bytes, count: int) -> pa.LargeStringArray:
    """Return the lines of a blob, in which each line ends with a newline, as an array of texts."""
    if not _is_utf8(blob):
        return _readable(blob.split(b"\n")[:-1])
    ends = np.flatnonzero(np.frombuffer(blob, np.uint8) == _LINE_END)
    offsets = np.zeros(count + 1, np.int64)
    # The newlines are removed below. So an offset is the line's end in the blob less the number of newlines before it.
    np.subtract(ends, places(count), out=offsets[1:])
    return pa.LargeStringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(blob.replace(b"\n", b"")))


def _readable(lines: Sequence[bytes]) -> pa.LargeStringArray:
    return pa.array([readable(line) for line in lines], pa.large_binary()).cast(_TEXT)


def sparse_column(rows: int, payloads: Mapping[int, bytes]) -> pa.LargeStringArray:
    """Build a column in which only the given rows have a payload; other rows have null."""
    if not payloads:
        return nulls(rows, _TEXT)
    found: list[bytes | None] = [None] * rows
    for row, payload in payloads.items():
        found[row] = readable(payload)
    return pa.array(found, pa.large_binary()).cast(_TEXT)


def readable(payload: bytes) -> bytes:
    """Return a payload as valid UTF-8, because a foreign client may have published any bytes."""
    try:
        payload.decode()
    except UnicodeDecodeError:
        return payload.decode(errors="replace").encode()
    return payload


def _is_utf8(blob: bytes) -> bool:
    # numpy finds the largest byte in half of the time that `isascii` takes.
    if not blob or int(np.frombuffer(blob, np.uint8).max()) < _FIRST_NOT_ASCII:
        return True
    try:
        blob.decode()
    except UnicodeDecodeError:
        return False
    return True
