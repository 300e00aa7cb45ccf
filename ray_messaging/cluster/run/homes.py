"""The data and neighbours of a run's agents, also of those that have moved to another group."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ray_messaging.addressing.channels import AgentId
from ray_messaging.cluster.run.plan import GroupPlan
from ray_messaging.model.agent_sets import AgentSet


class AgentRows(NamedTuple):
    """A row of data, and the neighbours, of each of some agents; empty where the run has none."""

    data: Sequence[Mapping[str, Any]]
    neighbours: Sequence[Sequence[AgentId]]


class Homes:
    """The groups in which the agents of a run began.

    Args: `plan` is that of one group, `others` those of all groups, as Ray references by name.
    """

    def __init__(self, plan: GroupPlan, others: Mapping[str, Any]) -> None:
        self._plan = plan
        self._others = others
        self._found: dict[AgentId, tuple[Mapping[str, Any], Sequence[AgentId]]] = {}
        self._seen: AgentSet = plan.agents  # the last agents that were prepared: most often those of every step

    async def prepare(self, agents: AgentSet) -> None:
        """Load the other groups where `rows` needs them for some agents."""
        if agents is self._seen:
            return
        if not self._found and (self._plan.data or self._plan.neighbours) and len(agents - self._plan.agents):
            for reference in self._others.values():
                plan: GroupPlan = await reference
                for place, agent in enumerate(plan.agents):
                    data = plan.data[place] if plan.data else {}
                    self._found[agent] = data, plan.neighbours[place] if plan.neighbours else ()
        self._seen = agents

    def rows(self, agents: Sequence[AgentId]) -> AgentRows:
        """Return the rows of some agents; those of the group itself as they are."""
        plan = self._plan
        if not self._found:
            return AgentRows(plan.data, plan.neighbours) if AgentSet.of(agents) == plan.agents else self._some(agents)
        found = [self._found.get(agent, ({}, ())) for agent in agents]
        return AgentRows([data for data, _ in found], [neighbours for _, neighbours in found])

    def _some(self, agents: Sequence[AgentId]) -> AgentRows:
        """Return the rows of some of the group's own agents."""
        plan = self._plan
        if not plan.data and not plan.neighbours:
            return AgentRows([], [])
        wanted = frozenset(agents)
        places = [place for place, agent in enumerate(plan.agents) if agent in wanted]
        data, neighbours = plan.data, plan.neighbours
        return AgentRows(
            [data[place] for place in places] if data else [],
            [neighbours[place] for place in places] if neighbours else [],
        )
