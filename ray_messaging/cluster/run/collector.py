"""The values that a group records by `collect=` at the end of a step."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ray_messaging.common.awaitables import RAISED
from ray_messaging.errors import MessagingError
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.collect import aggregates_of, function_of
from ray_messaging.model.columns import IdColumn
from ray_messaging.model.read_only import ReadOnlyDict
from ray_messaging.model.series import encode_aggregates, encode_rows
from ray_messaging.model.series_columns import UnfitValue, Values, float_columns
from ray_messaging.model.typed.input import exact_array
from ray_messaging.steps.agent_places import AgentPlaces

if TYPE_CHECKING:
    from ray_messaging.cluster.run.agent import Agent
    from ray_messaging.cluster.run.crowd import Crowd

_ROWS = 1024
_DICTS: frozenset[type] = frozenset((dict, ReadOnlyDict))
Failed = Callable[["Agent", BaseException, str], MessagingError]


class Collector:
    """What `collect=` of a run measures in every n-th step: the values of a function, or aggregates such as `Mean`."""

    def __init__(self, collect: Any, every: int) -> None:  # noqa: ANN401 - as the user has written it
        self._every = every
        self._aggregates = aggregates_of(collect)
        self._function, self._among = function_of(collect)

    def is_due(self, step: int) -> bool:
        """Return whether values are collected at the end of a step."""
        return step % self._every == 0

    def of_agents(self, agents: Sequence["Agent"], places: AgentPlaces, failed: Failed) -> bytes:
        """Return the encoded values that `collect=` gives for the agents of a group, or b"" if there are none.

        Raises: the error that `failed` builds for the first value that cannot be collected.
        """
        if not agents:
            return b""
        if self._function is not None:
            ids, chosen = places.column.to_numpy(), agents
            if self._among is not None:
                here = _places_of(self._among, places.column)
                ids, chosen = ids[here], [agents[place] for place in here]
            with _named(chosen, failed):
                return encode_rows(ids, _columns(self._function, chosen, failed)) if chosen else b""
        found = {}
        for each in self._aggregates:
            chosen = agents if each.among is None else [agents[at] for at in _places_of(each.among, places.column)]
            values = _each(each.value_of, chosen, failed)
            living = np.array([not agent.stopped for agent in chosen], np.bool_) if each.living else None
            with _named(chosen, failed):
                found[each.name] = each.partial(values, living)
        return encode_aggregates(found)

    def of_group(self, crowd: "Crowd") -> bytes:
        """Return the encoded values that `collect=` gives for a group, or b"" if there are none.

        Raises: UnfitValue if a function does not return a dict, or if an array does not have one value for each agent.
        """
        if not len(crowd.ids):
            return b""
        column = IdColumn.of(crowd.ids.tolist()) if crowd.ids.dtype == object else IdColumn(crowd.ids)
        if self._function is None:
            partials = {}
            for each in self._aggregates:
                here = None if each.among is None else _places_of(each.among, column)
                values: Values = []
                if here is None:
                    values = _checked(each.name, each.value_of(crowd), crowd)
                elif len(here):
                    values = _checked(each.name, each.value_of(crowd), crowd)[here]
                partials[each.name] = each.partial(values)
            return encode_aggregates(partials)
        chosen = slice(None) if self._among is None else _places_of(self._among, column)
        if not len(ids := crowd.ids[chosen]):
            return b""
        found = self._function(crowd)
        if type(found) is not dict or not found:
            raise UnfitValue(f"collect returned {found!r:.100}: it must return a dict of arrays")
        return encode_rows(ids, {name: _checked(name, array, crowd)[chosen] for name, array in found.items()})


def _places_of(chosen: AgentSet, agents: IdColumn) -> NDArray[np.intp]:
    """Return the indexes of the chosen agents in `agents`, the ids of a group's agents."""
    return np.flatnonzero(chosen.find(agents))


@contextmanager
def _named(agents: Sequence["Agent"], failed: Failed) -> Iterator[None]:
    """Turn an UnfitValue that is raised in this context into the error that `failed` builds, which names the agent."""
    try:
        yield
    except UnfitValue as error:
        raise failed(agents[error.place or 0], error, "collect") from error


def _each(function: Callable[[Any], Any], agents: Sequence["Agent"], failed: Failed) -> list[Any]:
    found: list[Any] = []
    try:
        for agent in agents:
            found.append(function(agent))  # noqa: PERF401 - the length of `found` tells for which agent an exception was raised
    except RAISED as error:
        raise failed(agents[len(found)], error, "collect") from error
    return found


def _columns(function: Callable[[Any], Any], agents: Sequence["Agent"], failed: Failed) -> dict[str, Values]:
    """Call a function, which returns a dict, for each agent; return, for each key, the values of all agents.

    Raises: UnfitValue unless all dicts have the keys of the first one; the error that `failed` builds if the function
    raises an exception.
    """
    names: list[str] = []
    parts: list[Sequence[Values]] = []  # for each block of up to _ROWS agents, its columns
    for low in range(0, len(agents), _ROWS):  # the values of _ROWS rows stay in the processor's cache
        rows = _each(function, agents[low : low + _ROWS], failed)
        if not low and type(rows[0]) in _DICTS:
            names = [*rows[0]]
        fits = names and _DICTS.issuperset(map(type, rows)) and {*map(len, rows)} == {len(names)}
        if not fits:
            raise _odd_row(rows, names, low)
        try:
            floats = float_columns(rows, partial(dict.fromkeys, names))
            parts.append(floats or [[*map(itemgetter(name), rows)] for name in names])
        except KeyError:
            raise _odd_row(rows, names, low) from None
    return {name: _joined(columns) for name, *columns in zip(names, *parts, strict=True)}


def _joined(parts: Sequence[Values]) -> Values:
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)
    return [*chain.from_iterable(part.tolist() if isinstance(part, np.ndarray) else part for part in parts)]


def _odd_row(rows: Sequence[Any], names: Sequence[str], low: int) -> UnfitValue:
    """Build the error for the first of `rows` that is not a dict with the keys `names`.

    Args: `rows` are what the function has returned for some agents. `low` is the index of the first of these agents
    among all agents for which the function is called.
    """
    place = next(at for at, row in enumerate(rows) if type(row) not in _DICTS or not row or row.keys() != {*names})
    same = f". The keys of the first agent are {[*names]}" if low + place else ", at least one"
    return UnfitValue(
        f"collect returned {rows[place]!r:.100}: it must return a dict with the same keys for all agents{same}",
        low + place,
    )


def _checked(name: str, values: Any, crowd: "Crowd") -> NDArray[Any]:  # noqa: ANN401 - what a user returns
    try:
        found = exact_array(values, f"collect: {name}")
    except TypeError as error:
        raise UnfitValue(str(error)) from None
    if found.shape != crowd.ids.shape:
        raise UnfitValue(
            f"collect returned {name}={values!r:.100}: return an array with a value for each of the "
            f"{len(crowd.ids):,} agents of group.ids"
        )
    return found
