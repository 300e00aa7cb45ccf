"""Plans: senders, groups and times of messages."""

import numpy as np
from support.traffic import plan_of, traffic_of

from ray_messaging.replay.replay_plan import Plan, assign_groups, due_times

ROWS = [(1, 2), (2, 1), ("ann", 1), (1, "ann"), (1, 2)]
GROUPS = {1: 0, 2: 1, "ann": 1}


def test_dealing_fills_groups_evenly_and_no_more_than_there_are_agents():
    assert assign_groups(range(5), 2).tolist() == [0, 1, 0, 1, 0]
    assert Plan(traffic_of([(1, 2)]), assign_groups([1, 2], 9)).groups == 2


def test_due_times_never_run_backwards():
    assert due_times(np.array([100.0, 104.0, 102.0, 110.0]), 2).tolist() == [0, 2, 2, 5]
    plan = plan_of([(1, 2, 10), (2, 1, 20), (1, 2, 30)], {1: 0, 2: 1}, speed=10)
    assert [share.due.tolist() for share in plan.shares()] == [[0, 2], [1]]
