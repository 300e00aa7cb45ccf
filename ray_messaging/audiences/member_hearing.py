"""The broadcasts of an audience of members as some agents hear them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_messaging.audiences.adjacency import CHUNK, offsets_of
from ray_messaging.audiences.edges import HeardRows
from ray_messaging.audiences.places import places_in
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.columns import NONE, IdColumn


class MemberHearing:
    """The rows of `from_ids` as the agents that `hears` marks hear them: all `rows` but their own."""

    def __init__(self, agents: AgentSet, hears: NDArray[np.bool_], from_ids: IdColumn, rows: NDArray[np.intp]) -> None:
        said = from_ids.take(rows)
        senders = AgentSet.of(said if said.kinds is None else said.take(said.kinds != NONE))
        # Ascending by sender, so that each hearer's own rows are one range, and sums do not depend on the group.
        places = places_in(senders, said)
        order = np.argsort(places, kind="stable")
        self._rows, places = rows[order], places[order]
        own = places_in(senders, agents.column)
        self._low = np.where(own < 0, 0, np.searchsorted(places, own))
        self._high = np.where(own < 0, 0, np.searchsorted(places, own, side="right"))
        self._hears = hears

    def counts(self) -> NDArray[np.int64]:
        """Return how many rows each hearer hears."""
        return np.where(self._hears, len(self._rows) - (self._high - self._low), 0)

    def sums(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return for each hearer the sum of the values of its rows: 0 without a row."""
        return self._reduced(np.add, values[self._rows], values.dtype.type(0))

    def extremes(self, values: NDArray[Any], *, largest: bool) -> NDArray[Any]:
        """Return for each hearer the largest or smallest value of its rows; anything without a row."""
        return self._reduced(np.maximum if largest else np.minimum, values[self._rows], -np.inf if largest else np.inf)

    def _reduced(self, ufunc: np.ufunc, heard: NDArray[Any], nothing: Any) -> NDArray[Any]:  # noqa: ANN401 - a value
        """Return what comes before a hearer's own rows together with what comes after: nothing is subtracted."""
        before = np.append(nothing, ufunc.accumulate(heard)).astype(heard.dtype)
        after = np.append(nothing, ufunc.accumulate(heard[::-1])).astype(heard.dtype)[::-1]
        # A hearer without rows of its own has all of them before an empty range.
        whole = self._low == self._high
        found: NDArray[Any] = np.where(whole, before[-1], ufunc(before[self._low], after[self._high]))
        return np.where(self._hears, found, heard.dtype.type(0))

    def chunks(self, some: NDArray[np.intp] | None = None) -> Iterator[HeardRows]:
        """Yield the rows of all hearers, or of some, in their order, a few hearers at a time."""
        lows, highs, hears = self._low, self._high, self._hears
        if some is not None:
            lows, highs, hears = lows[some], highs[some], hears[some]
        each = max(CHUNK // max(len(self._rows), 1), 1)
        places = np.arange(len(self._rows))
        for low in range(0, len(hears), each):
            part = slice(low, low + each)
            own = (places >= lows[part, None]) & (places < highs[part, None])
            kept = ~own & hears[part, None]
            rows = np.broadcast_to(self._rows, kept.shape)[kept]
            yield HeardRows(low, low + len(kept), offsets_of(kept.sum(axis=1)), rows)
