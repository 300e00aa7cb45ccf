"""Plans of moves: which agents move from which group to which."""

from hypothesis import given
from hypothesis import strategies as st

from ray_messaging.cluster.moves import plan_balance
from ray_messaging.model.agent_sets import AgentSet


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
