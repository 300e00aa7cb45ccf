"""Tables that store the values of a study exactly. A column with values of several kinds is stored as JSON texts.

A column of ints and floats is stored as floats, and the column's metadata say which values are ints.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ray_messaging.common.tables import MOST_EXACT
from ray_messaging.model.series_columns import AGENT, TAKEN

# In the metadata of a column, the key _KIND has the value _JSON if the values are JSON texts, and the key _INTS says
# which values of a column of floats are ints.
_KIND, _JSON, _INTS = b"ray_messaging", b"json", b"ints"
_INT64 = 2**63


def exact_table(columns: Mapping[str, Sequence[Any]]) -> pa.Table:
    """Return a table of values, which `exact_values` turns back into exactly the same values."""
    fields, arrays = [], []
    for name, values in columns.items():
        kind = _kind_of(values)
        if kind is None:
            fields.append(pa.field(name, pa.string(), metadata={_KIND: _JSON}))
            arrays.append(pa.array([None if value is None else json.dumps(value) for value in values], pa.string()))
        else:
            whole = [type(value) is int for value in values] if kind == pa.float64() else []
            ints = {_INTS: np.packbits(whole).tobytes().hex()} if any(whole) else None
            fields.append(pa.field(name, kind, metadata=ints))
            arrays.append(pa.array(values, kind))
    return pa.table(arrays, schema=pa.schema(fields))


def exact_values(table: pa.Table) -> dict[str, list[Any]]:
    """Return the columns of a table that `exact_table` has made, each as a list of the original values."""
    found = {}
    for place, field in enumerate(table.schema):
        values = table.column(place).to_pylist()
        metadata = field.metadata or {}
        if metadata.get(_KIND) == _JSON:
            values = [None if value is None else json.loads(value) for value in values]
        elif _INTS in metadata:
            bits = np.unpackbits(np.frombuffer(bytes.fromhex(metadata[_INTS].decode()), np.uint8), count=len(values))
            values = [int(value) if is_int else value for value, is_int in zip(values, bits.tolist(), strict=True)]
        found[field.name] = values
    return found


def _kind_of(values: Sequence[Any]) -> pa.DataType | None:
    """Return a type that stores all values exactly, or None if there is no such type."""
    kinds = {*map(type, values)} - {type(None)}
    if kinds <= {str}:
        return pa.string()
    if kinds == {bool}:
        return pa.bool_()
    if kinds == {float}:
        return pa.float64()
    numbers = [value for value in values if type(value) is int]
    if kinds == {int} and all(-_INT64 <= value < _INT64 for value in numbers):
        return pa.int64()
    if kinds == {int, float} and all(abs(value) <= MOST_EXACT for value in numbers):
        return pa.float64()
    return None


def kind_of(column: pa.DataType) -> str | None:
    """Return "bool", "text" or "number" for a collected column; None if it has no values.

    A column must be of the same kind in all runs.
    """
    if pa.types.is_null(column):
        return None
    return "bool" if pa.types.is_boolean(column) else "text" if pa.types.is_string(column) else "number"


def joined_schema(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Return one schema for the collected values of several runs. The columns of steps and of agents come first.

    A column with ints in some runs and floats in others becomes floats.
    """
    joined = pa.unify_schemas([schema.remove_metadata() for schema in schemas], promote_options="permissive")
    first = [name for name in TAKEN if name in joined.names]
    return pa.schema([joined.field(name) for name in [*first, *sorted({*joined.names} - {*first})]])


def fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table of the values that a run collected, with exactly the columns of `schema`.

    Missing columns are null. But in a table without agents, missing counts (columns with "=" in their names) are 0.
    """
    by_agent = AGENT in schema.names
    columns = []
    for field in schema:
        if field.name in table.column_names:
            columns.append(table.column(field.name).cast(field.type))
        elif by_agent or "=" not in field.name:
            columns.append(pa.nulls(len(table), field.type))
        else:
            columns.append(pa.array([0] * len(table), field.type))
    return pa.table(columns, schema=schema)
