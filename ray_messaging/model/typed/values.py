"""One value of each received payload as an array, and all values as columns of an Arrow table or a DataFrame."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ray_messaging.common.tables import MOST_EXACT
from ray_messaging.errors import InvalidColumns, InvalidPayload
from ray_messaging.model.typed.input import array_of
from ray_messaging.model.typed.table import Payloads, TypedColumns

_decode = msgspec.json.Decoder().decode


class PayloadPart(NamedTuple):
    """The payloads of the rows `low` to `high`, exclusive, of a batch."""

    payloads: Payloads | None
    low: int
    high: int

    @property
    def table(self) -> TypedColumns | None:
        """Return the payloads if they are in typed columns, otherwise None."""
        return self.payloads.part(self.low, self.high) if isinstance(self.payloads, TypedColumns) else None

    @property
    def lines(self) -> Sequence[bytes]:
        """Return the payloads as JSON; raise InvalidPayload if the batch has ids only."""
        if self.payloads is None:
            raise InvalidPayload(
                "these messages have no payloads, only ids: a rule that reads payloads sets needs_payload = True"
            )
        return self.payloads.by_row[self.low : self.high]


def column_of(parts: Sequence[PayloadPart], name: str) -> NDArray[Any]:
    """Return the named value of each payload as an array.

    Numbers and bools in JSON make an array of their type, other values an array of objects.

    Raises: InvalidColumns if a payload has no such value; InvalidPayload if a batch has ids only.
    """
    arrays, low = [], 0
    for part in parts:
        table = part.table
        if table is not None and name in table.columns:
            arrays.append(table.columns[name].to_numpy())
        else:
            arrays.append(array_of([_value(line, name, low + row) for row, line in enumerate(part.lines)]))
        low += part.high - part.low
    return _concatenated(arrays, name)


def _value(line: bytes, name: str, row: int) -> Any:  # noqa: ANN401 - JSON of any shape
    try:
        found = _decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidColumns(f"message {row} is not JSON ({error}), and has no column {name!r}") from error
    if not isinstance(found, dict) or name not in found:
        raise InvalidColumns(f"message {row} has no column {name!r}", column=name, row=row)
    return found[name]


def _concatenated(arrays: list[NDArray[Any]], name: str) -> NDArray[Any]:
    if len({array.shape[1:] for array in arrays}) > 1:
        raise InvalidColumns(f"column {name!r} has vectors in some messages, and others in others", column=name)
    if not arrays:
        return np.zeros(0)
    return arrays[0] if len(arrays) == 1 else _joined(arrays)


def _joined(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Join arrays. The result has objects if there are bools and numbers, or whole numbers that no common type fits."""
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


def names_of(parts: Sequence[PayloadPart]) -> list[str]:
    """Return the names of all typed columns, in their order."""
    tables = [part.payloads for part in parts if isinstance(part.payloads, TypedColumns)]
    return [*dict.fromkeys(name for table in tables for name in table.columns)]


def filled_column(parts: Sequence[PayloadPart], name: str) -> Any:  # noqa: ANN401 - an array, or a list of vectors
    """Return a typed column for a DataFrame; rows without this column have None, or NaN in a column of floats."""
    arrays: list[NDArray[Any]] = []
    for part in parts:
        table, rows = part.table, part.high - part.low
        column = None if table is None else table.columns.get(name)
        arrays.append(np.full(rows, None) if column is None else column.to_numpy())
    if any(array.ndim > 1 for array in arrays):
        return [value for array in arrays for value in array]
    kinds = {array.dtype.kind for array in arrays}
    if kinds == {"f", "O"}:
        arrays = [array.astype(np.float64) for array in arrays] if _only_gaps(arrays) else arrays
    return arrays[0] if len(arrays) == 1 else _joined(arrays)


def _only_gaps(arrays: Sequence[NDArray[Any]]) -> bool:
    return all(value is None for array in arrays if array.dtype.kind == "O" for value in array.tolist())


def arrow_columns(parts: Sequence[PayloadPart]) -> dict[str, Any]:
    """Return the columns of an Arrow table: typed ones as `payload.name`, the JSON of other payloads as `payload`.

    Rows without a column have null in it. Raises InvalidColumns if a column has two types.
    """
    import pyarrow as pa  # noqa: PLC0415 - 80 MB that a group need not load

    found: dict[str, Any] = {}
    for name in names_of(parts):
        arrays = [
            None if part.table is None or name not in part.table.columns else part.table.columns[name].to_arrow()
            for part in parts
        ]
        kinds = {array.type for array in arrays if array is not None}
        if len(kinds) > 1:
            listed = " and ".join(sorted(map(str, kinds)))
            raise InvalidColumns(f"column {name!r} has the types {listed} in these messages", column=name)
        (kind,) = kinds
        found[f"payload.{name}"] = pa.chunked_array(
            [
                pa.nulls(part.high - part.low, kind) if array is None else array
                for part, array in zip(parts, arrays, strict=True)
            ],
            kind,
        )
    if not found or any(part.table is None for part in parts):
        texts = [
            pa.nulls(part.high - part.low, pa.binary()) if part.table is not None else pa.array(part.lines, pa.binary())
            for part in parts
        ]
        found["payload"] = pa.chunked_array(texts, pa.binary()).cast(pa.string())
    return found
