"""A rule that passes messages along the edges of graphs."""

from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import INT64_MAX, INT64_MIN, AgentId
from ray_messaging.errors import RuleError
from ray_messaging.interception.rules.pairs import Edges, among, blocks, name_of, of_kind, read_network
from ray_messaging.interception.rules.rule import PairCheck, Rule, Verdict
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import INT, IdColumn

Int64 = Annotated[int, msgspec.Meta(ge=INT64_MIN, le=INT64_MAX)]


class AllowGraphSnapshot(msgspec.Struct, array_like=True, frozen=True, tag="allow_graph"):
    """The data of an AllowGraph: its edges, its networks, and the receivers to whom everybody may write.

    `memberships` is for networks that were given as lists of ids. It has a pair for each member: the agent, and the
    network's number.
    """

    name: str
    edges: Collection[tuple[Int64 | str, Int64 | str]]
    memberships: Collection[tuple[Int64 | str, Int64]]
    open: Collection[Int64 | str]
    user: bool
    channels: bool


class AllowGraph(Rule):
    """Pass messages along the edges of graphs, and block all other messages.

    A message passes if any of the graphs has an edge from its sender to its receiver. An agent may write to itself only
    along an edge. The graphs are copied, so replace the rule to change them.

    Args:
        graph: (from_id, to_id) pairs, a DataFrame of them, an audience, or a graph like networkx's (`edges()`,
            `nodes()` and `is_directed()`). Edges of an undirected graph lead both ways.
        networks: more graphs by name. A network may also be a list of ids, so that each member may write to each
            other member.
        public: names of networks to whose members all agents may write. All other networks are private: messages reach
            their members only along an edge.
        user: whether the user (from_id None) may write to every agent. If False, the user may write only to members of
            public networks.
        channels: whether agents may write to plain channels, which belong to no agent. Either all agents may (True), or
            no agent may (False).
        name: the rule's name.

    Raises: RuleError if an argument is not valid, InvalidAddress if an id is not valid.
    """

    def __init__(
        self,
        graph: object = None,
        *,
        networks: Mapping[str, object] | None = None,
        public: Iterable[str] = (),
        user: bool = True,
        channels: bool = True,
        name: str = "allow_graph",
    ) -> None:
        self._public = _check_public(networks, public, name)
        if graph is None and networks is None:
            raise RuleError("no graph was given: pass pairs, a networkx graph, or networks={name: graph}", rule=name)
        read = [] if graph is None else [read_network(graph, name, "graph=", ids=False)]
        named = {
            key: read_network(value, name, f"the network {key!r}", ids=True) for key, value in (networks or {}).items()
        }
        self._names = tuple(named)
        networks_read = [*read, *named.values()]
        open_ = {member for key in self._public for member in named[key].members}
        # A complete network is stored as its n members, in place of n * n edges.
        memberships = {
            (member, number) for number, each in enumerate(networks_read) if each.complete for member in each.members
        }
        edges = {edge for each in networks_read for edge in each.edges}
        self._join(AllowGraphSnapshot(name, edges, memberships, open_, user, channels))

    @classmethod
    def of(cls, snapshot: AllowGraphSnapshot) -> "AllowGraph":
        """Build a rule that makes the same decisions as the rule of a snapshot."""
        made = cls.__new__(cls)
        made._names, made._public = (), ()
        made._join(snapshot)
        return made

    @property
    def snapshot(self) -> AllowGraphSnapshot:
        """Return the data by which the rule decides."""
        memberships = [(member, number) for member, found in self._networks_of.items() for number in found]
        return AllowGraphSnapshot(self.name, [*self._edges], memberships, self._open, self.user, self.channels)

    @property
    def size(self) -> int:
        """Return how many entries a snapshot of the rule has.

        They are its edges, the members of networks that were given as lists of ids, and the members of public networks.
        """
        return len(self._edges) + len(self._memberships) + len(self._open)

    def _join(self, joined: AllowGraphSnapshot) -> None:
        self.name, self.user, self.channels = joined.name, joined.user, joined.channels
        self._edges = Edges(set(joined.edges))
        memberships = set(joined.memberships)
        self._memberships = Edges(memberships)
        self._networks_of: dict[AgentId, list[int]] = {}
        for member, number in memberships:
            self._networks_of.setdefault(member, []).append(number)
        self._layers = _layers(self._networks_of)
        self._open = frozenset(joined.open)
        self._open_ints = np.array(sorted(member for member in self._open if isinstance(member, int)), np.int64)

    def check_batch(self, batch: Batch, exp_id: str) -> Mapping[int, Verdict]:  # noqa: ARG002 - every rule gets it
        """Return verdicts that block the rows whose sender has no edge to the receiver."""
        from_ids, to_ids = batch.from_ids, batch.to_ids
        rows = np.flatnonzero(self._bars(from_ids, to_ids)).tolist()
        return blocks(rows, (_reason(from_ids[row], to_ids[row]) for row in rows))

    def pair_check(self) -> PairCheck | None:
        """Return an object that judges many pairs of sender and hearer of a broadcast at once, by their ids.

        Return None if a subclass overrides `check_batch`, because that method must then judge the pairs.
        """
        if type(self).check_batch is not AllowGraph.check_batch:
            return None
        return PairCheck(self._bars, "no edge joins this sender and this hearer")

    def _bars(self, from_ids: IdColumn, to_ids: IdColumn) -> NDArray[np.bool_]:
        allowed = self._allowed(from_ids.values, to_ids.values)
        if from_ids.kinds is not None or to_ids.kinds is not None:
            for row in np.flatnonzero(~(of_kind(from_ids, INT) & of_kind(to_ids, INT))).tolist():
                allowed[row] = self._allows(from_ids[row], to_ids[row])
        return ~allowed

    def _allowed(self, from_values: NDArray[np.int64], to_values: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return, for each pair of int ids, whether the first may write to the second."""
        allowed = self._edges.holds(from_values, to_values)
        for members, networks in self._layers:
            places = np.minimum(np.searchsorted(members, from_values), len(members) - 1)
            allowed |= (members[places] == from_values) & self._memberships.holds(to_values, networks[places])
        if len(self._open_ints):
            allowed |= among(self._open_ints, to_values)
        return allowed

    def _allows(self, from_id: AgentId | None, to_id: AgentId | None) -> bool:
        """Return whether a sender (None: the user) may write to a receiver (None: a plain channel)."""
        if to_id is None:
            return self.channels and (self.user or from_id is not None)
        if to_id in self._open:
            return True
        if from_id is None:
            return self.user
        both = self._networks_of.get(from_id, ())
        return self._edges.has(from_id, to_id) or any(self._memberships.has(to_id, number) for number in both)

    def describe(self) -> dict[str, Any]:
        """Return the rule's name, kind and settings, the number of its edges, and the names of its networks."""
        return {
            **super().describe(),
            "edges": len(self._edges),
            "networks": list(self._names),
            "public": list(self._public),
            "user": self.user,
            "channels": self.channels,
        }


def _check_public(networks: Mapping[str, object] | None, public: Iterable[str], name: str) -> tuple[str, ...]:
    if networks is not None and not isinstance(networks, Mapping):
        raise RuleError(f"networks={networks!r} is not a mapping: write {{name: graph}}", rule=name)
    chosen = tuple([public] if isinstance(public, str) else public)
    for key in chosen:
        if key not in (networks or {}):
            known = ", ".join(map(repr, networks or ())) or "none"
            raise RuleError(f"public={key!r} is not the name of a network: networks= has {known}", rule=name)
    return chosen


def _layers(networks_of: Mapping[AgentId, list[int]]) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return a list of pairs of arrays, in which the networks of many agents with int ids can be looked up at once.

    Pair k has the agents that are members of more than k networks: their ids, ascending, and for each of these agents
    the network at index k of `networks_of[id]`.
    """
    ints = sorted((member, numbers) for member, numbers in networks_of.items() if isinstance(member, int))
    layers: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    while ints:
        depth = len(layers)
        layers.append((np.array([member for member, _ in ints]), np.array([numbers[depth] for _, numbers in ints])))
        ints = [(member, numbers) for member, numbers in ints if len(numbers) > depth + 1]
    return layers


def _reason(from_id: AgentId | None, to_id: AgentId | None) -> str:
    sender = "the user" if from_id is None else name_of(from_id)
    return f"{sender} may not write to {'plain channels' if to_id is None else name_of(to_id)}: no edge joins them"
