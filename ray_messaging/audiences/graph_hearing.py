"""The broadcasts of a graph's audience as some agents hear them."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.audiences.adjacency import Adjacency, gathered, offsets_of
from ray_messaging.audiences.edges import HeardRows
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.columns import IdColumn


class HearerSide(NamedTuple):
    """The senders of `agents` agents: those that hear somebody are `into`, and have the places `at` among all."""

    into: Adjacency
    at: NDArray[np.intp]
    agents: int

    @classmethod
    def of(cls, into: Adjacency, agents: AgentSet, wanted: NDArray[np.bool_] | None) -> "HearerSide":
        """Take some agents, of those that are wanted (by place; None: all), out of a graph."""
        places = into.places(IdColumn(agents.ints))
        heard = places >= 0
        if wanted is not None and len(wanted):
            heard &= wanted[places]
        return cls(into.take(places[heard]).compact(), np.flatnonzero(heard), len(agents))


class GraphHearing:
    """The rows of the senders with the places `places` (-1: no sender), one each, as a graph's hearers hear them.

    What a sender said is put together first, so that each pair costs one look at its sender.
    """

    def __init__(self, side: HearerSide, places: NDArray[np.intp], senders: int) -> None:
        self._side = side
        self._rows = None if bool((places >= 0).all()) else np.flatnonzero(places >= 0)
        self._places = places if self._rows is None else places[self._rows]
        self._senders = senders

    @cached_property
    def _said(self) -> NDArray[np.int64] | None:
        """Return how many rows each sender has; None: one each."""
        said = np.bincount(self._places, minlength=self._senders)
        return None if bool((said == 1).all()) else said

    def _reduced(self, ufunc: np.ufunc, by_sender: NDArray[Any]) -> NDArray[Any]:
        into, found = self._side.into, np.zeros(self._side.agents, by_sender.dtype)
        for low, high, offsets in into.pieces():
            first = into.starts[low]
            gathered_values = by_sender.take(into.others[first : first + offsets[-1] - offsets[0]], mode="clip")
            found[self._side.at[low:high]] = ufunc.reduceat(gathered_values, offsets[:-1] - offsets[0])
        return found

    def counts(self) -> NDArray[np.int64]:
        """Return how many rows each hearer hears."""
        if self._said is not None:
            return self._reduced(np.add, self._said)
        counts = np.zeros(self._side.agents, np.int64)
        counts[self._side.at] = self._side.into.lengths
        return counts

    def sums(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return for each hearer the sum of the values of its rows: 0 without a row."""
        by_sender = np.zeros(self._senders, values.dtype)
        if self._said is None:
            by_sender[self._places] = self._heard(values)
        else:
            np.add.at(by_sender, self._places, self._heard(values))
        return self._reduced(np.add, by_sender)

    def extremes(self, values: NDArray[Any], *, largest: bool) -> NDArray[Any]:
        """Return for each hearer the largest or smallest value of its rows; anything without a row."""
        ufunc = np.maximum if largest else np.minimum
        by_sender = np.full(self._senders, _bound(values.dtype, largest=largest), values.dtype)
        ufunc.at(by_sender, self._places, self._heard(values))
        return self._reduced(ufunc, by_sender)

    def _heard(self, values: NDArray[Any]) -> NDArray[Any]:
        return values if self._rows is None else values[self._rows]

    def chunks(self, some: NDArray[np.intp] | None = None) -> Iterator[HeardRows]:
        """Yield the rows of all hearers, or of some, in their order, a few hearers at a time."""
        into, at, agents = self._side
        if some is not None:
            found = np.flatnonzero(np.isin(at, some))
            into, at, agents = into.take(found), np.searchsorted(some, at[found]), len(some)
        done = 0
        for low, high, offsets in into.pieces():
            senders = into.others[gathered(into.starts[low:high], into.lengths[low:high])]
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
        """Return how many rows some hearers hear, and these, where each has so many senders from its beginning on."""
        if self._said is None:
            return lengths, self._ordered.take(senders)
        said = self._said[senders]
        return np.add.reduceat(said, begins), self._ordered[gathered(self._firsts[senders], said)]

    @cached_property
    def _firsts(self) -> NDArray[np.int64]:
        """Return how many rows the senders before each one have."""
        assert self._said is not None
        return offsets_of(self._said)

    @cached_property
    def _ordered(self) -> NDArray[np.intp]:
        """Return the rows in the order of their senders."""
        order = np.argsort(self._places, kind="stable")
        return order if self._rows is None else self._rows[order]


def _bound(dtype: np.dtype[Any], *, largest: bool) -> Any:  # noqa: ANN401 - a value of the type
    """Return the value of a type that is the largest or the smallest beside no other."""
    if dtype.kind == "f":
        return -np.inf if largest else np.inf
    if dtype.kind == "b":
        return not largest
    limits = np.iinfo(dtype)
    return limits.min if largest else limits.max
