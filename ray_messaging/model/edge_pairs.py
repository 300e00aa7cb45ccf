"""Edges of a graph that a user gives."""

from typing import Any


def edge_pairs(graph: Any) -> Any:  # noqa: ANN401 - anything networkx-like, or pairs of any kind
    """Return the edges of a graph like networkx's as a list of pairs; what is no such graph comes back as it is.

    An edge of an undirected graph leads in both directions; a loop is one pair. A table's rows are pairs.
    """
    if hasattr(graph, "itertuples"):
        return graph.to_numpy()
    if not (hasattr(graph, "edges") and hasattr(graph, "is_directed")):
        return graph
    pairs = [*graph.edges()]
    return pairs if graph.is_directed() else pairs + [(other, one) for one, other in pairs if one != other]
