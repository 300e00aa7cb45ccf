"""Pairs of an audience that are stored one by one, made from a graph or from positions; and what each hearer hears."""

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.audiences.hearer_pairs import HeardRows, Pairs
from ray_messaging.model.agent_sets import AgentSet, int_places
from ray_messaging.model.columns import IdColumn

if TYPE_CHECKING:
    from ray_messaging.audiences.building import Positions

CHUNK = 2**17  # how many neighbours are handled together, so that their arrays stay in the processor's cache


class Adjacency(NamedTuple):
    """Agents and their neighbours: the agent `ids[i]` has the neighbours `others[starts[i]:starts[i] + lengths[i]]`.

    `ids` is ascending (int64). `others` (int32, ascending for each agent) has no ids, but indexes into a sorted array
    of the ids of all neighbours, which this object does not keep.
    """

    ids: NDArray[np.int64]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    others: NDArray[np.int32]

    @classmethod
    def of(cls, ids: NDArray[np.int64], lengths: NDArray[np.int64], others: NDArray[np.int32]) -> "Adjacency":
        """Build the adjacency of the agents `ids`, whose neighbours are in `others`, agent after agent.

        Args: `lengths` has the number of neighbours of each agent.
        """
        return cls(ids, offsets_of(lengths)[:-1], lengths, others)

    def take(self, places: NDArray[np.intp] | slice) -> "Adjacency":
        """Return the neighbours of the agents at the indexes `places` only. The array `others` is not copied."""
        return Adjacency(self.ids[places], self.starts[places], self.lengths[places], self.others)

    def places(self, agents: IdColumn) -> NDArray[np.intp]:
        """Return the index of each agent in `ids`, or -1 for an agent that is not in `ids`."""
        return int_places(self.ids, agents)

    @property
    def contiguous(self) -> bool:
        """Return whether `others` has all neighbours without gaps, agent after agent, in the order of the agents."""
        return bool((self.starts[1:] == self.starts[:-1] + self.lengths[:-1]).all())

    @property
    def neighbours(self) -> NDArray[np.int32]:
        """Return the neighbours of all agents, agent by agent: a copy, unless the adjacency is `contiguous`."""
        if len(self.starts) and self.contiguous:
            return self.others[self.starts[0] : self.starts[-1] + self.lengths[-1]]
        return self.others[gathered(self.starts, self.lengths)]

    def compact(self) -> "Adjacency":
        """Return this adjacency if it is `contiguous`, and otherwise a contiguous copy."""
        if self.contiguous:
            return self
        others = np.empty(int(self.lengths.sum()), np.int32)
        for low, high, offsets in self.pieces():
            others[offsets[0] : offsets[-1]] = self.take(slice(low, high)).neighbours
        return Adjacency.of(self.ids, self.lengths, others)

    def pieces(self) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
        """Yield the agents in pieces with about CHUNK neighbours each (more if a single agent has more).

        Each piece is the index of its first agent, the index after its last agent, and the offsets of the agents'
        neighbours.
        """
        offsets, low = offsets_of(self.lengths), 0
        while low < len(self.ids):
            high = int(np.searchsorted(offsets, offsets[low] + CHUNK, side="right")) - 1
            high = min(max(high, low + 1), len(self.ids))
            yield low, high, offsets[low : high + 1]
            low = high


