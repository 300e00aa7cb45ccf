"""The agents of an experiment by their groups."""

import numpy as np

from ray_messaging.cluster.handles.hosted_agents import HostedAgents
from ray_messaging.model.agent_sets import AgentSet


class NotWalked(HostedAgents):
    def __iter__(self):
        raise AssertionError("an object for each agent")


def test_a_data_frame_of_ints_needs_no_object_for_each_agent():
    frame = NotWalked({"east": AgentSet(np.array([1, 2])), "west": AgentSet(np.array([3]))}).to_pandas()
    assert frame.to_dict("list") == {"agent": [1, 2, 3], "group": ["east", "east", "west"]}
