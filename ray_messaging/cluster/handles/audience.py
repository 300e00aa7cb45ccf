"""The handle of an audience, and the calls that create, find and remove audiences."""

from collections.abc import Iterable, Iterator
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import check_name
from ray_messaging.audiences.audience_kinds import AudienceKind, AudienceVersion
from ray_messaging.audiences.building import Positions, build_edges
from ray_messaging.audiences.edges import Edges
from ray_messaging.audiences.member_edges import MemberEdges
from ray_messaging.cluster.audience_files import AudienceFiles, join, leave, move, positions_of
from ray_messaging.cluster.handles.connection import ExperimentConnection
from ray_messaging.cluster.handles.own_loop import run_in_own_loop
from ray_messaging.errors import ConfigError, InvalidColumns, UnknownName
from ray_messaging.model.agent_sets import NO_AGENTS, AgentSet, column_of
from ray_messaging.model.columns import IdColumn
from ray_messaging.model.edge_pairs import edge_pairs

if TYPE_CHECKING:
    from ray_messaging.addressing.channels import AgentId

_SENDERS = 1024  # the number of senders whose pairs are read at a time


class Audience:
    """A named set of pairs of sender and hearer. A broadcast to an audience reaches the hearers of its sender.

    An audience can be passed to Ray tasks and actors. A call that changes an audience makes a new version of it, and
    returns once no broadcast can use the previous version any more. In an experiment with steps a change applies from
    the next step that opens.
    """

    def __init__(self, connection: ExperimentConnection, name: str) -> None:
        self._connection = connection
        self._files = AudienceFiles(connection.experiment, connection.interceptor)
        self.name = name

    def __repr__(self) -> str:
        return f"Audience({self.name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        connection = ExperimentConnection(self._connection.experiment.without_password(), self._connection.interceptor)
        return Audience, (connection, self.name)

    def __eq__(self, other: object) -> bool:
        mine = (self.name, self._connection.exp_id)
        return isinstance(other, Audience) and mine == (other.name, other._connection.exp_id)

    def __hash__(self) -> int:
        return hash((self.name, self._connection.exp_id))

    def _newest(self) -> AudienceVersion:
        found: AudienceVersion = self._connection.ask(self._connection.interceptor.audiences.remote()).of(self.name)
        return found

    def _edges(self) -> Edges:
        version = self._newest().version
        return run_in_own_loop(lambda: self._files.load(self.name, version))

    @property
    def version(self) -> int:
        """Return the version: 1 at first, higher after each change; raise UnknownName if the audience was removed."""
        return self._newest().version

    @property
    def kind(self) -> str:
        """Return from what the audience was made: "graph", "members" or "positions".

        Raises: UnknownName if the audience was removed.
        """
        return str(self._newest().facts.kind)

    @property
    def pairs(self) -> int:
        """Return the number of pairs.

        In an audience of members, each pair of members counts twice, once in each direction.

        Raises: UnknownName if the audience was removed.
        """
        return self._newest().facts.pairs

    def members(self) -> NDArray[Any]:
        """Return the ids of the members, ints before strs.

        If the audience was made of a graph or of positions, return the ids of all agents that hear somebody.

        Raises: UnknownName if the audience was removed.
        """
        edges = self._edges()
        if isinstance(edges, MemberEdges):
            return edges.members.column.to_numpy()
        return edges.hearers.ints

    def edges(self) -> Iterator[NDArray[Any]]:
        """Yield the pairs in ascending order, as arrays (m, 2) of sender and hearer.

        Raises: UnknownName if the audience was removed.
        """
        edges = self._edges()
        senders = (edges.members if isinstance(edges, MemberEdges) else edges.senders).column
        for low in range(0, len(senders), _SENDERS):
            some = senders.take(slice(low, low + _SENDERS))
            rows, hearers = edges.expand(some)
            yield np.stack((some.take(rows).to_numpy(), hearers.to_numpy()), axis=1)

    def __array__(self, dtype: Any = None, copy: object = None) -> NDArray[Any]:  # noqa: ANN401 - as numpy calls it
        """Return all pairs, so that an audience can be passed as a graph."""
        return np.asarray(np.concatenate([np.zeros((0, 2), np.int64), *self.edges()]), dtype)

    def add(self, ids: "Iterable[AgentId]") -> None:
        """Add members; agents that are members already are ignored.

        Raises: InvalidAddress for an invalid id; UnknownName for an agent that no group hosts, or if the audience was
        removed; ConfigError unless the audience was made by `create_audience(members=...)`.
        """
        agents = AgentSet.of(ids)
        check_hosted(self._connection, self.name, agents)
        self._files.change(self.name, partial(join, self.name, agents))

    def remove(self, ids: "Iterable[AgentId]") -> None:
        """Remove members; agents that are not members are ignored.

        Raises: InvalidAddress for an invalid id; UnknownName if the audience was removed; ConfigError unless the
        audience was made by `create_audience(members=...)`.
        """
        self._files.change(self.name, partial(leave, self.name, AgentSet.of(ids)))

    def move(self, ids: "Iterable[AgentId]", positions: object) -> None:
        """Set new positions of some agents, and compute anew which pairs of agents are near enough to hear each other.

        Args: `positions` is an array (n, 2) or (n, 3), with a row for each of the n ids.
        Raises: InvalidColumns if the arguments do not fit together; UnknownName for an agent without a position;
        AudienceTooLarge if the new positions make too many pairs; ConfigError if the audience was not made of
        positions.
        """
        self._files.change(self.name, partial(move, self.name, IdColumn.checked(ids), positions))

    def positions(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the ids of the agents that have positions, (n,), ascending, and their positions, (n, 2) or (n, 3).

        Raises: UnknownName if the audience was removed; ConfigError if it has no positions.
        """
        positions = positions_of(self.name, self._edges())
        return positions.ids, positions.points


def check_hosted(connection: ExperimentConnection, name: str, agents: AgentSet) -> None:
    """Raise UnknownName for the first agent that no group hosts; do nothing if there are no groups."""
    hosted = _hosted(connection)
    missing = agents - hosted if len(hosted) else hosted
    if len(missing):
        first = next(iter(missing))
        others = f". In all, {len(missing):,} agents of the audience have no group" if len(missing) > 1 else ""
        raise UnknownName(
            f"audience {name!r} cannot have agent {first!r}, because no group hosts that agent: create its group "
            f"first{others}",
            kind="agent",
            value=first,
        )


def _hosted(connection: ExperimentConnection) -> AgentSet:
    """Return all agents that groups host."""
    return reduce(or_, connection.ask(connection.interceptor.agents.remote()).values(), NO_AGENTS)


def create_audience(
    connection: ExperimentConnection,
    files: AudienceFiles,
    name: str,
    graph: object,
    members: object,
    positions: object,
    radius: object,
    ids: object,
    most_pairs: int,
) -> Audience:
    """Create an audience; arguments and errors are as for `Messaging.create_audience`."""
    check_name("audience", name)
    if sum(given is not None for given in (graph, members, positions)) != 1:
        raise ConfigError(f"audience {name!r} needs exactly one of graph=, members=, and positions= with radius=")
    if members is not None:
        agents = AgentSet.of(cast("Iterable[Any]", members))
        edges: Edges = MemberEdges.among(agents)
        kind = AudienceKind.MEMBERS
    elif positions is not None:
        placed = Positions.given(_ids(connection, ids, positions), positions, radius, most_pairs)
        agents, edges, kind = AgentSet(placed.ids), placed.edges(), AudienceKind.POSITIONS
    else:
        built = build_edges(_chunks(graph))
        agents, edges, kind = built.senders | built.hearers, built, AudienceKind.GRAPH
    check_hosted(connection, name, agents)
    files.create(name, kind, edges)
    return Audience(connection, name)


def _ids(connection: ExperimentConnection, given: Any, points: Any) -> IdColumn:  # noqa: ANN401 - as a user passes them
    """Return the agents to which the positions `points` belong.

    These are the `given` agents. If `given` is None, they are all agents that groups host. If no group hosts agents,
    they are 0, 1, 2...
    """
    if given is not None:
        ids = column_of(given)
        if len(ids) != len(given):
            raise InvalidColumns("ids= names an agent more than once: name each agent once")
        return ids
    every = _hosted(connection)
    return every.column if every else IdColumn(np.arange(np.shape(points)[0]))


def _chunks(graph: object) -> Iterable[object]:
    """Return a graph as an iterable of arrays.

    The graph may be an array or list of pairs, a networkx graph, or an iterable of arrays.
    """
    graph = edge_pairs(graph)
    if isinstance(graph, np.ndarray):
        return [graph]
    if not isinstance(graph, Iterable) or isinstance(graph, str | bytes):
        raise InvalidColumns(
            f"graph={graph!r} is not a graph: pass an array of shape (m, 2), a sender and a hearer in each row, or an "
            "iterable of such arrays"
        )
    if isinstance(graph, list | tuple) and not any(isinstance(part, np.ndarray) for part in graph):
        return [graph] if graph else []
    return graph
