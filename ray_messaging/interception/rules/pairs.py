"""Pairs of agents: how they are read from lists or graphs, named in reasons, and found in columns of ids."""

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId, check_id
from ray_messaging.errors import RuleError
from ray_messaging.interception.rules.rule import Verdict, block
from ray_messaging.model.columns import INT, NONE, STR, IdColumn
from ray_messaging.model.edge_pairs import edge_pairs

Pair = tuple[AgentId | None, AgentId | None]
Edge = tuple[AgentId, AgentId]

# Odd 64-bit constants that spread ids over the slots of an index. The first is made from the golden ratio, the second
# is a prime.
_SPREAD_FROM, _SPREAD_TO = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
_HALF = np.uint64(32)
_SLOTS_PER_PAIR = 16
# With few slots, the index finds more rows that are not among the pairs. Each such row costs a lookup, which takes as
# long as the arithmetic on a hundred rows.
_LEAST_SLOTS = 2**16
_LEAST_ROOM = 16
FEW_ROWS = 8  # for up to this many rows, looking up each row is faster than arithmetic on the columns


def check_pair(pair: object, rule: str) -> Pair:
    """Return a pair with both ids in the form that messages have.

    Raises: RuleError if `pair` is not a pair, InvalidAddress if an id is not valid.
    """
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise RuleError(f"{pair!r} is not a pair: write (from_id, to_id), with None for any agent", rule=rule)
    _check_nesting(pair, rule)
    return (None if pair[0] is None else check_id(pair[0]), None if pair[1] is None else check_id(pair[1]))


def _check_nesting(pair: object, rule: str) -> None:
    """Raise RuleError for a list of two tuples where one pair is expected, because it may be two pairs."""
    if isinstance(pair, list) and all(isinstance(end, tuple) for end in pair):
        raise RuleError(
            f"the pair {pair!r} is a list, so its tuples may be two pairs, or two ids: write the two pairs without a "
            f"list around them, or write a pair of two ids as a tuple, {tuple(pair)!r}",
            rule=rule,
        )


def check_pairs(pairs: object, rule: str) -> set[Pair]:
    """Return the pairs that a rule was given, with valid ids, as a set. A single pair may be given instead of a list.

    Raises: RuleError or InvalidAddress for an invalid pair.
    """
    if isinstance(pairs, tuple) and len(pairs) == 2 and not any(isinstance(side, tuple | list | set) for side in pairs):
        return {check_pair(pairs, rule)}
    if isinstance(pairs, str | bytes) or not isinstance(pairs, Iterable):
        raise RuleError(f"{pairs!r} is not a list of pairs: write [(from_id, to_id), ...]", rule=rule)
    return {check_pair(pair, rule) for pair in pairs}


def name_of(agent_id: AgentId | None) -> str:
    """Return an agent's name for the reason of a block."""
    return f"agent {agent_id!r}"


def blocks(rows: Iterable[int], reasons: Iterable[str]) -> dict[int, Verdict]:
    """Return verdicts that block rows. Rows with the same reason share one `Verdict`."""
    made: dict[str, Verdict] = {}
    found: dict[int, Verdict] = {}
    for row, reason in zip(rows, reasons, strict=True):
        verdict = made.get(reason)
        if verdict is None:
            verdict = made[reason] = block(reason)
        found[row] = verdict
    return found


