"""The rows of a batch, grouped by id."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId
from ray_messaging.model.columns import IdColumn


class Groups(NamedTuple):
    """The k distinct ids of a column (`keys`), each row's index among them (n,), and the rows of each (k,)."""

    keys: list[AgentId | None]
    codes: NDArray[np.intp]
    counts: NDArray[np.intp]

    def beyond(self, allowed: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the rows, ascending, that come after the first `allowed` (k,) of their id."""
        over = allowed < self.counts
        if not over.any():
            return np.zeros(0, np.intp)
        rows = np.flatnonzero(over[self.codes])
        codes = self.codes[rows]
        order = np.argsort(codes, kind="stable")
        ordered = codes[order]
        ranks = np.empty(len(rows), np.intp)
        ranks[order] = np.arange(len(rows)) - np.searchsorted(ordered, ordered)
        return rows[ranks >= allowed[codes]]


def group(ids: IdColumn) -> Groups:
    """Group rows by id."""
    if ids.kinds is None:
        values, codes, counts = np.unique(ids.values, return_inverse=True, return_counts=True)
        return Groups(values.tolist(), codes, counts)
    places: dict[AgentId | None, int] = {}
    listed = ids.tolist()
    codes = np.fromiter((places.setdefault(key, len(places)) for key in listed), np.intp, len(listed))
    return Groups(list(places), codes, np.bincount(codes, minlength=len(places)))
