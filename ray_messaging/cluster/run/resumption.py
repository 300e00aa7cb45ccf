"""Check that a run which goes on has the groups and agents that it began with."""

from collections.abc import Mapping, Sequence

from ray_messaging.cluster.run.plan import GroupPlan
from ray_messaging.errors import ConfigError
from ray_messaging.model.agent_sets import AgentSet

_REMEDY = "resume with the same, or begin anew by on_existing='reset'"


def check_same(plans: Sequence[GroupPlan], before: Mapping[str, AgentSet], *, begun: bool) -> None:
    """Raise ConfigError, which names the difference, unless a run has the groups and agents of `before`.

    Args: `before` are the groups that have steps; unless these have `begun`, more groups may come.
    """
    now = {plan.name: plan.agents for plan in plans}
    if (begun and before.keys() != now.keys()) or before.keys() - now.keys():
        raise ConfigError(
            f"groups differ: this experiment's steps began with {_names(before)}, and this run has {_names(now)}; each "
            f"step would wait for the others: {_REMEDY}"
        )
    moved = {name: (agents - now[name], now[name] - agents) for name, agents in before.items()}
    gone = sum(len(left) for left, _ in moved.values())
    new = sum(len(come) for _, come in moved.values())
    if gone or new:
        name, (left, come) = next((name, both) for name, both in moved.items() if len(both[0]) or len(both[1]))
        first, how = (next(iter(left)), "not any more") if len(left) else (next(iter(come)), "not before")
        raise ConfigError(
            f"agents differ: {gone:,} agents are not any more in the group that they began in, and {new:,} were not in "
            f"theirs. The first is agent {first!r}, {how} in group {name!r}: {_REMEDY}"
        )


def _names(groups: Mapping[str, object]) -> str:
    names = sorted(groups)
    return f"{len(names)} groups ({', '.join(names[:8])}{', ...' if len(names) > 8 else ''})"
