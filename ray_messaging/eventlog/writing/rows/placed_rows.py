"""Rows by the columns of their payloads: each set of columns has a table of its own."""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ray_messaging.eventlog.writing.rows.columns import Part, record_batch
from ray_messaging.eventlog.writing.rows.payloads import Kind, kind_of

Places = NDArray[np.int64]


class PlacedRows(NamedTuple):
    """Rows whose payloads have the same columns, and their places, ascending, among all rows that come with them."""

    kind: Kind
    batch: pa.RecordBatch
    places: Places


def by_kind(parts: Sequence[Part]) -> dict[Kind, list[int]]:
    """Return the numbers of the parts with payloads of each kind."""
    found: dict[Kind, list[int]] = {}
    for number, part in enumerate(parts):
        found.setdefault(kind_of(part.batch.lines), []).append(number)
    return found


def placed_rows(exp_id: str, parts: Sequence[Part]) -> list[PlacedRows]:
    """Build the rows of some parts, which keep their places in the parts' order."""
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
