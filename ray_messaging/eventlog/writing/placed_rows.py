"""Rows of the log by kind, that is, by the columns of their payloads: each kind has a table of its own.

The rows are built in the order in which they come, or in canonical order.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ray_messaging.eventlog.log_schema import stored_column
from ray_messaging.eventlog.writing.entries import payload_bytes, pieces
from ray_messaging.eventlog.writing.log_columns import LoggedPart, record_batch
from ray_messaging.eventlog.writing.payloads import Kind, kind_of
from ray_messaging.eventlog.writing.repeated_columns import each_its_own
from ray_messaging.model.joining import joined_arrays
from ray_messaging.steps.canonical_order import canonical_order

# A batch of rows costs 0.4 ms plus its rows: with 8,192 rows a fifth of their time. Larger columns would not fit the
# processor's cache.
CHUNK_ROWS = 32_768
PIECE_BYTES = 16 * 2**20  # payload of a batch: a segment cannot be closed within one
_TEXT_BYTES = 2**30

T = TypeVar("T")
Places = NDArray[np.int64]


class PlacedRows(NamedTuple):
    """Rows of one kind, and their places, ascending, among the rows of all kinds that were built together."""

    kind: Kind
    batch: pa.RecordBatch
    places: Places


def by_kind(parts: Sequence[LoggedPart]) -> dict[Kind, list[int]]:
    """Return the indexes of the parts by the kind of their payloads."""
    found: dict[Kind, list[int]] = {}
    for number, part in enumerate(parts):
        found.setdefault(kind_of(part.batch.lines), []).append(number)
    return found


def placed_rows(exp_id: str, parts: Sequence[LoggedPart]) -> list[PlacedRows]:
    """Build the rows of some parts by kind. The places keep the order of the parts."""
    counts = [len(part.batch) for part in parts]
    starts = [0, *accumulate(counts)]
    return [
        PlacedRows(
            kind,
            record_batch(exp_id, [parts[number] for number in numbers]),
            np.arange(starts[-1])
            if len(numbers) == len(parts)
            else np.concatenate([np.arange(starts[number], starts[number + 1]) for number in numbers]),
        )
        for kind, numbers in by_kind(parts).items()
    ]


def in_order(exp_id: str, parts: Sequence[LoggedPart]) -> list[PlacedRows]:
    """Build the rows of some parts by kind. The places of the rows are those in canonical order of all of them."""
    cut = [piece for part in parts for piece, _ in pieces(part, 0, PIECE_BYTES)]
    kinds = {kind: [cut[number] for number in numbers] for kind, numbers in by_kind(cut).items()}
    if not cut:
        return []
    order = _order([piece for same in kinds.values() for piece in same])
    made, low = [], 0
    for kind, same in kinds.items():
        high = low + sum(len(piece.batch) for piece in same)
        places = np.arange(high) if len(kinds) == 1 else np.flatnonzero((order >= low) & (order < high))
        made.append(PlacedRows(kind, _reordered(exp_id, same, pa.array(order[places] - low)), places))
        low = high
    return made


def _reordered(exp_id: str, cut: Sequence[LoggedPart], order: pa.Array) -> pa.RecordBatch:
    """Return the rows of some parts, all of one kind, in the given order."""
    table = pa.Table.from_batches([record_batch(exp_id, chunk) for chunk, _ in chunks_of((part, None) for part in cut)])
    columns, schema = table.columns, table.schema
    del table
    for at in range(len(columns)):  # so that the memory of each is free before the next one is sorted
        columns[at] = _sorted(columns[at], order)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _sorted(column: pa.ChunkedArray, order: pa.Array) -> pa.Array:
    # `take` wants one dictionary for all rows, and Arrow joins at most 2 GiB of texts.
    whole = (stored_column(column) if column.nbytes < _TEXT_BYTES else column.unify_dictionaries()).combine_chunks()
    one = pa.types.is_dictionary(whole.type) and len(whole.dictionary) == 1
    if whole.null_count == len(whole) or (one and not whole.null_count):
        return whole
    found = whole.take(order)
    return each_its_own(found) if whole.type != column.type else found


def _order(parts: Sequence[LoggedPart]) -> Any:  # noqa: ANN401 - row numbers (n,)
    batches = [part.batch for part in parts]
    to_ids, from_ids = [batch.to_ids for batch in batches], [batch.from_ids for batch in batches]
    return canonical_order(to_ids, _steps(parts), from_ids, ordinals_of(parts))


def _steps(parts: Sequence[LoggedPart]) -> Any:  # noqa: ANN401 - int64 (n,)
    return joined_arrays([np.broadcast_to(np.asarray(part.batch.step, np.int64), len(part.batch)) for part in parts])


def ordinals_of(parts: Sequence[LoggedPart]) -> Any:  # noqa: ANN401 - int64 (n,)
    """Return the ordinals of all rows of some parts in steps."""
    return joined_arrays([part.batch.ordinal for part in parts if part.batch.ordinal is not None]).astype(np.int64)


def chunks_of(parts: Iterable[tuple[LoggedPart | None, T]]) -> Iterator[tuple[list[LoggedPart], list[T]]]:
    """Yield parts in groups that fit the processor's cache, with their marks; a mark may come without a part."""
    chunk: list[LoggedPart] = []
    marks: list[T] = []
    rows = nbytes = 0
    for part, mark in parts:
        if part is not None:
            if chunk and (rows >= CHUNK_ROWS or nbytes + payload_bytes(part) > PIECE_BYTES):
                yield chunk, marks
                chunk, marks, rows, nbytes = [], [], 0, 0
            chunk.append(part)
            rows += len(part.batch)
            nbytes += payload_bytes(part)
        marks.append(mark)
    if marks:
        yield chunk, marks
