"""Columns of the event log: one row per send and recipient.

A column in OPTIONAL is left out of a file in which it has no value. Readers then get nulls. The last column of each
file is `position`, the number of the row in the log.

A payload is JSON text in the column `payload`, or it is in typed columns, where a column x of the sender is
`payload.x`. If x has several types in a file, `payload.x` has the values of the first type. The values of another type,
such as int64, are in `payload[int64].x`. A row has null in the typed columns that do not belong to its payload. If the
payloads in a file have different sets of typed columns, the column `payload_columns` has the names and types of each
row's typed columns, in their order. A file with typed columns lacks all columns without a value. A row with a typed
payload may have null as its channel. Readers then compose the channel from the recipient's id and the subtopic (see
`channel_head`).

The encoding of each column in Parquet was chosen by the time to write it and its size on disk. The table has the time
and the size per row, measured on one core with payloads of 75 bytes and 1,000 agents. The numbers in brackets are for
1,000,000 agents.

    payload                            135 ns  31 B      lz4
    message_id                          22 ns   4.9 B    snappy, no dictionary; as differences of texts: 41 ns, 0.2 B
    channel                              7 ns   1.4 B    dictionary (36 ns, 5.4 B: snappy, no dictionary)
    each of from_id, to_id               9 ns   1.4 B    differences (10 ns, 2.7 B)
    each of times, step, row, position   5 ns   0.1 B    differences
    each other column              2 to 7 ns   0.01 B    dictionary

A whole row takes 260 ns and 40 bytes (285 ns, 49 bytes). With zstd 1 instead of lz4, each dictionary column would take
2 ns more. The channels of 1,000,000 agents would take 34 ns more and half of the bytes, payloads the same time and two
thirds of the bytes. But a query by agent must decompress all these columns. It would take 1.0 s for 10,000,000 rows
instead of 0.75 s. All rows of a row group are encoded at once, which takes 9% less time than 1,024 rows at a time. Row
groups of 262,144 rows would take 3% less, and row groups of 8,192 rows 12% more. With smaller row groups, a query by
agent reads less. A column that has the same value in all rows takes 10 ns if it may have nulls, else 5 ns.
"""

import base64
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ray_messaging.common.tables import pandas_types
from ray_messaging.model.typed.column import STRING

VERSION = 6
READABLE = (5, VERSION)  # a segment of version 5 can be read only if it is not split, see `folder`
OF_BROADCASTS = ("pairs", "hearing_agents", "kept_pairs")
OF_EXTENSIONS = (
    "step_read", "ordinal", "audience", "audience_version", "in_reply_to", "expects_answer", "caused_by"
)  # fmt: skip
OPTIONAL = OF_BROADCASTS + OF_EXTENSIONS

TEXT = "payload"  # the column of payloads that are JSON text
KINDS = "payload_columns"  # the column with the names of each row's typed columns; null: the payload is JSON text
POSITION = pa.field("position", pa.int64(), nullable=False)

_TYPED = "payload."  # names of typed columns begin with this, or with `_OF_TYPE` and a type
_OF_TYPE = "payload["
# The key of the text with which channels begin, in the metadata of tables and files with typed payloads.
_HEAD = b"channel_head"

_NAME = pa.dictionary(pa.int32(), pa.string())

# An int id is in from_id or to_id, a str id in from_name or to_name. from_id and from_name are both null for a message
# from the user, the person outside the simulation. to_id and to_name are both null for a message to the user or on a
# plain channel, and in a row that stands for several hearers of a broadcast. `entry` and `row` give the place in a
# stream at which the row was read. The rows of one mailbox are in the order of `entry` and `row`. `entry`, `row`,
# `mailbox` and `noted` together are unique. `noted` is true for rows from the log stream, which are blocked, published,
# undeliverable or rewritten messages.
SCHEMA = pa.schema(
    [
        pa.field("message_id", pa.string(), nullable=False),
        pa.field("step", pa.int64()),  # the step in which the message was sent
        pa.field("step_read", pa.int64()),  # the step in which the recipient reads the message
        # The number of the message among its sender's accepted messages of the step, from 0. Messages that rules added
        # have numbers from FIRST_ADDED on, and messages from outside of steps from FIRST_OUTSIDE on, see `box_frames`.
        pa.field("ordinal", pa.int64()),
        pa.field("channel", _NAME),  # null: readers compose the channel from the recipient's id
        pa.field("subtopic", _NAME),  # null on plain channels, which belong to no agent
        pa.field("from_id", pa.int64()),
        pa.field("to_id", pa.int64()),
        pa.field("from_name", _NAME),
        pa.field("to_name", _NAME),
        pa.field("audience", _NAME),
        pa.field("audience_version", pa.int64()),
        pa.field("pairs", pa.int64()),  # the number of hearers of a broadcast in the mailbox
        pa.field("hearing_agents", _NAME),  # the digest of the mailbox's set of agents
        # Which of the sender's hearers in the mailbox get the broadcast, see `audiences.folding`; null: all of them.
        pa.field("kept_pairs", pa.binary()),
        pa.field("in_reply_to", pa.string()),  # message_id of the question
        pa.field("expects_answer", pa.bool_()),
        # The message_id of the message that the sender was handling when it sent this one; null for messages of steps.
        pa.field("caused_by", pa.string()),
        pa.field("payload", pa.large_string()),  # JSON text; null: the payload is in typed columns
        pa.field("payload_before", pa.large_string()),  # the payload before a rule rewrote it
        pa.field("labels", pa.list_(pa.string())),  # null: no labels
        pa.field("sent_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field(
            "delivered_at", pa.timestamp("us", tz="UTC")
        ),  # when the server accepted the message; null if it was not delivered
        pa.field("fate", _NAME, nullable=False),  # how the send ended, see model.fates
        pa.field("rule", _NAME),  # the rule that blocked or rewrote the message
        pa.field("reason", _NAME),
        pa.field("sender", _NAME, nullable=False),  # the messager that sent the message
        pa.field("mailbox", _NAME),  # the mailbox to which the message was delivered
        pa.field("noted", pa.bool_(), nullable=False),
        pa.field("entry", _NAME, nullable=False),
        pa.field("row", pa.int32(), nullable=False),
    ]
)
# Columns of whole numbers, ids included, that may be null.
NUMBERS = frozenset(field.name for field in SCHEMA if pa.types.is_integer(field.type) and field.nullable)


