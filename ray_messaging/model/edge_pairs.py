"""Conversion of a user's graph to pairs of agents."""

from typing import Any

import numpy as np


def edge_pairs(graph: Any) -> Any:  # noqa: ANN401 - anything networkx-like, or pairs of any kind
    """Return the edges of a user's graph as pairs of agents.

    A graph like networkx's becomes a list of pairs. An edge of an undirected graph makes a pair in each direction, and
    a loop makes one pair. A table, an audience, or anything else that has `__array__` becomes an array whose rows are
    the pairs. Any other graph is returned unchanged.
    """
    if hasattr(graph, "__array__"):
        return np.asarray(graph)
    if not (hasattr(graph, "edges") and hasattr(graph, "is_directed")):
        return graph
    pairs = [*graph.edges()]
    return pairs if graph.is_directed() else pairs + [(other, one) for one, other in pairs if one != other]
