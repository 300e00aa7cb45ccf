"""Received payloads as arrays: one named value of each payload, or all values as columns of a table."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from ray_messaging.common.tables import MOST_EXACT
from ray_messaging.errors import InvalidColumns, InvalidPayload
from ray_messaging.model.typed.column import TypedColumn
from ray_messaging.model.typed.input import array_of
from ray_messaging.model.typed.typed_table import Payloads, TypedColumns

_decode = msgspec.json.Decoder().decode


Part: TypeAlias = TypedColumns | Sequence[bytes]  # payloads of some rows, in typed columns or as JSON


def part_of(payloads: Payloads | None, low: int = 0, high: int | None = None) -> Part:
    """Return the payloads of the rows from `low` to before `high`; raise InvalidPayload if the batch has only ids."""
    if payloads is None:
        raise InvalidPayload(
            "these messages have no payloads, only ids: set needs_payload = True in a rule that reads payloads"
        )
    if isinstance(payloads, TypedColumns):
        return payloads.part(low, payloads.count if high is None else high)
    return payloads.by_row[low:high]


def _typed(part: Part, name: str) -> TypedColumn | None:
    return part.columns.get(name) if isinstance(part, TypedColumns) else None


def column_of(parts: Sequence[Part], name: str) -> NDArray[Any]:
    """Return the values of one field, `name`, of all payloads as an array.

    From JSON payloads, numbers become an array of numbers, and bools an array of bools. Other values become an array of
    objects.

    Raises: InvalidColumns if a payload lacks the field, or if the values have different shapes.
    """
    arrays, low = [], 0
    for part in parts:
        column = _typed(part, name)
        if column is None:
            lines = part.list if isinstance(part, TypedColumns) else part
            arrays.append(array_of([_value(line, name, low + row) for row, line in enumerate(lines)]))
        else:
            arrays.append(column.to_numpy())
        low += len(part)
    if len({array.shape[1:] for array in arrays}) > 1:
        raise InvalidColumns(
            f"column {name!r} has values of different shapes: single values in some messages and vectors in others, "
            "or vectors of different lengths",
            column=name,
        )
    return _joined(arrays) if arrays else np.zeros(0)


def _value(line: bytes, name: str, row: int) -> Any:  # noqa: ANN401 - JSON of any shape
    try:
        found = _decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidColumns(f"message {row} is not JSON ({error}), and has no column {name!r}") from error
    if not isinstance(found, dict) or name not in found:
        raise InvalidColumns(f"message {row} has no column {name!r}", column=name, row=row)
    return found[name]


def _joined(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Concatenate arrays.

    The result is an array of objects if there are both bools and numbers, or if no type can hold all whole numbers
    exactly.
    """
    if len(arrays) == 1:
        return arrays[0]
    kinds = {array.dtype.kind for array in arrays}
    if "b" in kinds and len(kinds) > 1:
        return np.concatenate([array.astype(object) for array in arrays])
    whole = [array for array in arrays if array.dtype.kind in "iu"]
    if whole and kinds <= {"i", "u", "f"} and np.result_type(*arrays).kind == "f":
        if "f" not in kinds and min(array.min(initial=0) for array in whole) >= 0:
            return np.concatenate([array.astype(np.uint64) for array in arrays])
        if "f" not in kinds or any(
            array.max(initial=0) > MOST_EXACT or array.min(initial=0) < -MOST_EXACT for array in whole
        ):
            return np.concatenate([array.astype(object) for array in arrays])
    return np.concatenate(arrays)


def names_of(parts: Sequence[Part]) -> list[str]:
    """Return the names of all typed columns, in their order."""
    tables = [part for part in parts if isinstance(part, TypedColumns)]
    return [*dict.fromkeys(name for table in tables for name in table.columns)]


def filled_column(parts: Sequence[Part], name: str) -> Any:  # noqa: ANN401 - an array, or a list of vectors
    """Return a typed column for a DataFrame. Rows that lack the column have None, or NaN if the column has floats."""
    columns = [_typed(part, name) for part in parts]
    arrays: list[NDArray[Any]] = [
        np.full(len(part), None) if column is None else column.to_numpy()
        for part, column in zip(parts, columns, strict=True)
    ]
    if any(array.ndim > 1 for array in arrays):
        return [value for array in arrays for value in array]
    if None in columns and all(column.type.name.startswith("float") for column in columns if column is not None):
        arrays = [array.astype(np.float64) for array in arrays]
    return _joined(arrays)


def arrow_columns(parts: Sequence[Part]) -> dict[str, Any]:
    """Return the columns of an Arrow table: typed columns as `payload.name`, the JSON of other payloads as `payload`.

    In rows that lack a column, the value is null.

    Raises: InvalidColumns if a column has two types.
    """
    import pyarrow as pa  # noqa: PLC0415 - 80 MB that a group need not load

    found: dict[str, Any] = {}
    for name in names_of(parts):
        columns = [_typed(part, name) for part in parts]
        arrays = [None if column is None else column.to_arrow() for column in columns]
        kinds = {array.type for array in arrays if array is not None}
        if len(kinds) > 1:
            listed = " and ".join(sorted(map(str, kinds)))
            raise InvalidColumns(
                f"column {name!r} has values of the types {listed} in these messages: use one type", column=name
            )
        (kind,) = kinds
        filled = [
            pa.nulls(len(part), kind) if array is None else array for part, array in zip(parts, arrays, strict=True)
        ]
        found[f"payload.{name}"] = pa.chunked_array(filled, kind)
    if not all(isinstance(part, TypedColumns) for part in parts) or not found:
        texts = [
            pa.nulls(len(part), pa.binary()) if isinstance(part, TypedColumns) else pa.array(part, pa.binary())
            for part in parts
        ]
        found["payload"] = pa.chunked_array(texts, pa.binary()).cast(pa.string())
    return found
