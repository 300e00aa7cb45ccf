"""Columns of query results: plain texts, one id column for each end, positions."""

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ray_messaging.addressing.channels import AgentId, check_id
from ray_messaging.eventlog.reading.filtering.stored_columns import ALL_TYPED, AS_TEXT, completed, unified
from ray_messaging.eventlog.schema import POSITION, SCHEMA, TEXT

INTERNAL = ("hearing_agents", "kept_pairs", "noted", "entry", "row")
COLUMNS: tuple[str, ...] = tuple(name for name in SCHEMA.names if name not in INTERNAL)
_NAMES_OF = {"from_id": "from_name", "to_id": "to_name"}


def stored(columns: Iterable[str]) -> list[str]:
    """Return the stored columns for names that users know."""
    found: list[str] = []
    for name in columns:
        found += [name, _NAMES_OF[name]] if name in _NAMES_OF else [name]
    return list(dict.fromkeys(found))


def with_text(columns: Iterable[str]) -> list[str]:
    """Return columns with the payload as JSON text."""
    return [AS_TEXT if name == TEXT else name for name in columns]


def text_named(table: pa.Table) -> pa.Table:
    """Return the result of a scan with the payload's JSON text under its usual name."""
    return table.rename_columns([TEXT if name == AS_TEXT else name for name in table.column_names])


def with_typed(columns: Iterable[str]) -> list[str]:
    """Return columns with those of typed payloads."""
    return [*columns, ALL_TYPED]


def as_id(value: AgentId | None) -> AgentId | None:
    """Return an id from a text column in its original type: no str id spells an int."""
    return check_id(value) if isinstance(value, str) else value


def plain(part: pa.Table) -> pa.Table:
    """Return a part with its dictionary columns as texts: row groups do not share dictionaries."""
    for place, field in enumerate(part.schema):
        if pa.types.is_dictionary(field.type):
            texts = pa.chunked_array([chunk.dictionary_decode() for chunk in part.column(place).chunks], pa.string())
            part = part.set_column(place, pa.field(field.name, pa.string(), field.nullable), texts)
    return part


def joined(parts: Sequence[pa.Table], columns: Sequence[str]) -> pa.Table:
    """Join plain parts; without any, return an empty table of these columns (and `position`)."""
    return unified(parts) if parts else plain(completed(_EMPTY, [*columns, POSITION.name]))


_EMPTY = SCHEMA.append(POSITION).empty_table()


def with_ids(table: pa.Table, *, as_text: bool | None = None) -> pa.Table:
    """Merge from_id and from_name into one column from_id, and to_id and to_name likewise.

    Both are int64, or both texts: an id must look the same at both ends. Args: as_text selects (None: texts if one id
    is a str).
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
