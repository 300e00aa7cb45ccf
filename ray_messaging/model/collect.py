"""The argument `collect=` of a run: the function or aggregates that measure agents, and the choice of agents."""

from collections.abc import Callable, Collection, Iterator, Sequence
from copy import copy
from typing import Any

import numpy as np

from ray_messaging.addressing.channels import AgentId
from ray_messaging.common.texts import short_repr
from ray_messaging.errors import ConfigError
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.aggregates import Aggregate, Quantile
from ray_messaging.model.series_columns import TAKEN


class Of:
    """A choice of the agents that a function or aggregates measure, for `collect=`.

    `Of([7, "book"], lambda me: {"price": me.state["price"]})` collects rows of two agents, and `Of(leaders,
    Mean("mood"))` a mean over some agents. A list for `collect=` may contain an `Of` with aggregates beside other
    aggregates.

    Args:
        agents: The ids of the agents. The run must have all of these agents.
        collect: A function, an aggregate or a list of aggregates, as for `Messaging.run`.

    Raises: ConfigError if `agents` is empty; InvalidAddress for an invalid id.
    """

    def __init__(self, agents: Collection[AgentId], collect: Any) -> None:  # noqa: ANN401 - functions or aggregates
        self.agents = AgentSet.of(agents)
        self.collect = collect
        if not len(self.agents):
            raise ConfigError("Of([], ...) names no agent: name one, or leave this Of out of collect=")

    def __repr__(self) -> str:
        return f"Of({[*self.agents]!r:.100}, {short_repr(self.collect)})"


def aggregates_of(collect: object) -> Sequence[Aggregate]:
    """Return the aggregates in an argument `collect`; an empty list if the argument is a function or None."""
    return [*_aggregates(collect)]


def _aggregates(collect: object) -> Iterator[Aggregate]:
    if isinstance(collect, Aggregate):
        yield collect
    elif isinstance(collect, Of):
        for each in _aggregates(collect.collect):
            chosen = copy(each)
            chosen.among = collect.agents
            yield chosen
    elif isinstance(collect, list | tuple):
        for part in collect:
            yield from _aggregates(part)


def function_of(collect: Any) -> tuple[Callable[[Any], Any] | None, AgentSet | None]:  # noqa: ANN401 - any argument
    """Return the function in an argument `collect` (None: there is none), and which agents it measures (None: all)."""
    if isinstance(collect, Of):
        return (collect.collect, collect.agents) if callable(collect.collect) else (None, None)
    return (collect, None) if callable(collect) else (None, None)


def chosen_agents(collect: Any) -> Sequence[AgentSet]:  # noqa: ANN401 - any argument
    """Return the agents that each `Of` in an argument `collect` chooses."""
    found = [function_of(collect)[1], *(each.among for each in aggregates_of(collect))]
    return [agents for agents in found if agents is not None]


def check_collect(collect: object, every: object) -> None:
    """Raise ConfigError unless the arguments `collect` and `collect_every` of a run are valid."""
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ConfigError(f"collect_every={every!r} must be a whole number of steps, at least 1")
    parts = collect if isinstance(collect, list | tuple) else [collect]
    listed: list[object] = []
    for part in parts:
        of = part.collect if isinstance(part, Of) else part
        if callable(of) and part is not collect:
            raise ConfigError(
                f"collect= has {short_repr(part)} in a list, a function that gives a row for each agent: pass a list "
                "of aggregates only, such as [Mean('mood')], or this one function without a list"
            )
        listed += of if isinstance(of, list | tuple) else [of]
    fits = callable(function_of(collect)[0]) or (listed and all(isinstance(each, Aggregate) for each in listed))
    if collect is not None and not fits:
        raise ConfigError(
            f"collect={collect!r} must be a function that returns a dict, such as lambda me: {{'mood': "
            "me.state['mood']}, or an aggregate, such as Mean('mood') or Count('health'), or a list of at least "
            "one aggregate. To collect from some agents only, put any of these into Of(agents, ...), but no other Of"
        )
    aggregates = aggregates_of(collect)
    for each in aggregates:
        if type(each.name) is not str or not each.name or "=" in each.name or each.name in TAKEN:
            taken = ", ".join(map(repr, TAKEN))
            raise ConfigError(f"the name of {each!r} must be a non-empty str without '=', and none of {taken}")
        if each.of is not None and not callable(each.of) and (type(each.of) is not str or not each.of):
            raise ConfigError(
                f"of={each.of!r} of {each!r} must be a function, such as lambda me: ..., or a key of the state"
            )
        if isinstance(each, Quantile) and not (_is_number(each.q) and 0 <= each.q <= 1):
            raise ConfigError(f"q={each.q!r} of {each!r} must be a number from 0 to 1: 0.5 is the median")
    if len({each.name for each in aggregates}) < len(aggregates):
        raise ConfigError(
            f"two aggregates of collect={collect!r} have the same name: give one of them another name, such as "
            "Mean('average', of='wealth')"
        )


def check_chosen(collect: object, agents: AgentSet) -> None:
    """Raise ConfigError if an argument `collect` chooses agents that the run does not have."""
    for chosen in chosen_agents(collect):
        if len(strangers := chosen - agents):
            named = ", ".join(map(repr, [*strangers][:5]))
            more = ", ..." if len(strangers) > 5 else ""
            raise ConfigError(
                f"collect=Of(...) names agents that this run does not have, {named}{more}: name agents of the run"
            )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
