"""One side of a graph: the neighbours of each agent."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.model.columns import INT, IdColumn

CHUNK = 2**17  # neighbours that are looked at a time: the arrays for them stay in the cache


class Adjacency(NamedTuple):
    """Agents, `ids` (ascending int64), and their neighbours: agent i has `others[starts[i]:starts[i] + lengths[i]]`.

    `others` is int32: places in the ids of the other side, ascending for each agent.
    """

    ids: NDArray[np.int64]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    others: NDArray[np.int32]

    def take(self, places: NDArray[np.intp] | slice) -> "Adjacency":
        """Return some agents; their neighbours are not copied."""
        return Adjacency(self.ids[places], self.starts[places], self.lengths[places], self.others)

    def places(self, agents: IdColumn) -> NDArray[np.intp]:
        """Return the place of each agent, -1 where it has none."""
        if not len(self.ids):
            return np.full(len(agents), -1, np.intp)
        values, low, high = agents.values, int(self.ids[0]), int(self.ids[-1])
        if high - low == len(self.ids) - 1:  # all ids between: a subtraction in place of a search
            found = values - low
            missing = (values < low) | (values > high)
        else:
            found = np.searchsorted(self.ids, values)
            np.minimum(found, len(self.ids) - 1, out=found)
            missing = self.ids[found] != values
        if agents.kinds is not None:
            missing |= agents.kinds != INT
        found[missing] = -1
        return found

    @property
    def contiguous(self) -> bool:
        """Tell whether the neighbours of all agents lie behind one another, in order."""
        return bool((self.starts[1:] == self.starts[:-1] + self.lengths[:-1]).all())

    def compact(self) -> "Adjacency":
        """Return the same with the neighbours behind one another: a copy unless they are so."""
        if self.contiguous:
            return self
        others = np.empty(int(self.lengths.sum()), np.int32)
        for low, high, offsets in self.pieces():
            others[offsets[0] : offsets[-1]] = self.others[gathered(self.starts[low:high], self.lengths[low:high])]
        return Adjacency(self.ids, self.offsets[:-1], self.lengths, others)

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Return how many neighbours the agents before each one have, and all: int64 (n + 1,)."""
        return offsets_of(self.lengths)

    def pieces(self) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
        """Yield ranges of agents with about CHUNK neighbours (one agent may have more), and their offsets."""
        offsets, low = self.offsets, 0
        while low < len(self.ids):
            high = int(np.searchsorted(offsets, offsets[low] + CHUNK, side="right")) - 1
            high = min(max(high, low + 1), len(self.ids))
            yield low, high, offsets[low : high + 1]
            low = high


def offsets_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sums of the lengths before each one, and of all."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def gathered(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the indices of several ranges, behind one another."""
    offsets = offsets_of(lengths)
    return np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
