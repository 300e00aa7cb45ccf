"""Functions that get the parameters of a run by name, as pytest's tests get fixtures."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from ray_messaging.errors import ConfigError
from ray_messaging.studies.design import REPLICATE, ROW, SEED, PlannedRun

GIVEN = (ROW, REPLICATE, SEED)  # a function may take these besides the parameters
_NAMED = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY


class Wanted(NamedTuple):
    """The names of a function's parameters. `needed` has the names of those without a default.

    `any_name` is True if the function takes **kwargs.
    """

    names: frozenset[str]
    needed: frozenset[str]
    any_name: bool


def wanted_by(function: Callable[..., Any], positional: int) -> Wanted:
    """Return the names of a function's parameters, without its first `positional` ones."""
    try:
        parameters = [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):  # Python does not know the parameters of some builtins
        return Wanted(frozenset(), frozenset(), any_name=False)
    any_name = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
    by_place = [each for each in parameters if each.kind in (_NAMED[0], inspect.Parameter.POSITIONAL_ONLY)]
    skipped = {each.name for each in by_place[:positional]}
    named = [each for each in parameters if each.kind in _NAMED and each.name not in skipped]
    needed = frozenset(each.name for each in named if each.default is inspect.Parameter.empty)
    return Wanted(frozenset(each.name for each in named), needed, any_name)


def values_of(run: PlannedRun) -> dict[str, Any]:
    """Return all values that the functions of a study may take by name in a run.

    These are the run's parameters, a dict of all its parameters, the number of its replicate, and its seed.
    """
    return {**run.row, ROW: dict(run.row), REPLICATE: run.replicate, SEED: run.seed}


def bound(function: Any, positional: int, values: Mapping[str, Any]) -> Any:  # noqa: ANN401 - functions of any kind
    """Return a function with `positional` arguments that calls `function`, and adds the other arguments by name.

    Args: `function` may be a dict of functions by kind of agents. Then the result is such a dict, too.
    """
    if isinstance(function, Mapping):
        return {kind: bound(each, positional, values) for kind, each in function.items()}
    wanted = wanted_by(function, positional)
    names = [name for name in values if name in wanted.names or (wanted.any_name and name not in GIVEN)]
    return partial(function, **{name: values[name] for name in names}) if names else function


def check_names(functions: Mapping[str, tuple[Callable[..., Any], int]], parameters: Iterable[str]) -> None:
    """Raise ConfigError if a parameter is taken by no function, or if a function takes an unknown name.

    A function with **kwargs or with the argument `row` takes all parameters.

    Args: `functions` has, for each argument of `batch_run` that is a function, the argument's name, the function, and
    the number of positional arguments that the function gets.
    """
    names = [*parameters]
    wanted = {what: wanted_by(function, positional) for what, (function, positional) in functions.items()}
    for what, each in wanted.items():
        if unknown := sorted(each.needed - {*names, *GIVEN}):
            raise ConfigError(
                f"the function {what}= takes {unknown[0]!r}, which is not a parameter of the study: add it to "
                f"parameters=, or take {' or '.join(map(repr, [*names, *GIVEN]))} instead"
            )
    if any(each.any_name or ROW in each.names for each in wanted.values()):
        return
    taken = {name for each in wanted.values() for name in each.names}
    for name in names:
        if name not in taken:
            raise ConfigError(
                f"no function takes the parameter {name!r}: name it as an argument of the model, such as def "
                f"person(me, inbox, *, {name}), or of start=, agents=, graph=, rules=, shared=, until=, groups= or "
                "outcomes="
            )
