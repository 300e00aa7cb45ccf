"""Listed pairs of agents with an exact lookup by columns."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ray_messaging.interception.rules.support.graphs import Edges, among
from ray_messaging.interception.rules.support.pairs import Pair
from ray_messaging.model.columns import INT, NONE, STR, IdColumn


class PairTable:
    """Pairs as they were listed when it was built; None on either side is any agent, and the user is not one."""

    def __init__(self, pairs: Iterable[Pair]) -> None:
        listed = set(pairs)
        self._listed = listed
        self._all = (None, None) in listed
        self._pairs = Edges({(a, b) for a, b in listed if a is not None and b is not None})
        self._senders = _ints(a for a, b in listed if b is None)
        self._hearers = _ints(b for a, b in listed if a is None)
        self._names = any(isinstance(end, str) for pair in listed for end in pair)

    def has(self, from_ids: IdColumn, to_ids: IdColumn) -> NDArray[np.bool_]:
        """Return for each of n pairs whether it is listed."""
        if self._all:
            found = np.ones(len(from_ids), np.bool_)
        else:
            found = self._pairs.holds(from_ids.values, to_ids.values)
            found &= _of_kind(from_ids, INT) & _of_kind(to_ids, INT)
            if len(self._senders):
                found |= among(self._senders, from_ids.values) & _of_kind(from_ids, INT)
            if len(self._hearers):
                found |= among(self._hearers, to_ids.values) & _of_kind(to_ids, INT)
            if self._names:
                for row in np.flatnonzero(_of_kind(from_ids, STR) | _of_kind(to_ids, STR)).tolist():
                    a, b = from_ids[row], to_ids[row]
                    found[row] = not self._listed.isdisjoint({(a, b), (a, None), (None, b)})
        return found & ~_of_kind(from_ids, NONE)


def _ints(ids: Iterable[object]) -> NDArray[np.int64]:
    return np.array(sorted(each for each in ids if isinstance(each, int)), np.int64)


def _of_kind(ids: IdColumn, kind: int) -> NDArray[np.bool_]:
    if ids.kinds is None:
        return np.full(len(ids), kind == INT)
    found: NDArray[np.bool_] = ids.kinds == kind
    return found
