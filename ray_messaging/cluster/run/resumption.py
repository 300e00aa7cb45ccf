"""Check that a run which goes on has the groups and agents that it began with."""

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from operator import or_

from ray_messaging.cluster.run.plan import GroupPlan
from ray_messaging.errors import ConfigError
from ray_messaging.model.agent_sets import NO_AGENTS, AgentSet

_REMEDY = "resume with the same, or begin anew by on_existing='reset'"


def check_same(
    plans: Sequence[GroupPlan], before: Mapping[str, AgentSet], *, begun: bool, moved: Collection[str] = ()
) -> None:
    """Raise ConfigError, which names the difference, unless a run has the groups and agents of `before`.

    Args: `before` are the groups that have steps; unless these have `begun`, more groups may come. Between `moved` ones
    agents have moved: they stay where they are.
    """
    now = {plan.name: plan.agents for plan in plans}
    if (begun and before.keys() != now.keys()) or before.keys() - now.keys():
        raise ConfigError(
            f"groups differ: this experiment's steps began with {_names(before)}, and this run has {_names(now)}; each "
            f"step would wait for the others: {_REMEDY}"
        )
    there, asked = (reduce(or_, (all_of.get(name, NO_AGENTS) for name in moved), NO_AGENTS) for all_of in (before, now))
    differ = {name: (agents - now[name], now[name] - agents) for name, agents in before.items()}
    differ = {
        name: (left - asked, come - there) if name in moved else (left, come) for name, (left, come) in differ.items()
    }
    gone = sum(len(left) for left, _ in differ.values())
    new = sum(len(come) for _, come in differ.values())
    if gone or new:
        name, (left, come) = next((name, both) for name, both in differ.items() if len(both[0]) or len(both[1]))
        first, how = (next(iter(left)), "not any more") if len(left) else (next(iter(come)), "not before")
        raise ConfigError(
            f"agents differ: {gone:,} agents are not any more in the group that they began in, and {new:,} were not in "
            f"theirs. The first is agent {first!r}, {how} in group {name!r}: {_REMEDY}"
        )


def _names(groups: Mapping[str, object]) -> str:
    names = sorted(groups)
    return f"{len(names)} groups ({', '.join(names[:8])}{', ...' if len(names) > 8 else ''})"
