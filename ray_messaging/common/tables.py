"""Conversion of results to pandas without loss: whole numbers stay exact, times become timestamps."""

import json
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

_NONE = type(None)
MOST_EXACT = 2**53  # floats represent all whole numbers up to this number exactly
_FIRST, _LAST = -62_135_596_800.0, 253_402_300_800.0  # the beginnings of the years 1 and 10,000, in unix seconds


def data_frame(columns: dict[str, Any], ids: Collection[str] = ()) -> Any:  # noqa: ANN401 - pandas.DataFrame, where pandas is installed
    """Build a pandas.DataFrame; if pandas is not installed, raise an ImportError that says how to install it.

    Whole numbers stay exact: a column in which values are missing is pandas' Int64 instead of float64. The columns in
    `ids` are Int64 even if no value is missing, unless some of their values are strs.
    """
    try:
        import pandas as pd  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise ImportError("a DataFrame needs pandas: pip install 'ray-messaging[pandas]'") from error
    return pd.DataFrame({name: _exact(pd, values, is_id=name in ids) for name, values in columns.items()})


def _exact(pd: Any, values: Any, *, is_id: bool) -> Any:  # noqa: ANN401 - pandas, and a column of any kind
    if isinstance(values, np.ndarray) and values.dtype != object:
        return pd.array(values, "Int64") if is_id and values.dtype.kind == "i" else values
    listed = values.tolist() if isinstance(values, np.ndarray) else values
    kinds = set(map(type, listed)) if isinstance(listed, list) else set()
    if any(issubclass(kind, np.integer | np.floating) for kind in kinds):
        listed = [value.item() if isinstance(value, np.integer | np.floating) else value for value in listed]
        kinds = set(map(type, listed))
    if (kinds == {int, _NONE} or (is_id and kinds <= {int, _NONE})) and _fits(listed):
        return pd.array(listed, "Int64")
    if (kinds == {int, _NONE} or {int, float} <= kinds <= {int, float, _NONE}) and not _are_floats(listed):
        return pd.Series(listed, dtype=object)
    return values


def _fits(values: Iterable[int | None]) -> bool:
    return all(value is None or -(2**63) <= value < 2**63 for value in values)


def _are_floats(values: Iterable[float | None]) -> bool:
    """Return whether all of these numbers can become floats without loss."""
    return all(value is None or isinstance(value, float) or abs(value) <= MOST_EXACT for value in values)


def with_exact_integers(table: Any, ids: Collection[str] = ()) -> Any:  # noqa: ANN401 - pyarrow.Table
    """Return a pyarrow table whose `to_pandas()` keeps whole numbers exact, even if values are missing.

    Without metadata that name pandas' types, pyarrow would convert columns with missing values to float64. The columns
    in `ids` become Int64, as in `data_frame`.
    """
    fields = [table.schema.field(name) for name in table.column_names if name in ids or table[name].null_count]
    return table.replace_schema_metadata(pandas_types(fields))


def pandas_types(fields: Iterable[Any]) -> dict[str, str]:
    """Return metadata for a pyarrow table or a Parquet file with which pandas reads whole numbers exactly."""
    columns = [
        {
            "name": field.name,
            "field_name": field.name,
            "pandas_type": str(field.type),
            # With a capital letter, as in Int64, these names stand for pandas' types that allow missing values.
            "numpy_type": str(field.type).replace("int", "Int").replace("uI", "UI"),
            "metadata": None,
        }
        for field in fields
        if str(field.type).startswith(("int", "uint"))
    ]
    return {"pandas": json.dumps({"columns": columns, "index_columns": [], "column_indexes": []})} if columns else {}


def utc_times(seconds: Any) -> Any:  # noqa: ANN401 - numbers; a pyarrow.Array
    """Return times in unix seconds as timestamps in UTC, in microseconds; null if no date can represent a time."""
    import pyarrow as pa  # noqa: PLC0415 - 80 MB that a group need not load

    given = np.asarray(seconds, np.float64)
    there = (given >= _FIRST) & (given < _LAST)  # comparisons with NaN are false, so NaN becomes null, too
    return pa.array((np.where(there, given, 0) * 1e6).round().astype(np.int64), mask=~there).cast(
        pa.timestamp("us", "UTC")
    )
