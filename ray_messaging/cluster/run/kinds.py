"""Several kinds of agents in one run: the agents of each kind, and the functions of each kind."""

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from functools import reduce
from operator import or_
from typing import Any, Final

import numpy as np

from ray_messaging.addressing.channels import AgentId, check_id
from ray_messaging.common.awaitables import is_async, without_partial
from ray_messaging.common.texts import short_repr
from ray_messaging.errors import ConfigError
from ray_messaging.model.agent_sets import AgentSet

KIND: Final = "kind"  # the column of a DataFrame of agents that has each agent's kind

Kinds = dict[str, AgentSet]


class ByKind:
    """One function that stands for several functions, one for each kind of agents.

    It takes an agent or a group as its first argument, and calls the function for that argument's `kind`. If this kind
    has no function, the result is {}.
    """

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        self.functions = functions

    def __call__(self, owner: Any, *others: Any) -> Any:  # noqa: ANN401 - as the functions
        """Call the function for the kind of `owner`, an agent or a group; return {} if the kind has no function."""
        function = self.functions.get(owner.kind)
        return {} if function is None else function(owner, *others)


class AsyncByKind(ByKind):
    """One async function that stands for several functions, async or plain, one for each kind of agents.

    It takes an agent or a group as its first argument, and calls the function for that argument's `kind`.
    """

    async def __call__(self, owner: Any, *others: Any) -> Any:  # noqa: ANN401 - as the functions
        """Call the function for the kind of `owner`, an agent or a group, and await the result if it is awaitable."""
        answer = super().__call__(owner, *others)
        return await answer if inspect.isawaitable(answer) else answer


def as_one(given: Any, arguments: int) -> Any:  # noqa: ANN401 - a function, a dict of functions by kind, or None
    """Return what the user has given, a function or a dict of functions by kind of agents, as one function.

    The returned function takes `arguments` positional arguments. If `given` is a dict, the returned function calls the
    dict's function for the kind of the first argument. A partial may be replaced by a function that does the same and
    is faster. Anything else, such as None, is returned unchanged.
    """
    if not isinstance(given, Mapping):
        return without_partial(given, arguments)
    functions = {kind: without_partial(function, arguments) for kind, function in given.items()}
    return (AsyncByKind if any(map(is_async, functions.values())) else ByKind)(functions)


