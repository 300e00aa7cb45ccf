"""Columns as files and tables have them: those that one lacks, composed channels, JSON text of typed payloads."""

import pyarrow as pa
import pyarrow.compute as pc

from ray_messaging.eventlog.schema import POSITION, SCHEMA, TEXT, TYPED, channel_head, typed_names
from ray_messaging.model.typed.input import columns as typed_columns

_CHANNEL = "channel"


def is_there(name: str, schema: pa.Schema) -> bool:
    """Return whether rows of a schema have a column."""
    return name in schema.names or (name == _CHANNEL and bool(channel_head(schema)))


def stored_column(name: str, schema: pa.Schema) -> pc.Expression:
    """Return a column of rows of a schema; one that it lacks has only nulls."""
    if name == _CHANNEL and channel_head(schema):
        return _channel(schema)
    return pc.field(name) if name in schema.names else pc.scalar(pa.scalar(None, field_of(name).type))


def _channel(schema: pa.Schema) -> pc.Expression:
    """Return the channels of rows with typed payloads: one that is null is composed."""
    (head,) = channel_head(schema).values()
    *ends, subtopic = (stored_column(name, schema).cast(pa.string()) for name in ("to_name", "to_id", "subtopic"))
    made = pc.binary_join_element_wise(pc.scalar(head), pc.coalesce(*ends), pc.scalar(":"), subtopic, pc.scalar(""))
    return pc.coalesce(pc.field(_CHANNEL).cast(pa.string()), made) if _CHANNEL in schema.names else made


def field_of(name: str, kind: pa.DataType | None = None) -> pa.Field:
    """Return the field of a column in results, of another type if one is given."""
    if name == POSITION.name:
        return POSITION
    if name not in SCHEMA.names:
        return pa.field(name, kind or pa.null())
    field = SCHEMA.field(name)
    named = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    return pa.field(name, kind or named, field.nullable or name == TEXT)


def texts_of(table: pa.Table) -> pa.Array:
    """Return typed payloads as JSON text, as their recipients read it."""
    found = {name.removeprefix(TYPED): table[name] for name in typed_names(table.column_names)}
    return pa.array(typed_columns(found).list, pa.large_binary()).cast(SCHEMA.field(TEXT).type)
