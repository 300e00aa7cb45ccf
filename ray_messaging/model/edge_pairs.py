"""Edges of a graph that a user gives."""

from typing import Any


def edge_pairs(graph: Any) -> Any:  # noqa: ANN401 - anything networkx-like, or pairs of any kind
    """Return the edges of a graph like networkx's as a list of pairs; anything else is returned unchanged.

    An edge of an undirected graph makes two pairs, one in each direction; a loop makes one. The rows of a table are
    pairs.
    """
    if hasattr(graph, "itertuples"):
        return graph.to_numpy()
    if not (hasattr(graph, "edges") and hasattr(graph, "is_directed")):
        return graph
    pairs = [*graph.edges()]
    return pairs if graph.is_directed() else pairs + [(other, one) for one, other in pairs if one != other]
