"""Functions that join the columns of several frames."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_messaging.model.columns import INT, STR, IdColumn, PayloadColumn
from ray_messaging.model.typed.typed_table import Payloads, TypedColumns


def joined_arrays(parts: Sequence[NDArray[Any]]) -> Any:  # noqa: ANN401 - an array of the parts' type
    """Return several arrays as one array; a single array is not copied."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def joined_ids(columns: Sequence[IdColumn]) -> IdColumn:
    """Return columns of ids as one column, with one table of str ids."""
    if len(columns) == 1:
        return columns[0]
    values: NDArray[Any] = np.concatenate([column.stored for column in columns])
    if all(column.kinds is None for column in columns):
        if values.dtype == np.int64:
            return IdColumn(values)
        return IdColumn(None, None, (), values.view(np.uint8).data.toreadonly(), _small=True)
    values = values.astype(np.int64, copy=False)
    table: dict[str, int] = {}
    kinds = np.full(len(values), INT, np.uint8)
    low = 0
    for column in columns:
        high = low + len(column)
        if column.kinds is not None:
            kinds[low:high] = column.kinds
            if column.strings:
                places = np.array([table.setdefault(name, len(table)) for name in column.strings], np.int64)
                named = column.kinds == STR
                values[low:high][named] = places[column.values[named]]
        low = high
    return IdColumn(values, kinds, tuple(table))


def joined_payloads(parts: Sequence[Payloads], rows: Sequence[int], order: NDArray[np.intp] | None = None) -> Payloads:
    """Return several parts of payloads as one: as typed columns if all have one schema, otherwise as JSON lines.

    Args: `rows` has the number of rows of each part; `order` is the order of the rows in the result (None: unchanged).
    """
    typed = [part for part in parts if isinstance(part, TypedColumns)]
    if typed and len(typed) == len(parts) and all(part.schema == typed[0].schema for part in typed):
        joined = TypedColumns.joined(typed)
        return joined if order is None else joined.take(order)
    columns = [part.json for part in parts]
    index = np.empty(sum(rows), np.uint32)
    low = first = 0
    for column, count in zip(columns, rows, strict=True):
        places = index[low : low + count]
        places[:] = np.arange(count, dtype=np.uint32) if column.index is None else column.index
        places += first
        low, first = low + count, first + column.count
    index = index if order is None else index[order]
    if any(column.raw for column in columns):  # raw lines may contain newlines, so they cannot be in a blob
        return PayloadColumn.of([line for column in columns for line in column.list], index, raw=True)
    blob = b"".join([column.view for column in columns]) if len(columns) > 1 else columns[0].blob
    return PayloadColumn(blob, first, index)
