"""The agents of an experiment, with their groups."""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np

from ray_messaging.addressing.channels import AgentId
from ray_messaging.common.notebook import SHOWN, html_table
from ray_messaging.common.tables import data_frame
from ray_messaging.model.agent_sets import AgentSet


class HostedAgents(Mapping[AgentId, str]):
    """The agents of an experiment at one moment: a mapping from each agent to its group.

    `by_group` has the set of agents of each group, by the group's name.
    """

    def __init__(self, by_group: Mapping[str, AgentSet]) -> None:
        self.by_group = by_group

    def __getitem__(self, agent_id: AgentId) -> str:
        for name, agents in self.by_group.items():
            if agent_id in agents:
                return name
        raise KeyError(agent_id)

    def __iter__(self) -> Iterator[AgentId]:
        return chain.from_iterable(self.by_group.values())

    def __len__(self) -> int:
        return sum(map(len, self.by_group.values()))

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas.DataFrame, where pandas is installed
        """Return a pandas.DataFrame with the columns agent and group."""
        sets = self.by_group.values()
        if any(each.strings for each in sets):
            agents: Any = [*self]
        else:
            agents = np.concatenate([np.empty(0, np.int64), *(each.ints for each in sets)])
        return data_frame({"agent": agents, "group": np.repeat(np.array([*self.by_group], object), [*map(len, sets)])})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} agents in {len(self.by_group):,} groups)"

    def _repr_html_(self) -> str:
        first = [*self.by_group][:SHOWN]
        columns: dict[str, list[Any]] = {"group": first, "agents": [len(self.by_group[name]) for name in first]}
        return html_table(repr(self), columns, len(self.by_group))
