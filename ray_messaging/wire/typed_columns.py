"""Typed columns of payloads at the end of a frame.

The header describes each column by a name, a type and a width. The frame contains the columns' buffers, each at a
multiple of 8 bytes from the frame's start, so that numpy and Arrow can read them in place. A column of numbers has one
buffer, the values, little endian. A column of strings has two: offsets, int32, one more than there are rows, and the
UTF-8 text.
"""

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ray_messaging.errors import FrameError
from ray_messaging.model.typed.column import NUMBERS, STRING, NumberColumn, TextColumn, TypedColumn
from ray_messaging.model.typed.table import TypedColumns

_ALIGNMENT = 8
_OFFSET = np.dtype("<i4")


class ColumnField(NamedTuple):
    """Description of a column; the width is the length of its vectors, or 0 if a row is a single value."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    type: str
    width: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


def fields_of(table: TypedColumns) -> tuple[ColumnField, ...]:
    """Return the descriptions of a table's columns."""
    return tuple(ColumnField(name, *kind) for name, kind in table.schema.items())


def buffers_of(table: TypedColumns, at: int) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a table, which begin at position `at` of the frame."""
    for column in table.columns.values():
        for buffer in column.buffers:
            padding = -at % _ALIGNMENT
            if padding:
                yield bytes(padding)
            yield np.ascontiguousarray(buffer).data
            at += padding + buffer.nbytes


def read_columns(fields: tuple[ColumnField, ...], frame: bytes, at: int, rows: int, *, checked: bool) -> TypedColumns:
    """Read a table at the end of a frame; its columns are views of the frame. Raises FrameError if it is invalid.

    Args: `checked` says that another process has read the table, so that its values are not checked again.
    """
    buffers = _Buffers(frame, at)
    columns = {field.name: _column(field, buffers, rows, checked=checked) for field in fields}
    if len(columns) < len(fields) or not columns:
        raise _invalid("it has no column, or two of one name")
    if buffers.at != len(frame):
        raise _invalid("its payloads have another length")
    return TypedColumns(columns, rows)


def _column(field: ColumnField, buffers: "_Buffers", rows: int, *, checked: bool) -> TypedColumn:
    dtype = NUMBERS.get(field.type)
    if dtype is not None:
        values = buffers.cut(dtype, rows * max(1, field.width))
        if field.type == "bool" and not checked and len(values) and int(values.view(np.uint8).max()) > 1:
            raise _invalid(f"its column {field.name!r} has a bool that is neither 0 nor 1")
        return NumberColumn(values.reshape(rows, field.width) if field.width else values)
    if field.type != STRING or field.width:
        raise _invalid(f"its column {field.name!r} has the type {field.type!r}, which this library does not know")
    offsets = buffers.cut(_OFFSET, rows + 1)
    column = TextColumn(offsets, buffers.cut(np.dtype(np.uint8), max(0, int(offsets[-1]))))
    why = None if checked else column.trouble()
    if why is not None:
        raise _invalid(f"in its column {field.name!r} {why}")
    return column


class _Buffers:
    """Reader that returns the buffers of a frame one after the other, and never reads past the end."""

    __slots__ = ("_frame", "at")

    def __init__(self, frame: bytes, at: int) -> None:
        self._frame = frame
        self.at = at

    def cut(self, dtype: Any, count: int) -> NDArray[Any]:  # noqa: ANN401 - numpy's dtype
        """Return the next `count` values."""
        at = self.at + -self.at % _ALIGNMENT
        self.at = at + count * dtype.itemsize
        if self.at > len(self._frame):
            raise _invalid("it ends within a column")
        return np.frombuffer(self._frame, dtype, count, at)


def _invalid(reason: str) -> FrameError:
    return FrameError(f"invalid frame: {reason}; drop it, and find the client that wrote it")
