"""Conversion of stored columns to the columns of query results.

Files lack the columns that have no values. A sender's column with values of several types is stored as several columns,
and ids that are ints and strs are in two columns. Texts are dictionary-encoded. Query results have plain texts, one id
column for senders and one for recipients, and each column has one type.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import reduce

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ray_messaging.addressing.channels import AgentId, check_id
from ray_messaging.errors import InvalidQuery
from ray_messaging.eventlog.log_schema import (
    KINDS,
    POSITION,
    SCHEMA,
    TEXT,
    channel_head,
    name_with_type,
    plain_name,
    sent_name,
    typed_names,
    with_types_in_names,
)
from ray_messaging.model.typed.input import columns as typed_columns

_CHANNEL = "channel"


def is_there(name: str, schema: pa.Schema) -> bool:
    """Return whether a schema has the column of this name."""
    return name in schema.names or (name == _CHANNEL and bool(channel_head(schema)))


def stored_column(name: str, schema: pa.Schema) -> pc.Expression:
    """Return the expression that reads a column. A column that the schema lacks has only nulls.

    Channels that are not stored are composed of other columns.
    """
    if name == _CHANNEL and channel_head(schema):
        return _channel(schema)
    return pc.field(name) if name in schema.names else pc.scalar(pa.scalar(None, field_of(name).type))


def _channel(schema: pa.Schema) -> pc.Expression:
    """Return the expression that reads the channels.

    If a row's channel is null, the channel is composed from the recipient's id and the subtopic.
    """
    (head,) = channel_head(schema).values()
    *ends, subtopic = (stored_column(name, schema).cast(pa.string()) for name in ("to_name", "to_id", "subtopic"))
    made = pc.binary_join_element_wise(pc.scalar(head), pc.coalesce(*ends), pc.scalar(":"), subtopic, pc.scalar(""))
    return pc.coalesce(pc.field(_CHANNEL).cast(pa.string()), made) if _CHANNEL in schema.names else made


def field_of(name: str, kind: pa.DataType | None = None) -> pa.Field:
    """Return the field that a column has in query results.

    Args: `kind` is the type of the column; None: the type in the log's schema, or null if the schema lacks the column.
    """
    if name == POSITION.name:
        return POSITION
    if name not in SCHEMA.names:
        return pa.field(name, kind or pa.null())
    field = SCHEMA.field(name)
    named = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    return pa.field(name, kind or named, field.nullable)


def texts_of(table: pa.Table) -> pa.Array:
    """Return all payloads as JSON text, in the form in which recipients read them.

    The table must have all columns of payloads.
    """
    names = typed_names(table.column_names)
    if KINDS not in table.column_names:
        return _texts({sent_name(name): table[name] for name in names})
    kinds = table[KINDS].combine_chunks().dictionary_encode()
    kind_of_row, columns_of = kinds.indices.fill_null(-1).to_numpy(), kinds.dictionary.to_pylist()
    found, rows_of = [], []
    for kind in np.unique(kind_of_row).tolist():
        rows = np.flatnonzero(kind_of_row == kind)
        part = table.take(pa.array(rows))
        if kind < 0:
            found.append(part[TEXT].combine_chunks())
        else:
            types = msgspec.json.decode(columns_of[kind], type=dict[str, str])
            own = ((name, name_with_type(name, of), plain_name(name_with_type(name, of))) for name, of in types.items())
            found.append(_texts({name: part[typed if typed in names else plain] for name, typed, plain in own}))
        rows_of.append(rows)
    return pa.concat_arrays(found).take(pa.array(np.argsort(np.concatenate(rows_of))))


def _texts(columns: dict[str, pa.ChunkedArray]) -> pa.Array:
    return pa.array(typed_columns(columns).list, pa.large_binary()).cast(SCHEMA.field(TEXT).type)


INTERNAL = ("hearing_agents", "kept_pairs", "noted", "entry", "row")
COLUMNS: tuple[str, ...] = tuple(name for name in SCHEMA.names if name not in INTERNAL)
_NAMES_OF = {"from_id": "from_name", "to_id": "to_name"}


def stored(columns: Iterable[str]) -> list[str]:
    """Return the names of the stored columns that are needed to build the given columns of a result."""
    found: list[str] = []
    for name in columns:
        found += [name, _NAMES_OF[name]] if name in _NAMES_OF else [name]
    return list(dict.fromkeys(found))


def as_id(value: AgentId | None) -> AgentId | None:
    """Return the id for which a value in a column of ids stands.

    In a column of strs, a str that spells an int stands for an int id, because no str id spells an int.
    """
    return check_id(value) if isinstance(value, str) else value


def plain(part: pa.Table) -> pa.Table:
    """Return a table with plain texts in place of dictionary columns, because row groups do not share dictionaries."""
    for place, field in enumerate(part.schema):
        if pa.types.is_dictionary(field.type):
            texts = pa.chunked_array([chunk.dictionary_decode() for chunk in part.column(place).chunks], pa.string())
            part = part.set_column(place, pa.field(field.name, pa.string(), field.nullable), texts)
    return part


def joined(parts: Iterable[pa.Table], columns: Sequence[str]) -> pa.Table:
    """Join the parts of a query's result in one table, without typed columns that have no value.

    If there are no parts, return an empty table with `columns` and the column `position`.
    """
    found = [
        part.drop_columns([name for name in typed_names(part.column_names) if part[name].null_count == len(part)])
        for part in parts
    ]
    return unified(found) if found else pa.schema([*map(field_of, columns), POSITION]).empty_table()


def with_ids(table: pa.Table, *, as_text: bool | None = None) -> pa.Table:
    """Merge from_id and from_name into one column from_id, and to_id and to_name likewise.

    Both columns are int64, or both are strs, so that an id has the same form as a sender and as a recipient.

    Args: as_text says whether the columns are strs; None: they are strs if any id in the table is a str.
    """
    ends = {number: name for number, name in _NAMES_OF.items() if name in table.column_names}
    if as_text is None:
        as_text = any(table[name].null_count < len(table) for name in ends.values())
    for number, name in ends.items():
        if as_text:
            merged = pc.coalesce(table[name], table[number].cast(pa.string()))
            table = table.set_column(table.column_names.index(number), pa.field(number, pa.string()), merged)
        table = table.drop_columns([name])
    return table


def typed_schema(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """Return the columns of typed payloads (`payload.x`) in some schemas, with the types that `unified` gives them."""
    fields = [[schema.field(name).with_nullable(True) for name in typed_names(schema.names)] for schema in schemas]
    return unified([pa.schema(each).empty_table() for each in [[], *fields]]).schema


def with_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table with the columns of a schema as its last columns. Columns that the table lacks get only nulls.

    Raises: InvalidQuery if a column has values that its type in the schema cannot represent exactly.
    """
    whole = unified([table, schema.empty_table()])
    for field in schema:
        if whole.schema.field(field.name).type != field.type:
            raise InvalidQuery(
                f"column {field.name!r} cannot be exported to this format: its type there is {field.type}, which "
                "cannot represent some of its whole numbers exactly. Export to .jsonl",
                field="path",
                value=field.name,
            )
    others = [name for name in table.column_names if name not in schema.names]
    return whole.select([*others, *schema.names])