def offsets_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each length the sum of the lengths before it, and at the end the sum of all lengths."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def gathered(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the indices in several ranges, one range after the other.

    Range i has `lengths[i]` indices, from `starts[i]` on.
    """
    offsets = offsets_of(lengths)
    return np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)


class GraphHearing:
    """Broadcasts, one in each row, and who hears them. A sender may have several rows.

    Hearers have the numbers 0 to `agents` - 1, and senders 0 to `senders` - 1. Entry i of `into` lists the senders that
    the hearer with the number `at[i]` hears. A hearer whose number is not in `at` hears nobody. `places` has the number
    of each row's sender, or -1 if nobody hears the row. In sums and extremes, the values of each sender's rows are
    combined first, so that each pair of sender and hearer costs only one lookup.
    """

    def __init__(
        self, into: Adjacency, at: NDArray[np.intp], agents: int, places: NDArray[np.intp], senders: int
    ) -> None:
        self._into, self._at, self._agents = into, at, agents
        self._rows = None if bool((places >= 0).all()) else np.flatnonzero(places >= 0)
        self._places = places if self._rows is None else places[self._rows]
        self._senders = senders

    @cached_property
    def _said(self) -> NDArray[np.int64] | None:
        """Return how many broadcasts each sender has sent, or None if each has sent exactly one."""
        said = np.bincount(self._places, minlength=self._senders)
        return None if bool((said == 1).all()) else said

    def _reduced(self, ufunc: np.ufunc, by_sender: NDArray[Any]) -> NDArray[Any]:
        into, found = self._into, np.zeros(self._agents, by_sender.dtype)
        for low, high, offsets in into.pieces():
            first = into.starts[low]
            gathered_values = by_sender.take(into.others[first : first + offsets[-1] - offsets[0]], mode="clip")
            found[self._at[low:high]] = ufunc.reduceat(gathered_values, offsets[:-1] - offsets[0])
        return found

    def counts(self) -> NDArray[np.int64]:
        """Return the number of broadcasts that each hearer hears."""
        if self._said is not None:
            return self._reduced(np.add, self._said)
        counts = np.zeros(self._agents, np.int64)
        counts[self._at] = self._into.lengths
        return counts

    def sums(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return, for each hearer, the sum of the values of the broadcasts that it hears, or 0 if it hears none.

        Args: `values` has a value for each broadcast.
        """
        by_sender = np.zeros(self._senders, values.dtype)
        if self._said is None:
            by_sender[self._places] = self._heard(values)
        else:
            np.add.at(by_sender, self._places, self._heard(values))
        return self._reduced(np.add, by_sender)

    def extremes(self, values: NDArray[Any], *, largest: bool) -> NDArray[Any]:
        """Return, for each hearer, the largest or (without `largest`) smallest value of the broadcasts that it hears.

        The result for a hearer that hears none is undefined. `values` has a value for each broadcast.
        """
        ufunc = np.maximum if largest else np.minimum
        by_sender = np.full(self._senders, _bound(values.dtype, largest=largest), values.dtype)
        ufunc.at(by_sender, self._places, self._heard(values))
        return self._reduced(ufunc, by_sender)

    def _heard(self, values: NDArray[Any]) -> NDArray[Any]:
        return values if self._rows is None else values[self._rows]

    def chunks(self, some: NDArray[np.intp] | None = None) -> Iterator[HeardRows]:
        """Yield the rows of the broadcasts that each hearer hears: a few hearers at a time, in the hearers' order.

        Args: `some` has the indexes of the hearers to include, ascending (None: all hearers). With `some`, the yielded
        hearers are numbered by their positions in `some`.
        """
        into, at, agents = self._into, self._at, self._agents
        if some is not None:
            found = np.flatnonzero(np.isin(at, some))
            into, at, agents = into.take(found), np.searchsorted(some, at[found]), len(some)
        done = 0
        for low, high, offsets in into.pieces():
            senders = into.take(slice(low, high)).neighbours
            end = int(at[high]) if high < len(at) else agents
            counts = np.zeros(end - done, np.int64)
            heard, rows = self._rows_of(senders, into.lengths[low:high], offsets[:-1] - offsets[0])
            counts[at[low:high] - done] = heard
            yield HeardRows(done, end, offsets_of(counts), rows)
            done = end
        if done < agents:
            yield HeardRows(done, agents, np.zeros(agents - done + 1, np.int64), np.zeros(0, np.intp))

    def _rows_of(
        self, senders: NDArray[np.int32], lengths: NDArray[np.int64], begins: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
        """Return how many broadcasts each hearer hears, and the rows of these broadcasts, hearer by hearer.

        Args: `senders` are the senders that the hearers hear. Hearer i hears `lengths[i]` of them, from `begins[i]` on.
        """
        if self._said is None:
            ordered = self._ordered
            return lengths, senders.astype(np.intp) if ordered is None else ordered.take(senders)
        if self._row_of is not None:
            rows = self._row_of.take(senders)
            there = rows >= 0
            if bool(there.all()):
                return lengths, rows
            return np.add.reduceat(there, begins, dtype=np.int64), rows[there]
        said = self._said[senders]
        rows = gathered(self._firsts[senders], said)
        return np.add.reduceat(said, begins), rows if self._ordered is None else self._ordered[rows]

    @cached_property
    def _row_of(self) -> NDArray[np.intp] | None:
        """Return the row of each sender's broadcast (-1: none), or None if a sender has several broadcasts."""
        assert self._said is not None
        if int(self._said.max(initial=0)) > 1:
            return None
        found = np.full(self._senders, -1, np.intp)
        found[self._places] = np.arange(len(self._places)) if self._rows is None else self._rows
        return found

    @cached_property
    def _firsts(self) -> NDArray[np.int64]:
        """Return, for each sender, how many broadcasts the senders before it have sent."""
        assert self._said is not None
        return offsets_of(self._said)

    @cached_property
    def _ordered(self) -> NDArray[np.intp] | None:
        """Return the broadcasts' rows in the order of their senders, or None if they already have this order."""
        if self._rows is None and bool((self._places[1:] >= self._places[:-1]).all()):
            return None
        order = np.argsort(self._places, kind="stable")
        return order if self._rows is None else self._rows[order]


def _bound(dtype: np.dtype[Any], *, largest: bool) -> Any:  # noqa: ANN401 - a value of the type
    """Return the value with which the search for a maximum or minimum begins.

    For a maximum (`largest`) it is the smallest value of the type, for a minimum the largest one.
    """
    if dtype.kind == "f":
        return -np.inf if largest else np.inf
    if dtype.kind == "b":
        return not largest
    limits = np.iinfo(dtype)
    return limits.min if largest else limits.max


class GraphEdges:
    """Pairs of int ids, stored by sender and by hearer: `out` has each sender's hearers, `into` each hearer's senders.

    A copy that is restricted to some agents shares these arrays. `senders` are the indexes of the copy's senders (None:
    all), and `wanted` (bool, by the hearer's index) says which hearers belong to the copy (None: all).
    `positions` are the positions from which the pairs were made (None: they were made from a graph).
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
        self._heard: tuple[AgentSet, Adjacency, NDArray[np.intp]] | None = None

    @cached_property
    def _degrees(self) -> NDArray[np.int64]:
        """Return, for each sender, how many of its hearers belong to these pairs."""
        if self._wanted is None:
            return self.out.lengths
        degrees = np.zeros(len(self.out.ids), np.int64)
        for low, high, offsets in self.out.pieces():
            counted = np.zeros(int(offsets[-1] - offsets[0]) + 1, np.int32)
            np.cumsum(self._wanted[self.out.take(slice(low, high)).neighbours], out=counted[1:])
            degrees[low:high] = np.diff(counted[offsets - offsets[0]])
        return degrees

    @property
    def pairs(self) -> int:
        """Return how many pairs of a sender and a hearer there are."""
        return int(self._degrees.sum())

    @property
    def senders(self) -> AgentSet:
        """Return the senders of these pairs. A sender is included even if a restriction leaves none of its hearers."""
        return AgentSet(self.out.ids)

    @property
    def hearers(self) -> AgentSet:
        """Return the hearers of these pairs."""
        return AgentSet(self.into.ids if self._wanted is None else self.into.ids[self._wanted])

    def counts(self, from_ids: IdColumn) -> NDArray[np.int64]:
        """Return the number of hearers of each sender, or 0 for an id that is not a sender."""
        places = self.out.places(from_ids)
        if not len(self.out.ids):
            return np.zeros(len(from_ids), np.int64)
        return np.where(places < 0, 0, self._degrees[places])

    def expand(self, from_ids: IdColumn) -> Pairs:
        """Return the pairs of each sender, in the order of `from_ids`.

        The pairs of one sender are in the order of the hearers.
        """
        places = self.out.places(from_ids)
        senders = np.flatnonzero(places >= 0)
        some = self.out.take(places[senders])
        rows, found = np.repeat(senders, some.lengths), some.neighbours
        if self._wanted is not None:
            counted = self._wanted[found]
            rows, found = rows[counted], found[counted]
        return Pairs(rows, IdColumn(self.into.ids[found]))

    def toward(self, hearers: AgentSet) -> "GraphEdges":
        """Return the pairs whose hearers are in a set."""
        wanted = np.zeros(len(self.into.ids), np.bool_)
        places = self.into.places(IdColumn(hearers.ints))
        wanted[places[places >= 0]] = True
        if self._wanted is not None:
            wanted &= self._wanted
        return self._restricted(self._restricted_to, None if bool(wanted.all()) else wanted)

    def of(self, senders: AgentSet) -> "GraphEdges":
        """Return the pairs whose senders are in a set, without copying them."""
        places = self.all.places((senders & self.senders).column)
        if len(places) and places[-1] - places[0] + 1 == len(places):
            return self._restricted(slice(places[0], places[-1] + 1), self._wanted)
        return self._restricted(places, self._wanted)

    def _restricted(self, senders: NDArray[np.intp] | slice | None, wanted: NDArray[np.bool_] | None) -> "GraphEdges":
        return GraphEdges(self.all, self.into, self.digest, senders=senders, wanted=wanted)

    def hearing(self, hearers: AgentSet, from_ids: IdColumn) -> GraphHearing:
        """Return an object that computes what `hearers` hear of the broadcasts that the agents `from_ids` sent."""
        if self._heard is None or self._heard[0] != hearers:
            found = self.into.places(IdColumn(hearers.ints))
            heard = found >= 0
            if self._wanted is not None and len(self._wanted):
                heard &= self._wanted[found]
            self._heard = hearers, self.into.take(found[heard]).compact(), np.flatnonzero(heard)
        _, into, at = self._heard
        places = self.all.places(from_ids)
        if self._restricted_to is not None:
            places[self.out.places(from_ids) < 0] = -1
        return GraphHearing(into, at, len(hearers), places, len(self.all.ids))
