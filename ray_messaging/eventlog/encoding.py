"""Parquet encoding of the event log's columns, chosen by time to write and size on disk.

Measured on one core, payloads of 75 bytes, 1,000 agents (1,000,000 agents): in ns and bytes per row

    payload                          135 ns  31 B       lz4
    message_id                        22 ns   4.9 B     snappy, no dictionary; as text differences 41 ns and 0.2 B
    channel                            7 ns   1.4 B     dictionary; a million of them without: 36 ns, 5.4 B, snappy
    from_id, to_id                     9 ns   1.4 B     each, differences (10 ns, 2.7 B)
    times, step, row, position         5 ns   0.1 B     each, differences
    all others                   2 to 7 ns   0.01 B     each, dictionary

and together 260 ns and 40 bytes (285 ns, 49 bytes). With zstd 1 in place of lz4 each dictionary column takes 2 ns more,
a million channels 34 ns more and half the bytes, payloads the same time and two thirds of the bytes. But a query by
agent decompresses all of these: 1.0 s for 10,000,000 rows, against 0.75 s. Writing a row group at a time saves 9%
against 1,024 rows. Row groups of 262,144 rows would save 3%, of 8,192 cost 12% more. Smaller ones let a query by agent
read less. A column of one value takes 10 ns where it may have nulls, else 5.
"""

import base64
from typing import Any

import numpy as np
import pyarrow as pa

from ray_messaging.eventlog.schema import typed_names, with_pandas_types

ROW_GROUP_ROWS = 32_768

# Each row group repeats the segment's whole dictionary: one as long as the column would gain nothing.
DICTIONARY_ENTRIES = ROW_GROUP_ROWS // 4

_NUMBERS = {
    "step", "step_read", "ordinal", "from_id", "to_id", "audience_version", "sent_at", "delivered_at", "row", "position"
}  # fmt: skip
_STATISTICS = ["step", "from_id", "to_id", "sent_at", "fate", "in_reply_to", "position"]
_ALIKE = ("message_id", "channel")  # short texts: Snappy takes three quarters of the time of LZ4, and as many bytes


def as_stored(table: pa.Table) -> pa.Table:
    """Return a table with the columns as Parquet stores them.

    One without a null is not nullable, which saves half the time where it has one value. Dictionaries are unified, as
    Parquet drops those that change. One that is too long becomes texts.
    """
    columns = [stored_column(column) for column in table.columns]
    fields = [
        field.with_type(column.type).with_nullable(column.null_count > 0)
        for field, column in zip(table.schema, columns, strict=True)
    ]
    return pa.table(columns, schema=pa.schema(fields))


def stored_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of names with one dictionary, or as texts where that would be too long; others as they are."""
    if not pa.types.is_dictionary(column.type):
        return column
    if all(len(chunk.dictionary) <= DICTIONARY_ENTRIES for chunk in column.chunks):
        column = column.unify_dictionaries()
    if all(len(chunk.dictionary) <= DICTIONARY_ENTRIES for chunk in column.chunks):
        return column
    return pa.chunked_array([*map(_texts, column.chunks)], column.type.value_type)


def _texts(column: pa.DictionaryArray) -> pa.Array:
    """Return the values of a column of names; in the log's rows each often has its own entry."""
    names, codes = column.dictionary, column.indices
    if len(names) == len(codes) and not codes.null_count and np.array_equal(codes, np.arange(len(codes))):
        return names
    return names.take(codes)


def type_record(schema: pa.Schema) -> dict[str, str]:
    """Return the entry of a file's metadata by which Arrow and pandas read the columns in the types of a schema."""
    return {"ARROW:schema": base64.b64encode(with_pandas_types(schema).serialize()).decode()}


def parquet_options(stored: pa.Table) -> dict[str, Any]:
    """Return the options of a ParquetWriter for a table of `as_stored`. It does not write the types of Arrow."""
    typed = [stored.schema.field(name) for name in typed_names(stored.column_names)]
    numbers = _NUMBERS.union(field.name for field in typed if pa.types.is_integer(field.type))
    others = [field for field in stored.schema if field.name not in numbers]
    return {
        "compression": {_path(field): "SNAPPY" if field.name in _ALIKE else "LZ4" for field in others},
        "use_dictionary": [_path(field) for field in others if _repeats(field)],
        "column_encoding": {name: "DELTA_BINARY_PACKED" for name in stored.column_names if name in numbers},
        "write_statistics": [*_STATISTICS, *map(_path, typed)],
        "write_batch_size": ROW_GROUP_ROWS,
        "write_page_index": True,
        "write_page_checksum": True,  # 3% of the time; a damaged page raises, and is never read as rows
        "store_schema": False,
    }


def _path(field: pa.Field) -> str:
    """Return Parquet's name of a column."""
    nested = pa.types.is_list(field.type) or pa.types.is_fixed_size_list(field.type)
    return f"{field.name}.list.element" if nested else field.name


def _repeats(field: pa.Field) -> bool:
    return bool(pa.types.is_dictionary(field.type)) or field.name == "labels"