def head_of(exp_id: str) -> dict[bytes, str]:
    """Return metadata for an experiment's tables, from which readers compose channels that are stored as null."""
    return {_HEAD: f"exps:{exp_id}:agents:"}


def channel_head(of: Any) -> dict[str, str]:  # noqa: ANN401 - a pyarrow.Schema, or a file's metadata
    """Return the metadata with the text that begins the channels of rows with typed payloads; {} if there is none.

    A channel that is stored as null consists of this text, the recipient's id, ":" and the subtopic.
    """
    head = (of.metadata or {}).get(_HEAD)
    return {} if head is None else {_HEAD.decode(): head.decode()}


def with_pandas_types(schema: pa.Schema) -> pa.Schema:
    """Return a schema with which pandas reads whole numbers exactly, even if some are null."""
    named = [schema.field(name) for name in schema.names if name in NUMBERS or _is_typed(name)]
    return schema.with_metadata(pandas_types(named))


# -- typed columns ----------------------------------------------------------------------------------------------------


def typed_names(names: Sequence[str]) -> list[str]:
    """Return the names of typed columns that are among the given names."""
    return [name for name in names if _is_typed(name)]


def _is_typed(name: str) -> bool:
    return name.startswith((_TYPED, _OF_TYPE))


def sent_name(name: str) -> str:
    """Return the name that a sender gave to a typed column, such as "x" for columns(x=...)."""
    return name.removeprefix(_TYPED) if name.startswith(_TYPED) else name.partition("].")[2]


def plain_name(name: str) -> str:
    """Return a typed column's name without its type, such as `payload.x`.

    If x has several types, only one of its columns in a file has this name, and the others have names with types.
    """
    return f"{_TYPED}{sent_name(name)}"


def name_with_type(name: str, kind: str) -> str:
    """Return a typed column's name with its type, as `ColumnType` spells it.

    The name leaves out the length of vectors, so vectors of all lengths are in the same column.
    """
    return f"{_OF_TYPE}{kind.partition(' of ')[0]}].{name}"


def with_types_in_names(table: pa.Table) -> pa.Table:
    """Return a table in which the names of typed columns contain their types.

    In such tables, columns with equal names have equal types.
    """
    names = [
        name_with_type(sent_name(field.name), _spelled(field.type)) if field.name.startswith(_TYPED) else field.name
        for field in table.schema
    ]
    return table if names == table.column_names else table.rename_columns(names)


def _spelled(kind: pa.DataType) -> str:
    if pa.types.is_large_list(kind):
        return f"{_spelled(kind.value_type)} vectors"
    if pa.types.is_primitive(kind):
        return str(np.dtype(kind.to_pandas_dtype()))
    return STRING if pa.types.is_large_string(kind) else str(kind)