def functions_in(name: str, given: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - as a user has written it
    """Yield (name for errors, function) for each function in the argument `given` of the user.

    `given` is one function, or a dict of functions by kind of agents. `name` is the argument's name, such as "model".
    """
    if isinstance(given, Mapping):
        yield from ((f"{name}[{kind!r}]", function) for kind, function in given.items())
    else:
        yield name, given


def check_kinds(model: object, start: object) -> None:
    """Raise ConfigError if the name of a kind of agents is not valid, or if `start` has a kind that `model` lacks."""
    if isinstance(model, Mapping):
        if not model:
            raise ConfigError("model={} has no kind of agents: write {'trader': trader, 'book': book}")
        for kind in model:
            if type(kind) is not str or not kind:
                raise ConfigError(
                    f"model= has the kind {kind!r}: name each kind by a str that is not empty, as in "
                    "{'trader': trader}"
                )
    if isinstance(start, Mapping):
        if not isinstance(model, Mapping):
            raise ConfigError(
                f"start={short_repr(start)} has a function for each kind, but model= is one function: pass one "
                "function as start=, or a model for each kind"
            )
        for kind in start:
            if kind not in model:
                raise ConfigError(
                    f"start= has the kind {kind!r}, for which model= has no function: model= has {_listed(model)}"
                )


def kinds_of(agents: Any, model: Mapping[str, Any]) -> Kinds:  # noqa: ANN401 - as a user has written it
    """Return the agents of each kind, in the order of the model's kinds.

    Args: `agents` maps each kind to its ids, or is a DataFrame with a column `kind`; `model` has a function by kind.
    Raises: ConfigError for a kind without a model or without agents, and for an agent with no kind or two kinds.
    """
    ids = _ids_by_kind(agents, model)
    for kind, given in ids.items():
        if kind not in model:
            first = next(map(check_id, given), None)
            agent = "" if first is None else f" (the kind of agent {first!r})"
            raise ConfigError(
                f"agents= has the kind {kind!r}{agent}, for which model= has no function: model= has {_listed(model)}"
            )
    found = {kind: AgentSet.of(ids.get(kind, ())) for kind in model}
    if len(reduce(or_, found.values())) < sum(map(len, ids.values())):
        raise _two_places(ids)
    for kind, agents_of in found.items():
        if not len(agents_of):
            raise ConfigError(
                f"model= has the kind {kind!r}, but agents= has no agent of this kind: leave the kind out"
            )
    return found


def _ids_by_kind(agents: Any, model: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - as a user has written it
    # The nodes of a networkx graph are a Mapping and also a Set. They are plain ids, not ids by kind.
    if isinstance(agents, Mapping) and not isinstance(agents, Set):
        return {kind: _ids_of(kind, given) for kind, given in agents.items()}
    if not hasattr(agents, "itertuples") or KIND not in agents.columns or not agents.columns.is_unique:
        raise ConfigError(
            f"model= has the kinds {_listed(model)}, but agents= does not say of which kind each agent is: write "
            f"agents={{{next(iter(model))!r}: ids, ...}}, or a DataFrame with a column {KIND!r}"
        )
    ids: dict[str, Any] = {}
    for agent, kind in zip(plain_ids(agents.index), agents[KIND].tolist(), strict=True):
        if type(kind) is not str or not kind:
            raise ConfigError(
                f"agent {check_id(agent)!r} has no kind: in the column {KIND!r} of agents= the agent has {kind!r}, "
                "but must have a str that is not empty"
            )
        ids.setdefault(kind, []).append(agent)
    return ids


def _two_places(ids: Mapping[str, Any]) -> ConfigError:
    """Build the error for the first agent that is listed under two kinds of agents, or twice under one kind."""
    owners: dict[AgentId, str] = {}
    for agent, kind in ((check_id(agent), kind) for kind, given in ids.items() for agent in given):
        other = owners.setdefault(agent, kind)
        if other != kind:
            return ConfigError(f"agent {agent!r} is of two kinds, {other!r} and {kind!r}: give each agent one kind")
    return comes_twice(agent for given in ids.values() for agent in given)


def comes_twice(ids: Iterable[object]) -> ConfigError:
    """Build the error for the first agent that is listed twice in `ids`."""
    twice = next(agent for agent, count in Counter(map(check_id, ids)).items() if count > 1)
    return ConfigError(
        f"agent {twice!r} comes twice in agents=: name each agent once (a DataFrame has the ids as its index)"
    )


def plain_ids(ids: Any) -> Any:  # noqa: ANN401 - ids of any kind
    """Return ids unchanged, except that a pandas object becomes an array, and an array of objects becomes a list."""
    values = getattr(ids, "to_numpy", lambda: ids)()
    return values.tolist() if isinstance(values, np.ndarray) and values.dtype == object else values


def among(agents: AgentSet, kinds: Kinds) -> Kinds:
    """Return, for each kind, those of `agents` that are of this kind. Kinds with none of `agents` are left out."""
    found = {kind: agents_of & agents for kind, agents_of in kinds.items()}
    return {kind: agents_of for kind, agents_of in found.items() if len(agents_of)}


def _ids_of(kind: object, given: Any) -> Any:  # noqa: ANN401 - as a user has written it
    if isinstance(given, int | np.integer) or given is None:
        count = 1000 if given is None else given
        raise ConfigError(f"agents[{kind!r}]={given!r} must be the ids of the kind's agents, such as range({count})")
    ids = plain_ids(given)
    return ids if hasattr(ids, "__len__") else [*ids]


def _listed(kinds: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, kinds))
