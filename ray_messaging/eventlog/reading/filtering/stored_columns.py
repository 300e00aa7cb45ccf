"""Columns as files and tables have them: those that one lacks, typed payloads, and their JSON text."""

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ray_messaging.errors import InvalidQuery
from ray_messaging.eventlog.schema import POSITION, SCHEMA, TEXT, TYPED, channel_head, typed_names
from ray_messaging.model.typed.input import columns as typed_columns

ALL_TYPED = TYPED + "*"  # in place of the columns of typed payloads that there are
AS_TEXT = "payload as text"  # the payload as JSON text, which is made where it has typed columns
CHANNEL = "channel"
_MAKES_CHANNEL = (CHANNEL, "to_id", "to_name", "subtopic")  # in the rows of typed payloads
_TEXT = SCHEMA.field(TEXT).with_nullable(True)


def needed_of(names: Iterable[str], there: Sequence[str]) -> list[str]:
    """Return the columns to read for some names, of those that are there."""
    needed: dict[str, None] = {}
    for name in names:
        typed = name == ALL_TYPED or (name == AS_TEXT and TEXT not in there)
        needed |= dict.fromkeys(typed_names(there) if typed else [TEXT if name == AS_TEXT else name])
        if name == CHANNEL and TEXT not in there:
            needed |= dict.fromkeys(_MAKES_CHANNEL)
    return [name for name in needed if name in there]


def completed(table: pa.Table, names: Iterable[str]) -> pa.Table:
    """Return a table with columns of these names, in their order; one that the table lacks has only nulls.

    In a file, a column without a null is not nullable: here each is what it is in others.
    """
    found: dict[pa.Field, pa.ChunkedArray] = {}
    there = table.column_names
    for name in names:
        if name == ALL_TYPED:
            found |= {table.schema.field(typed).with_nullable(True): table[typed] for typed in typed_names(there)}
        elif name == AS_TEXT:
            found[pa.field(AS_TEXT, _TEXT.type)] = table[TEXT] if TEXT in there else texts_of(table)
        elif name == CHANNEL and channel_head(table.schema):
            found[SCHEMA.field(CHANNEL)] = _channels(table)
        elif name in there:
            found[table.schema.field(name).with_nullable(_field(name).nullable)] = table[name]
        else:
            field = _TEXT if name == TEXT else _field(name)
            found[field] = pa.nulls(len(table), field.type)
    return pa.table([*found.values()], schema=pa.schema([*found]))


def _field(name: str) -> pa.Field:
    if name == POSITION.name:
        return POSITION
    return pa.field(name, pa.null()) if name.startswith(TYPED) else SCHEMA.field(name)


def texts_of(table: pa.Table) -> pa.Array:
    """Return typed payloads as JSON text, as their recipients read it."""
    names = typed_names(table.column_names)
    found = {name.removeprefix(TYPED): table[name] for name in names}
    return pa.array(typed_columns(found).list, pa.large_binary()).cast(_TEXT.type)


def _channels(table: pa.Table) -> pa.ChunkedArray:
    """Return the channels of rows with typed payloads: one that is null is composed."""
    there = table.column_names
    if CHANNEL in there and not table[CHANNEL].null_count:
        return table[CHANNEL]
    texts = [table[name].cast(pa.string()) for name in ("to_name", "to_id") if name in there]
    (head,) = channel_head(table.schema).values()
    made = pc.binary_join_element_wise(head, pc.coalesce(*texts), ":", table["subtopic"].cast(pa.string()), "")
    found = pc.coalesce(table[CHANNEL].cast(pa.string()), made) if CHANNEL in there else made
    return found.dictionary_encode()


def typed_schema(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """Return the columns of typed payloads that rows of these schemas have, with their types when they are unified."""
    fields = [[schema.field(name).with_nullable(True) for name in typed_names(schema.names)] for schema in schemas]
    return unified([pa.schema(each).empty_table() for each in [[], *fields]]).schema


def with_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table with the columns of a schema at its end."""
    whole = unified([table, schema.empty_table()])
    for field in schema:
        if whole.schema.field(field.name).type != field.type:
            raise InvalidQuery(
                f"column {field.name!r} has whole numbers that {field.type}, the type of all its rows, does not hold "
                "exactly: export to .jsonl",
                field="path",
                value=field.name,
            )
    others = [name for name in table.column_names if name not in schema.names]
    return whole.select([*others, *schema.names])


def unified(tables: Sequence[pa.Table]) -> pa.Table:
    """Join tables whose columns may differ: a missing one has nulls, and one of several types their common type.

    That is a number for numbers that one type holds exactly, else text.
    """
    if all(table.schema == tables[0].schema for table in tables[1:]):
        return pa.concat_tables(tables)
    kinds: dict[str, list[pa.DataType]] = {}
    for field in (field for table in tables for field in table.schema):
        found = kinds.setdefault(field.name, [])
        if field.type not in found:  # equal ones may have different hashes
            found.append(field.type)
    unlike = {name for name, found in kinds.items() if len(found) > 1 and not _all_numbers(found)}
    try:
        return pa.concat_tables([with_texts(table, unlike) for table in tables], promote_options="permissive")
    except pa.ArrowInvalid:  # a number that the common type does not hold
        unlike = {name for name, found in kinds.items() if len(found) > 1}
        return pa.concat_tables([with_texts(table, unlike) for table in tables], promote_options="permissive")


def _all_numbers(kinds: Sequence[pa.DataType]) -> bool:
    return all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in kinds)


def with_texts(table: pa.Table, names: set[str]) -> pa.Table:
    """Return a table with some columns as text."""
    for place, name in enumerate(table.column_names):
        if name in names and not pa.types.is_large_string(table[name].type):
            table = table.set_column(place, name, _as_text(table[name]))
    return table


def _as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_nested(column.type):
        texts = [None if value is None else str(value) for value in column.to_pylist()]
        return pa.chunked_array([pa.array(texts, pa.large_string())])
    return column.cast(pa.large_string())
