"""Places of ids in the order of a set of agents."""

import numpy as np
from numpy.typing import NDArray

from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.columns import INT, STR, IdColumn


def places_in(agents: AgentSet, ids: IdColumn) -> NDArray[np.intp]:
    """Return the place of each id in the order of a set, -1 where it is none of it."""
    found = np.full(len(ids), -1, np.intp)
    if len(agents.ints):
        places = np.minimum(np.searchsorted(agents.ints, ids.values), len(agents.ints) - 1)
        there = agents.ints[places] == ids.values
        if ids.kinds is not None:
            there &= ids.kinds == INT
        found[there] = places[there]
    if ids.kinds is not None and agents.strings:
        order = {name: len(agents.ints) + place for place, name in enumerate(sorted(agents.strings))}
        table = np.array([order.get(name, -1) for name in ids.strings] or [-1], np.intp)
        named = ids.kinds == STR
        found[named] = table[ids.values[named]]
    return found
