"""Edges of a graph that a user gives."""

from typing import Any

import numpy as np


def edge_pairs(graph: Any) -> Any:  # noqa: ANN401 - anything networkx-like, or pairs of any kind
    """Return the edges of a graph like networkx's as a list of pairs; anything else is returned unchanged.

    An edge of an undirected graph makes two pairs, one in each direction; a loop makes one. The rows of a table are
    pairs, and so are those of anything that numpy can read, as an audience.
    """
    if hasattr(graph, "__array__"):
        return np.asarray(graph)
    if not (hasattr(graph, "edges") and hasattr(graph, "is_directed")):
        return graph
    pairs = [*graph.edges()]
    return pairs if graph.is_directed() else pairs + [(other, one) for one, other in pairs if one != other]