def hash_pairs(from_values: NDArray[np.int64], to_values: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a hash of each pair of ints."""
    return (from_values.view(np.uint64) * _SPREAD_FROM) ^ (to_values.view(np.uint64) * _SPREAD_TO)


class PairIndex:
    """An index of pairs, which finds the rows of a batch that may be among the pairs. None in a pair means any agent.

    The index finds all rows that are among the pairs, and a few other rows. So the caller must look up each found row
    in the set of pairs. Pairs can be added to the index, but not removed from it. So a pair that has left the set costs
    extra lookups until the index is rebuilt.
    """

    def __init__(self, pairs: Iterable[Pair] = ()) -> None:
        listed = list(pairs)
        self._pairs = _Bitmap([(a, b) for a, b in listed if isinstance(a, int) and isinstance(b, int)])
        self._senders = _Bitmap([(a, 0) for a, b in listed if isinstance(a, int) and b is None])
        self._receivers = _Bitmap([(0, b) for a, b in listed if a is None and isinstance(b, int)])
        self._names = {name for pair in listed for name in pair if isinstance(name, str)}
        self._names_room = 2 * len(self._names) + _LEAST_ROOM
        self._everybody = (None, None) in listed

    def add(self, pair: Pair) -> bool:
        """Add a pair; return False if the index is full and must be rebuilt."""
        from_id, to_id = pair
        self._names |= {name for name in pair if isinstance(name, str)}
        self._everybody |= pair == (None, None)
        if isinstance(from_id, str) or isinstance(to_id, str):
            return len(self._names) <= self._names_room
        if from_id is not None and to_id is not None:
            return self._pairs.add((from_id, to_id))
        if from_id is not None:
            return self._senders.add((from_id, 0))
        return to_id is None or self._receivers.add((0, to_id))

    def candidates(self, from_ids: IdColumn, to_ids: IdColumn) -> list[int]:
        """Return the numbers, ascending, of the rows that may match a pair. All other rows match no pair."""
        if self._everybody or len(from_ids) <= FEW_ROWS:
            return list(range(len(from_ids)))
        sender = from_ids.values.view(np.uint64) * _SPREAD_FROM
        receiver = to_ids.values.view(np.uint64) * _SPREAD_TO
        maybe = self._pairs.holds(sender ^ receiver)
        maybe |= self._senders.holds(sender)
        maybe |= self._receivers.holds(receiver)
        for ids in (from_ids, to_ids):
            if ids.kinds is not None and ids.strings:
                rows = np.flatnonzero(ids.kinds == STR)
                # A pair with a str is found by the str alone. The pair's other id is not looked at.
                named = np.fromiter((name in self._names for name in ids.strings), np.bool_, len(ids.strings))
                maybe[rows] |= named[ids.values[rows]]
        found: list[int] = np.flatnonzero(maybe).tolist()
        return found


class _Bitmap:
    """A Bloom filter with one hash for pairs of ints. It has 16 slots or more per initial pair, and room for more."""

    def __init__(self, pairs: list[tuple[int, int]]) -> None:
        size = max(_LEAST_SLOTS, 1 << (len(pairs) * _SLOTS_PER_PAIR).bit_length())
        self._shift = np.uint64(64 - size.bit_length() + 1)
        self._places = np.zeros(size, np.bool_)
        self._room = len(pairs) + _LEAST_ROOM
        self._empty = True
        if pairs:
            self._mark(pairs)

    def add(self, pair: tuple[int, int]) -> bool:
        self._room -= 1
        self._mark([pair])
        return self._room >= 0

    def _mark(self, pairs: list[tuple[int, int]]) -> None:
        self._empty = False
        columns = np.array(pairs, np.int64)
        self._places[self._slots(hash_pairs(columns[:, 0].copy(), columns[:, 1].copy()))] = True

    def _slots(self, hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
        # The hash is multiplied a second time. Ids are often consecutive, and their products with one constant would
        # collide.
        return ((hashes ^ (hashes >> _HALF)) * _SPREAD_FROM) >> self._shift

    def holds(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        if self._empty:
            return np.zeros(len(hashes), np.bool_)
        return self._places.take(self._slots(hashes).view(np.int64))


class Network(NamedTuple):
    """A graph: its edges and members.

    In a `complete` network, each member may write to each other member. Its `edges` are empty.
    """

    edges: set[Edge]
    members: set[AgentId]
    complete: bool = False


def read_network(graph: Any, rule: str, name: str, *, ids: bool) -> Network:  # noqa: ANN401 - anything networkx-like
    """Read a graph that a rule was given.

    Args: with `ids`, `graph` may also be a list of members. Then the network is complete.
    Raises: RuleError if `graph` is not a graph, InvalidAddress if an id is not valid.
    """
    pairs = edge_pairs(graph)
    if pairs is not graph and hasattr(graph, "nodes"):
        return Network({_edge(edge, rule, name) for edge in pairs}, {check_id(node) for node in graph.nodes()})
    if isinstance(graph, str | bytes | Mapping) or not isinstance(pairs, Iterable):
        raise RuleError(f"{name} is {graph!r}, which is not a graph: pass pairs of ids, or a networkx graph", rule=rule)
    items = list(pairs)
    if ids and items and not any(isinstance(item, tuple | list | np.ndarray) for item in items):
        return Network(set(), {check_id(item) for item in items}, complete=True)
    edges = {_edge(item, rule, name) for item in items}
    return Network(edges, {end for edge in edges for end in edge})


def _edge(edge: object, rule: str, name: str) -> Edge:
    if isinstance(edge, np.ndarray):
        edge = tuple(edge)
    if not isinstance(edge, tuple | list) or len(edge) != 2:
        raise RuleError(f"{name} has {edge!r}, which is not an edge: write (from_id, to_id)", rule=rule)
    _check_nesting(edge, rule)
    return check_id(edge[0]), check_id(edge[1])


def among(ordered: NDArray[Any], values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return, for each value, whether it is in a sorted array, which must not be empty."""
    found: NDArray[np.bool_] = ordered[np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)] == values
    return found


