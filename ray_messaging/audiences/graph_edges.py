"""Pairs of an audience that are kept one by one: of a graph, or of positions."""

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ray_messaging.audiences.adjacency import Adjacency, gathered
from ray_messaging.audiences.edges import Hearing, Pairs
from ray_messaging.audiences.graph_hearing import GraphHearing, HearerSide
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.columns import IdColumn

if TYPE_CHECKING:
    from ray_messaging.audiences.positions import Positions


class GraphEdges:
    """Pairs of int ids, from both sides: `out` has the hearers of each sender, `into` the senders of each hearer.

    Restricted edges share these arrays: `senders` and `wanted` (bool, by place of the hearer) are the agents that count
    (None: all). `positions` are those of the agents, where these make the pairs.
    """

    def __init__(
        self,
        out: Adjacency,
        into: Adjacency,
        digest: bytes,
        *,
        senders: NDArray[np.intp] | slice | None = None,
        wanted: NDArray[np.bool_] | None = None,
        positions: "Positions | None" = None,
    ) -> None:
        self.all = out
        self.into = into
        self.digest = digest
        self.positions = positions
        self.out = out if senders is None else out.take(senders)
        self._restricted_to = senders
        self._wanted = wanted
        self._heard: tuple[AgentSet, HearerSide] | None = None

    @cached_property
    def _degrees(self) -> NDArray[np.int64]:
        """Return how many hearers that count each sender has."""
        if self._wanted is None:
            return self.out.lengths
        degrees = np.zeros(len(self.out.ids), np.int64)
        for low, high, offsets in self.out.pieces():
            starts, lengths = self.out.starts[low:high], self.out.lengths[low:high]
            counted = np.zeros(int(offsets[-1] - offsets[0]) + 1, np.int32)
            np.cumsum(self._wanted[self._neighbours(starts, lengths)], out=counted[1:])
            degrees[low:high] = np.diff(counted[offsets - offsets[0]])
        return degrees

    def _neighbours(self, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int32]:
        if len(starts) and bool((starts[1:] == starts[:-1] + lengths[:-1]).all()):
            return self.out.others[starts[0] : starts[-1] + lengths[-1]]
        return self.out.others[gathered(starts, lengths)]

    @property
    def pairs(self) -> int:
        """Return the number of pairs."""
        return int(self._degrees.sum())

    @property
    def senders(self) -> AgentSet:
        """Return the agents that have a hearer in the whole audience, of those that count."""
        return AgentSet(self.out.ids)

    @property
    def hearers(self) -> AgentSet:
        """Return the agents that hear somebody."""
        return AgentSet(self.into.ids if self._wanted is None else self.into.ids[self._wanted])

    def counts(self, from_ids: IdColumn) -> NDArray[np.int64]:
        """Return for each sender the number of its hearers, 0 where it is none."""
        places = self.out.places(from_ids)
        if not len(self.out.ids):
            return np.zeros(len(from_ids), np.int64)
        return np.where(places < 0, 0, self._degrees[places])

    def expand(self, from_ids: IdColumn) -> Pairs:
        """Return the pairs of each sender, ascending by row, then hearer."""
        places = self.out.places(from_ids)
        senders = np.flatnonzero(places >= 0)
        starts, lengths = self.out.starts[places[senders]], self.out.lengths[places[senders]]
        rows, found = np.repeat(senders, lengths), self._neighbours(starts, lengths)
        if self._wanted is not None:
            counted = self._wanted[found]
            rows, found = rows[counted], found[counted]
        return Pairs(rows, IdColumn(self.into.ids[found]))

    def has(self, from_ids: IdColumn, to_ids: IdColumn) -> NDArray[np.bool_]:
        """Return for each of n pairs whether it is there."""
        senders, hearers = self.out.places(from_ids), self.into.places(to_ids)
        there = (senders >= 0) & (hearers >= 0)
        if self._wanted is not None and len(self._wanted):
            there &= self._wanted[hearers]
        rows = np.flatnonzero(there)
        low = self.out.starts[senders[rows]]
        end = low + self.out.lengths[senders[rows]]
        high, sought = end.copy(), hearers[rows]
        while len(rows) and bool((low < high).any()):  # a binary search for all pairs at once
            middle = (low + high) >> 1
            less = self.out.others[np.minimum(middle, end - 1)] < sought
            open_ = low < high
            low = np.where(open_ & less, middle + 1, low)
            high = np.where(open_ & ~less, middle, high)
        there[rows] = (low < end) & (self.out.others[np.minimum(low, end - 1)] == sought)
        return there

    def toward(self, hearers: AgentSet) -> "GraphEdges":
        """Return the pairs of some hearers."""
        wanted = np.zeros(len(self.into.ids), np.bool_)
        places = self.into.places(IdColumn(hearers.ints))
        wanted[places[places >= 0]] = True
        if self._wanted is not None:
            wanted &= self._wanted
        return self._restricted(self._restricted_to, None if bool(wanted.all()) else wanted)

    def of(self, senders: AgentSet) -> "GraphEdges":
        """Return the pairs of some senders, without a copy of them."""
        places = self.all.places((senders & self.senders).column)
        if len(places) and places[-1] - places[0] + 1 == len(places):
            return self._restricted(slice(places[0], places[-1] + 1), self._wanted)
        return self._restricted(places, self._wanted)

    def _restricted(self, senders: NDArray[np.intp] | slice | None, wanted: NDArray[np.bool_] | None) -> "GraphEdges":
        return GraphEdges(self.all, self.into, self.digest, senders=senders, wanted=wanted)

    def hearing(self, hearers: AgentSet, from_ids: IdColumn) -> Hearing:
        """Return the broadcasts of `from_ids`, in any order and any number a sender, as some agents hear them."""
        if self._heard is None or self._heard[0] != hearers:
            self._heard = hearers, HearerSide.of(self.into, hearers, self._wanted)
        places = self.all.places(from_ids)
        if self._restricted_to is not None:
            places[self.out.places(from_ids) < 0] = -1
        return GraphHearing(self._heard[1], places, len(self.all.ids))
