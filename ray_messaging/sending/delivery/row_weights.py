"""What rows take of the outbox: each its payload, and the last one of several the one that they share."""

import numpy as np
from numpy.typing import NDArray

from ray_messaging.model.payload_column import PayloadColumn


class RowWeights:
    """Say how many bytes go with rows that are done; `rest` are those of all others."""

    __slots__ = ("_index", "_open", "_sizes", "rest")

    def __init__(self, lines: PayloadColumn) -> None:
        self.rest = lines.nbytes
        self._index = lines.index
        self._sizes = lines.sizes + 1  # each has its newline
        # By line: rows that are not done.
        self._open = None if lines.index is None else np.bincount(lines.index, minlength=lines.count)

    def take(self, rows: NDArray[np.intp]) -> int:
        """Return the bytes that go with some rows, each of which is asked for once."""
        if self._index is None or self._open is None:
            freed = int(self._sizes[rows].sum())
        else:
            used, counts = np.unique(self._index[rows], return_counts=True)
            self._open[used] -= counts
            freed = int(self._sizes[used[self._open[used] == 0]].sum())
        self.rest -= freed
        return freed
