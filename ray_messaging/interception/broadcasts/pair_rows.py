"""Batches in which the rows of a broadcast are its hearers."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import NONE, IdColumn
from ray_messaging.model.extension import Audience


class PairRows(NamedTuple):
    """The rows of a batch by broadcast: broadcast i has the rows `starts[i]` to `ends[i]`, one for each hearer."""

    audience: Audience
    starts: NDArray[np.intp]
    ends: NDArray[np.intp]

    @property
    def counts(self) -> NDArray[np.intp]:
        """Return how many rows each broadcast has."""
        return self.ends - self.starts

    def bounds(self, broadcast: int) -> tuple[int, int]:
        """Return the first row of a broadcast, and the one after its last."""
        return int(self.starts[broadcast]), int(self.ends[broadcast])

    def rows_of(self, broadcasts: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the rows of some broadcasts."""
        counts = self.counts[broadcasts]
        before = np.cumsum(counts) - counts
        return np.repeat(self.starts[broadcasts] - before, counts) + np.arange(int(counts.sum()))


def pair_rows(batch: Batch) -> PairRows | None:
    """Return the rows of a batch by broadcast; None where its rows are messages of their own."""
    extension = batch.extension
    if extension is None or extension.audience is None or not batch.rows:
        return None
    if batch.numbers is None:  # each row is a broadcast of its own: to one hearer, or not spread
        starts = np.arange(batch.rows)
    else:
        starts = np.flatnonzero(np.diff(batch.numbers.astype(np.int64), prepend=-1))
    return PairRows(extension.audience, starts, np.append(starts[1:], batch.rows))


def once_each(batch: Batch, rows: PairRows) -> Batch:
    """Return a batch with one row for each broadcast, to nobody: what rules see that judge it as one message."""
    made = batch.take(rows.starts)
    made.to_ids = IdColumn(np.zeros(made.rows, np.int64), np.full(made.rows, NONE, np.uint8))
    return made
