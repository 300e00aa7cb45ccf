"""Plans of moves: which agents move from which group to which."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_messaging.cluster.moves import plan_balance, plan_move
from ray_messaging.errors import AlreadyExists, UnknownName
from ray_messaging.model.agent_sets import AgentSet

HOSTED = {"east": AgentSet.of([1, 2, "ann"]), "west": AgentSet.of([3, 4]), "north": AgentSet.of([])}


def test_a_move_takes_agents_from_all_their_groups():
    moves = plan_move(AgentSet.of([1, 3, "ann"]), "north", HOSTED)
    assert [([*move.agents], move.source, move.target) for move in moves] == [
        ([1, "ann"], "east", "north"),
        ([3], "west", "north"),
    ]


@pytest.mark.parametrize(
    ("agents", "target", "error", "kind"),
    [([1], "south", UnknownName, "group"), ([9], "west", UnknownName, "agent"), ([3], "west", AlreadyExists, "agent")],
)
def test_a_move_that_cannot_be(agents, target, error, kind):
    with pytest.raises(error) as caught:
        plan_move(AgentSet.of(agents), target, HOSTED)
    assert caught.value.kind == kind


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 1000)), min_size=1, max_size=6))
def test_a_balance_moves_each_agent_once_and_makes_no_group_worse(sizes):
    hosted, loads, first = {}, {}, 0
    for number, (size, load) in enumerate(sizes):
        hosted[f"g{number}"] = AgentSet.of(range(first, first + size))
        loads[f"g{number}"] = float(load if size else 0)
        first += size
    after = dict(loads) if any(loads.values()) else {name: float(len(agents)) for name, agents in hosted.items()}
    each = {name: after[name] / max(1, len(agents)) for name, agents in hosted.items()}
    mean = sum(after.values()) / len(after)
    seen = set()
    for move in plan_balance(hosted, loads):
        agents = set(move.agents)
        assert agents
        assert agents <= set(hosted[move.source])
        assert not agents & seen
        seen |= agents
        after[move.source] -= len(agents) * each[move.source]
        after[move.target] += len(agents) * each[move.source]
        assert after[move.source] >= mean - 1e-6
        assert after[move.target] <= mean + 1e-6