def joined_rows(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """Join rows of several tables. A row has null in the columns that its table lacks.

    In `batches`, the names of typed columns must contain their types.
    """
    tables = [pa.Table.from_batches([batch]) for batch in batches]
    heads = [table.schema.metadata for table in tables if table.schema.metadata]
    whole = pa.concat_tables(tables, promote_options="default")
    return whole.replace_schema_metadata(heads[0]) if heads else whole


def laid_out(table: pa.Table) -> pa.Table:
    """Return a table with the names and the order of columns that files have.

    In `table`, the names of typed columns contain their types.
    """
    typed: dict[str, str] = {}
    for name in typed_names(table.column_names):
        plain = plain_name(name)
        typed[name] = name if plain in typed.values() else plain
    if not typed:
        return table
    kinds = table[KINDS]
    several = kinds.null_count or len(kinds.unify_dictionaries().chunk(0).dictionary) > 1
    place = SCHEMA.get_field_index(TEXT)
    payloads = [name for name in (TEXT, *([KINDS] if several else []), *typed) if name in table.column_names]
    order = [*SCHEMA.names[:place], *payloads, *SCHEMA.names[place + 1 :]]
    made = table.select(order).rename_columns([typed.get(name, name) for name in order])
    return made.replace_schema_metadata(table.schema.metadata)


def without_empty(table: pa.Table) -> pa.Table:
    """Return a table without the optional columns that have no value: each one would make writing 2% slower.

    If the table has typed columns, all columns are optional.
    """
    may_go = table.column_names if typed_names(table.column_names) else OPTIONAL
    empty = [name for name in may_go if name in table.column_names and table[name].null_count == len(table)]
    return table.drop_columns(empty)


def with_positions(table: pa.Table, first_row: int) -> pa.Table:
    """Return rows with a column of their positions in the log. The first row has the position `first_row`."""
    return table.append_column(POSITION, pa.array(np.arange(first_row, first_row + len(table))))


ROW_GROUP_ROWS = 32_768

# A column with more distinct values than this is stored without a dictionary. Each row group repeats the whole
# dictionary of the segment, so a long dictionary saves nothing.
DICTIONARY_ENTRIES = ROW_GROUP_ROWS // 4

_NUMBERS = {
    "step", "step_read", "ordinal", "from_id", "to_id", "audience_version", "sent_at", "delivered_at", "row", "position"
}  # fmt: skip
_STATISTICS = ["step", "step_read", "from_id", "to_id", "sent_at", "fate", "in_reply_to", "position"]
_ALIKE = ("message_id", "channel")  # Snappy makes these short texts as small as LZ4 does, in 3/4 of the time


def as_stored(table: pa.Table) -> pa.Table:
    """Return a table with its columns as Parquet stores them.

    A column without nulls is declared as not nullable. That halves the time to write a column in which all values are
    equal. The chunks of a dictionary column get one common dictionary, because Parquet gives up dictionary encoding if
    the dictionary changes. A column whose dictionary would be too long becomes plain texts.
    """
    columns = [stored_column(column) for column in table.columns]
    fields = [
        field.with_type(column.type).with_nullable(column.null_count > 0)
        for field, column in zip(table.schema, columns, strict=True)
    ]
    return pa.table(columns, schema=pa.schema(fields))


def stored_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a dictionary column with one dictionary, or as plain texts if the dictionary would be too long.

    Return other columns as they are.
    """
    if not pa.types.is_dictionary(column.type):
        return column
    if all(len(chunk.dictionary) <= DICTIONARY_ENTRIES for chunk in column.chunks):
        column = column.unify_dictionaries()
    if all(len(chunk.dictionary) <= DICTIONARY_ENTRIES for chunk in column.chunks):
        return column
    return pa.chunked_array([*map(_texts, column.chunks)], column.type.value_type)


def _texts(column: pa.DictionaryArray) -> pa.Array:
    """Return the plain texts of a dictionary column.

    This is fast if each row has an entry of its own in the dictionary, which is common in the log.
    """
    names, codes = column.dictionary, column.indices
    if len(names) == len(codes) and not codes.null_count and np.array_equal(codes, np.arange(len(codes))):
        return names
    return names.take(codes)


def type_record(schema: pa.Schema) -> dict[str, str]:
    """Return an entry for a file's metadata that tells Arrow and pandas the types of the columns."""
    return {"ARROW:schema": base64.b64encode(with_pandas_types(schema).serialize()).decode()}


def parquet_options(stored: pa.Table) -> dict[str, Any]:
    """Return the options with which ParquetWriter writes a table of `as_stored`.

    The file then lacks a record of Arrow's types, which `type_record` adds.
    """
    typed = [stored.schema.field(name) for name in typed_names(stored.column_names)]
    numbers = _NUMBERS.union(field.name for field in typed if pa.types.is_integer(field.type))
    others = [field for field in stored.schema if field.name not in numbers]
    repeating = [field for field in others if pa.types.is_dictionary(field.type) or field.name == "labels"]
    return {
        "compression": {_path(field): "SNAPPY" if field.name in _ALIKE else "LZ4" for field in others},
        "use_dictionary": [*map(_path, repeating)],
        "column_encoding": {name: "DELTA_BINARY_PACKED" for name in stored.column_names if name in numbers},
        "write_statistics": [*_STATISTICS, *map(_path, typed)],
        "write_batch_size": ROW_GROUP_ROWS,
        "write_page_index": True,
        # Checksums take 3% of the time of writing. With them, reading a damaged page raises an error.
        "write_page_checksum": True,
        "store_schema": False,
    }


def _path(field: pa.Field) -> str:
    """Return the name by which Parquet's options address the values of a column."""
    nested = pa.types.is_list(field.type) or pa.types.is_large_list(field.type)
    return f"{field.name}.list.element" if nested else field.name
