"""The audiences of an experiment: made, found, removed."""

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_
from typing import Any, NamedTuple, cast

import numpy as np

from ray_messaging.addressing.channels import check_name
from ray_messaging.audiences.building import Positions, build_edges
from ray_messaging.audiences.edges import Edges
from ray_messaging.audiences.member_edges import MemberEdges
from ray_messaging.audiences.records import Kind
from ray_messaging.cluster.audiences.audience import Audience, check_hosted
from ray_messaging.cluster.audiences.changes import Ending
from ray_messaging.cluster.audiences.home import AudienceFiles
from ray_messaging.cluster.handles.connection import ExperimentConnection
from ray_messaging.errors import ConfigError, InvalidColumns
from ray_messaging.model.agent_sets import NO_AGENTS, AgentSet, column_of
from ray_messaging.model.columns import IdColumn
from ray_messaging.model.edge_pairs import edge_pairs


class Layout(NamedTuple):
    """Positions as a user passed them: ids (None: all agents), points, radius, the most pairs."""

    ids: object
    points: object
    radius: object
    limit: int


class AudienceCalls:
    """The calls of `Messaging` for audiences."""

    def __init__(self, connection: ExperimentConnection) -> None:
        self._connection = connection
        self._files = AudienceFiles(connection.experiment, connection.interceptor)

    def create(self, name: str, *, graph: object, members: object, positions: Layout | None) -> Audience:
        """Create an audience; arguments and errors are those of `Messaging.create_audience`."""
        check_name("audience", name)
        if sum(given is not None for given in (graph, members, positions)) != 1:
            raise ConfigError(f"audience {name!r} needs one of graph=, members=, and positions= with radius=")
        if members is not None:
            agents = AgentSet.of(cast("Iterable[Any]", members))
            edges: Edges = MemberEdges.among(agents)
            kind = Kind.MEMBERS
        elif positions is not None:
            placed = Positions.given(self._ids(positions), *positions[1:])
            agents, edges, kind = AgentSet(placed.ids), placed.edges(), Kind.POSITIONS
        else:
            built = build_edges(_chunks(graph))
            agents, edges, kind = built.senders | built.hearers, built, Kind.GRAPH
        check_hosted(self._connection, name, agents)
        self._files.create(name, kind, edges)
        return Audience(self._connection, name)

    def _ids(self, layout: Layout) -> IdColumn:
        """Return the agents of positions: those given, else all hosted ones, without any the first numbers."""
        if layout.ids is not None:
            ids = column_of(cast("Iterable[Any]", layout.ids))
            if len(ids) != len(cast("Sequence[Any]", layout.ids)):
                raise InvalidColumns("ids must name each agent once")
            return ids
        hosted = self._connection.ask(self._connection.interceptor.agents.remote()).values()
        every = reduce(or_, hosted, NO_AGENTS)
        return every.column if every else IdColumn(np.arange(np.shape(cast("Any", layout.points))[0]))

    def find(self, name: str) -> Audience:
        """Return an audience; raise UnknownName."""
        self._connection.ask(self._connection.interceptor.audiences.remote()).of(name)
        return Audience(self._connection, name)

    def all(self) -> list[Audience]:
        """Return all audiences, by name."""
        names = self._connection.ask(self._connection.interceptor.audiences.remote()).names()
        return [Audience(self._connection, name) for name in names]

    def remove(self, name: str) -> None:
        """Remove an audience; raise UnknownName."""
        self._files.change(name, Ending())


def _chunks(graph: object) -> Iterable[object]:
    """Return the chunks of a graph: an array or list of pairs, a networkx graph, or any iterable of arrays."""
    graph = edge_pairs(graph)
    if isinstance(graph, np.ndarray):
        return [graph]
    if not isinstance(graph, Iterable) or isinstance(graph, str | bytes):
        raise InvalidColumns(f"graph={graph!r} is no graph: pass an array (m, 2) of sender and hearer, or chunks of it")
    if isinstance(graph, list | tuple) and not any(isinstance(part, np.ndarray) for part in graph):
        return [graph] if graph else []
    return graph