class Edges:
    """A set of edges. Many edges between int ids are looked up in one call, in a sorted array of hashes."""

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

    def content(self) -> tuple[NDArray[np.int64], NDArray[np.int64], set[Edge]]:
        """Return the edges between int ids as two columns, sources and targets, and then the other edges as a set."""
        others = {edge for edge in self._edges if not (isinstance(edge[0], int) and isinstance(edge[1], int))}
        return self._sources, self._targets, others

    def has(self, from_id: AgentId, to_id: AgentId) -> bool:
        """Return whether there is an edge. Each id may be an int or a str."""
        return (from_id, to_id) in self._edges

    def holds(self, sources: NDArray[np.int64], targets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return, for each pair of int ids, whether the pair is an edge."""
        if not len(self._hashes):
            return np.zeros(len(sources), np.bool_)
        hashes = hash_pairs(sources, targets)
        places = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        found: NDArray[np.bool_] = (self._sources[places] == sources) & (self._targets[places] == targets)
        # If only the hash is equal, a later edge with the same hash may be the pair.
        for row in np.flatnonzero(~found & (self._hashes[places] == hashes)).tolist():
            found[row] = (int(sources[row]), int(targets[row])) in self._edges
        return found


class PairTable:
    """The pairs that were listed when the table was built.

    None in a pair stands for any agent, but not for the user, who is no agent.
    """

    def __init__(self, pairs: Iterable[Pair]) -> None:
        listed = set(pairs)
        self._listed = listed
        self._all = (None, None) in listed
        self._pairs = Edges({(a, b) for a, b in listed if a is not None and b is not None})
        self._senders = _ints(a for a, b in listed if b is None)
        self._hearers = _ints(b for a, b in listed if a is None)
        self._names = any(isinstance(end, str) for pair in listed for end in pair)

    def has(self, from_ids: IdColumn, to_ids: IdColumn) -> NDArray[np.bool_]:
        """Return, for each of n pairs of sender and receiver, whether the pair matches a listed pair.

        None in a listed pair matches any agent. A pair whose sender is the user matches no listed pair.
        """
        if self._all:
            found = np.ones(len(from_ids), np.bool_)
        else:
            found = self._pairs.holds(from_ids.values, to_ids.values)
            found &= of_kind(from_ids, INT) & of_kind(to_ids, INT)
            if len(self._senders):
                found |= among(self._senders, from_ids.values) & of_kind(from_ids, INT)
            if len(self._hearers):
                found |= among(self._hearers, to_ids.values) & of_kind(to_ids, INT)
            if self._names:
                for row in np.flatnonzero(of_kind(from_ids, STR) | of_kind(to_ids, STR)).tolist():
                    a, b = from_ids[row], to_ids[row]
                    found[row] = not self._listed.isdisjoint({(a, b), (a, None), (None, b)})
        return found & ~of_kind(from_ids, NONE)


def _ints(ids: Iterable[object]) -> NDArray[np.int64]:
    return np.array(sorted(each for each in ids if isinstance(each, int)), np.int64)


def of_kind(ids: IdColumn, kind: int) -> NDArray[np.bool_]:
    """Return, for each id, whether it is of a `kind`: INT, STR or NONE."""
    if ids.kinds is None:
        return np.full(len(ids), kind == INT)
    found: NDArray[np.bool_] = ids.kinds == kind
    return found
