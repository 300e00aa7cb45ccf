"""Functions that join batches, or columns of batches."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_messaging.model.batch import Batch, topic_column
from ray_messaging.model.columns import INT, STR, IdColumn, PayloadColumn
from ray_messaging.model.extension import Extension
from ray_messaging.model.typed.typed_table import Payloads, TypedColumns


def joined_arrays(parts: Sequence[NDArray[Any]]) -> Any:  # noqa: ANN401 - an array of the parts' type
    """Return the concatenation of arrays; a single array is not copied."""
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
    """Return the payloads of several batches as one: typed columns if all have the same schema, otherwise JSON lines.

    Args: `rows` has the number of rows of each of the `parts`. `order` is the order of the rows in the result (None:
    unchanged).
    """
    typed = [part for part in parts if isinstance(part, TypedColumns)]
    if typed and len(typed) == len(parts) and all(part.schema == typed[0].schema for part in typed):
        joined = TypedColumns.joined(typed)
        return joined if order is None else joined.take(order)
    columns = [part.json for part in parts]
    if order is None and all(column.index is None for column in columns):
        return _joined_lines(columns, None)
    index = np.empty(sum(rows), np.uint32)
    low = first = 0
    for column, count in zip(columns, rows, strict=True):
        places = index[low : low + count]
        places[:] = np.arange(count, dtype=np.uint32) if column.index is None else column.index
        places += first
        low, first = low + count, first + column.count
    return _joined_lines(columns, index if order is None else index[order])


def _joined_lines(columns: Sequence[PayloadColumn], index: NDArray[np.uint32] | None) -> PayloadColumn:
    if len(columns) == 1:
        return columns[0].with_index(index)
    if any(column.raw for column in columns):  # raw lines may contain newlines, so they cannot be joined as blobs
        return PayloadColumn.of([line for column in columns for line in column.list], index, raw=True)
    return PayloadColumn(b"".join([column.view for column in columns]), sum(column.count for column in columns), index)


def joined_batches(parts: Sequence[Batch]) -> Batch:
    """Return the messages of several batches, in order, as one batch that has no sender and no numbers yet.

    Either all batches have payloads, or none has. Either all have steps, or none has. Either all extensions have the
    same `kind`, or some batches have no extension and the extensions of the others have only `caused_by`.
    """
    rows = [part.rows for part in parts]
    lines = [part.lines for part in parts if part.lines is not None]
    table = {name: place for place, name in enumerate(dict.fromkeys(name for part in parts for name in part.topics))}
    topic = None
    if len(table) > 1:
        places = [
            np.array([table[name] for name in part.topics])[
                np.zeros(part.rows, int) if part.topic is None else part.topic
            ]
            for part in parts
        ]
        topic = topic_column(np.concatenate(places), len(table))
    return Batch(
        sender="",
        epoch=0,
        first=0,
        from_ids=joined_ids([part.from_ids for part in parts]),
        rows=sum(rows),
        to_ids=joined_ids([part.to_ids for part in parts]),
        topics=tuple(table),
        topic=topic,
        step=None if parts[0].step is None else _by_row([part.step for part in parts], rows, np.int64),
        sent_at=_by_row([part.sent_at for part in parts], rows, np.float64),
        lines=joined_payloads(lines, rows) if lines else None,
        extension=Extension.joined([*zip((part.extension for part in parts), rows, strict=True)]),
    )


def _by_row(values: Sequence[Any], rows: Sequence[int], dtype: type[np.generic]) -> Any:  # noqa: ANN401 - an array of this type
    """Join the values of several batches to an array with a value for each row.

    Each of `values` is a batch's array, or one value for all rows of the batch. `rows` has the number of rows of each
    batch.
    """
    if not any(isinstance(value, np.ndarray) for value in values):
        return np.repeat(np.array(values, dtype), rows)
    return np.concatenate([np.broadcast_to(np.asarray(v, dtype), count) for v, count in zip(values, rows, strict=True)])