def unified(tables: Sequence[pa.Table]) -> pa.Table:
    """Join tables whose columns may differ. Missing columns get nulls, a column of several types gets a common type.

    The common type is a number type, if all types are number types and one of Arrow's types holds all values exactly.
    Otherwise it is a string.
    """
    whole = pa.concat_tables(map(with_types_in_names, tables), promote_options="default")
    columns: dict[str, list[str]] = {}
    for name in typed_names(whole.column_names):
        columns.setdefault(plain_name(name), []).append(name)
    for plain, names in columns.items():
        whole = whole.set_column(whole.column_names.index(names[0]), plain, _merged([whole[name] for name in names]))
        whole = whole.drop_columns(names[1:])
    return whole


def _merged(columns: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    """Merge columns of which at most one has a value in each row. The result has the common type, see `unified`."""
    if len(columns) == 1:
        return columns[0]
    if all(_is_number(column.type) for column in columns):
        kinds = [pa.schema({"x": column.type}) for column in columns]
        common = pa.unify_schemas(kinds, promote_options="permissive").field("x").type
        # Arrow raises ArrowInvalid if the common type cannot represent a number. Then all values become strings.
        with suppress(pa.ArrowInvalid):
            return reduce(_filled, [column.cast(common) for column in columns])
    return reduce(_filled, map(_as_text, columns))


def _filled(column: pa.ChunkedArray, other: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column in which the values of another column replace nulls.

    `pc.coalesce` is not used, because in Arrow 17 it may return 0 for columns that were cast.
    """
    return pc.if_else(column.is_valid(), column, other)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def with_texts(table: pa.Table, names: set[str]) -> pa.Table:
    """Return a table with the named columns as text."""
    for place, name in enumerate(table.column_names):
        if name in names:
            table = table.set_column(place, name, _as_text(table[name]))
    return table


def _as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_nested(column.type):
        texts = [None if value is None else str(value) for value in column.to_pylist()]
        return pa.chunked_array([pa.array(texts, pa.large_string())])
    return column.cast(pa.large_string())
