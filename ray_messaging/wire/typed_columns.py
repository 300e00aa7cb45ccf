"""Typed columns of payloads at the end of a frame.

The header describes each column by a name, a type and a width. The frame contains the columns' buffers, each at a
multiple of 8 bytes from the frame's start, so that numpy and Arrow can read them in place. A column of numbers has one
buffer, the values, little endian. A column of strings has two: offsets, int32, one more than there are rows, and the
UTF-8 text.
"""

from collections.abc import Iterator
from typing import Annotated, NamedTuple

import msgspec
import numpy as np

from ray_messaging.model.typed.column import NUMBERS, STRING, NumberColumn, TextColumn, TypedColumn
from ray_messaging.model.typed.typed_table import TypedColumns
from ray_messaging.wire.frame_reader import ALIGNMENT, FrameReader, invalid

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
            padding = -at % ALIGNMENT
            if padding:
                yield bytes(padding)
            yield np.ascontiguousarray(buffer).data
            at += padding + buffer.nbytes


def read_columns(fields: tuple[ColumnField, ...], reader: FrameReader) -> TypedColumns:
    """Read a table at the end of a frame; its columns are views of the frame. Raises FrameError if it is invalid."""
    columns = {field.name: _column(field, reader) for field in fields}
    if len(columns) < len(fields) or not columns:
        raise invalid("it has no column, or two of one name")
    if reader.at != len(reader.frame):
        raise invalid("its payloads have another length")
    return TypedColumns(columns, reader.rows)


def _column(field: ColumnField, reader: FrameReader) -> TypedColumn:
    rows, dtype = reader.rows, NUMBERS.get(field.type)
    if dtype is not None:
        values = reader.aligned_column(dtype, rows * max(1, field.width))
        if field.type == "bool" and not reader.checked and len(values) and int(values.view(np.uint8).max()) > 1:
            raise invalid(f"its column {field.name!r} has a bool that is neither 0 nor 1")
        return NumberColumn(values.reshape(rows, field.width) if field.width else values)
    if field.type != STRING or field.width:
        raise invalid(f"its column {field.name!r} has the type {field.type!r}, which this library does not know")
    offsets = reader.aligned_column(_OFFSET, rows + 1)
    column = TextColumn(offsets, reader.aligned_column(np.dtype(np.uint8), max(0, int(offsets[-1]))))
    why = None if reader.checked else column.trouble()
    if why is not None:
        raise invalid(f"in its column {field.name!r} {why}")
    return column
