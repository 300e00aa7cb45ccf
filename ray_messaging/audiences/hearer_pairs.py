"""Pairs of broadcasts and hearers, and the lookup of ids among agents."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.model.agent_sets import AgentSet, int_places
from ray_messaging.model.columns import STR, IdColumn


class Pairs(NamedTuple):
    """Pairs of broadcasts and hearers: `rows` are indexes into a column of senders, `hearers` are the hearers' ids."""

    rows: NDArray[np.intp]
    hearers: IdColumn


class HeardRows(NamedTuple):
    """The broadcasts that the hearers from `low` to before `high` hear, by row number.

    Hearer `low + i` hears the rows `rows[offsets[i]:offsets[i + 1]]`. These rows are ordered by sender: first None,
    then ints, then strs. The rows of one sender keep their order.
    """

    low: int
    high: int
    offsets: NDArray[np.int64]
    rows: NDArray[np.intp]


def places_in(agents: AgentSet, ids: IdColumn) -> NDArray[np.intp]:
    """Return the index of each id in the order of a set of agents, or -1 for an id that is not in the set."""
    found = int_places(agents.ints, ids)
    if ids.kinds is not None and agents.strings:
        order = {name: len(agents.ints) + place for place, name in enumerate(sorted(agents.strings))}
        table = np.array([order.get(name, -1) for name in ids.strings] or [-1], np.intp)
        named = ids.kinds == STR
        found[named] = table[ids.values[named]]
    return found
