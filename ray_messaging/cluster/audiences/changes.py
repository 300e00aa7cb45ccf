"""The changes of an audience."""

from typing import NamedTuple

from ray_messaging.audiences.edges import Edges
from ray_messaging.audiences.graph_edges import GraphEdges
from ray_messaging.audiences.member_edges import MemberEdges
from ray_messaging.errors import ConfigError
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.columns import IdColumn


class Joining(NamedTuple):
    """Agents become members."""

    name: str
    agents: AgentSet

    def applied(self, edges: Edges) -> Edges:
        """Return the pairs with more members; raise ConfigError where there are none."""
        return MemberEdges.among(_members(self.name, edges) | self.agents)


class Leaving(NamedTuple):
    """Agents are members no more."""

    name: str
    agents: AgentSet

    def applied(self, edges: Edges) -> Edges:
        """Return the pairs with fewer members; raise ConfigError where there are none."""
        return MemberEdges.among(_members(self.name, edges) - self.agents)


class Moving(NamedTuple):
    """Agents have other positions."""

    name: str
    ids: IdColumn
    points: object

    def applied(self, edges: Edges) -> Edges:
        """Return the pairs of the new positions; raise ConfigError where the audience has none, AudienceTooLarge."""
        if not isinstance(edges, GraphEdges) or edges.positions is None:
            raise ConfigError(f"audience {self.name!r} has no positions: create_audience(..., positions=, radius=)")
        return edges.positions.moved(self.ids, self.points).edges()


class Ending(NamedTuple):
    """The audience goes."""

    def applied(self, edges: Edges) -> None:
        """Return None."""


def _members(name: str, edges: Edges) -> AgentSet:
    if not isinstance(edges, MemberEdges):
        raise ConfigError(
            f"audience {name!r} has no members that come and go: create_audience({name!r}, members=ids) makes one; "
            "a graph is replaced by remove_audience and create_audience"
        )
    return edges.members
