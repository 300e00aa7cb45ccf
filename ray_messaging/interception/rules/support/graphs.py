"""Graphs given by users, and sets of edges with a lookup by columns."""

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId, check_id
from ray_messaging.errors import RuleError
from ray_messaging.interception.rules.support.pairs import hash_pairs
from ray_messaging.model.edge_pairs import edge_pairs

Edge = tuple[AgentId, AgentId]


class Network(NamedTuple):
    """A graph: its edges and members. In a `complete` one, all members are joined, and the edges are left out."""

    edges: set[Edge]
    members: set[AgentId]
    complete: bool = False


def read_network(graph: Any, rule: str, name: str, *, ids: bool) -> Network:  # noqa: ANN401 - anything networkx-like
    """Read a graph given by a user; with `ids`, a list of members is one, too."""
    pairs = edge_pairs(graph)
    if pairs is not graph and hasattr(graph, "nodes"):
        return Network({_edge(edge, rule, name) for edge in pairs}, {check_id(node) for node in graph.nodes()})
    if isinstance(graph, str | bytes | Mapping) or not isinstance(graph, Iterable):
        raise RuleError(f"{name}: {graph!r} is no graph: pass pairs of ids, or a networkx graph", rule=rule)
    items = list(pairs)
    if ids and items and not any(isinstance(item, tuple | list | np.ndarray) for item in items):
        return Network(set(), {check_id(item) for item in items}, complete=True)
    edges = {_edge(item, rule, name) for item in items}
    return Network(edges, {end for edge in edges for end in edge})


def _edge(edge: object, rule: str, name: str) -> Edge:
    if isinstance(edge, np.ndarray):
        edge = tuple(edge)
    if not isinstance(edge, tuple | list) or len(edge) != 2:
        raise RuleError(f"{name}: {edge!r} is no edge: write (from_id, to_id)", rule=rule)
    return check_id(edge[0]), check_id(edge[1])


def among(ordered: NDArray[Any], values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return for each value whether it is in a sorted array, which must not be empty."""
    found: NDArray[np.bool_] = ordered[np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)] == values
    return found


class Edges:
    """A set of edges. Those between ints are looked up by columns, in a sorted array of hashes."""

    def __init__(self, edges: Set[Edge]) -> None:
        self._edges = edges
        ints = [edge for edge in edges if isinstance(edge[0], int) and isinstance(edge[1], int)]
        columns = np.array(ints, np.int64).reshape(-1, 2)
        sources, targets = columns[:, 0].copy(), columns[:, 1].copy()
        hashes = hash_pairs(sources, targets)
        order = np.argsort(hashes)
        self._hashes, self._sources, self._targets = hashes[order], sources[order], targets[order]

    def __len__(self) -> int:
        return len(self._edges)

    def __iter__(self) -> Iterator[Edge]:
        return iter(self._edges)

    def has(self, from_id: AgentId, to_id: AgentId) -> bool:
        """Return whether there is an edge; for any ids."""
        return (from_id, to_id) in self._edges

    def holds(self, sources: NDArray[np.int64], targets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for each pair of ints whether it is an edge."""
        if not len(self._hashes):
            return np.zeros(len(sources), np.bool_)
        hashes = hash_pairs(sources, targets)
        places = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        found: NDArray[np.bool_] = (self._sources[places] == sources) & (self._targets[places] == targets)
        # Where only the hashes match, the edge may come after another one with the same hash.
        for row in np.flatnonzero(~found & (self._hashes[places] == hashes)).tolist():
            found[row] = (int(sources[row]), int(targets[row])) in self._edges
        return found
