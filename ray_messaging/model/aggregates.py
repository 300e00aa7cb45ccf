"""Aggregates over the agents of a run, such as a mean, for `collect=`.

Each group computes a partial result from its own agents, and the partial results of all groups are merged. Sums are
exact, and each result is rounded at most once. So the result does not depend on the number of groups, or on the order
of agents.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from math import inf, isfinite, nan
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ray_messaging.common.tables import MOST_EXACT
from ray_messaging.errors import ConfigError
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.series_columns import UnfitValue, Value, Values, column_of

_UNIT = 1074  # Every float is a whole multiple of 2**-1074, so sums in this unit are exact.
_MANTISSA = np.finfo(np.float64).nmant + 1
_HALF = 26  # Mantissas are added in halves of this many bits, so that the sum of 2**36 halves fits int64.


class Aggregate:
    """Base of aggregates for `collect=`. In each step, an aggregate computes one or several numbers from all agents.

    `living` leaves out the agents that have called `me.stop()`.
    """

    kind: ClassVar[str]

    def __init__(self, name: str, of: Callable[[Any], Any] | str | None = None, *, living: bool = False) -> None:
        self.name = name
        self.of = of
        self.living = living
        self.among: AgentSet | None = None  # the agents to which an `Of` restricts this aggregate; None: all agents

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def value_of(self, owner: Any) -> Any:  # noqa: ANN401 - an agent or a group, and what a user's function returns
        """Return the value of the agent `owner`, or if `owner` is a group, the array of its agents' values."""
        return self.of(owner) if callable(self.of) else owner.state[self.name if self.of is None else self.of]

    def partial(self, values: Values, counted: NDArray[np.bool_] | None = None) -> tuple[str, Any]:
        """Return the kind of the aggregate, and the partial result of one group's agents, for `merged`.

        The partial result of no values is empty, and does not change the merged result.

        Args: `values` has the value of each agent, and `counted` says which of them are included (None: all).

        Raises: UnfitValue if a value does not fit.
        """
        column = self._numbers(values)
        return self.kind, self._partial(column if counted is None else column[counted])

    def _numbers(self, values: Values) -> NDArray[Any]:
        if not len(values):
            # The empty array has the type int64, because a float array would turn the other groups' ints into floats.
            return np.empty(0, np.int64)
        _, column = column_of(self.name, values)
        if isinstance(column, np.ndarray):
            return column.astype(np.int64) if column.dtype.kind == "b" else column
        raise UnfitValue(
            f"{self!r} needs numbers, but the agents' values are strs: Count({self.name!r}) counts strs", 0
        )

    def _partial(self, column: NDArray[Any]) -> Any:  # noqa: ANN401 - what msgpack can hold
        raise NotImplementedError

    @staticmethod
    def merged(name: str, partials: Iterable[Any]) -> dict[str, Value]:
        """Return the columns of the whole run, by name, from the partial results of its groups."""
        raise NotImplementedError


class Sum(Aggregate):
    """The sum of a number in the states of all agents, for `collect=` of `run`.

    The sum is exact, except for one rounding at the end. The sum of whole numbers is a whole number, as long as it is
    at most 2**53.

    Args: as for `Mean`: `name` is the number's key in the states, and `living` leaves out agents that have stopped.
    """

    kind = "sum"

    def _partial(self, column: NDArray[Any]) -> Any:  # noqa: ANN401
        return _sum_of(column)

    @staticmethod
    def merged(name: str, partials: Iterable[Any]) -> dict[str, Value]:
        """Return {name: the sum over all groups}; the sum is 0 if there are no agents."""
        _, whole, total, special = _added(partials)
        if whole and abs(total >> _UNIT) <= MOST_EXACT:
            return {name: total >> _UNIT}
        return {name: _quotient(total, 1) + special}


class Mean(Aggregate):
    """The mean of a number in the states of all agents, for `collect=` of `run`. There is one value per step.

    The mean is exact, except for one rounding at the end, so it does not depend on how the agents are grouped. Agents
    that have called `me.stop()` are included, unless `living` is True.

    Args: `name` is the key in the state, and the name of the column in the result. With `of`, `name` is only the name
    of the column. `of` is a key of the state, or a function. With a function, an agent's number is `of(me)`. In a run
    with by="group", `of(group)` is an array of all agents' numbers. `living` leaves out the agents that have called
    `me.stop()`.
    """

    kind = "mean"

    def _partial(self, column: NDArray[Any]) -> Any:  # noqa: ANN401
        return _sum_of(column)

    @staticmethod
    def merged(name: str, partials: Iterable[Any]) -> dict[str, Value]:
        """Return {name: the mean over all groups}; the mean is NaN if there are no agents."""
        count, _, total, special = _added(partials)
        return {name: _quotient(total, count) + special if count else nan}


class Min(Aggregate):
    """The smallest value of a number in the states of all agents, for `collect=` of `run`.

    The result is NaN if some value is NaN, or if there are no agents.

    Args: as for `Mean`: `name` is the number's key in the states, and `living` leaves out agents that have stopped.
    """

    kind = "min"

    def _partial(self, column: NDArray[Any]) -> Any:  # noqa: ANN401
        # Adding 0 turns -0.0 into 0.0, so that the result does not depend on which of the two came first.
        return (column.min() + 0).item() if len(column) else None

    @staticmethod
    def merged(name: str, partials: Iterable[Any]) -> dict[str, Value]:
        """Return {name: the smallest of all groups' numbers}; NaN if some number is NaN, or if there are no agents."""
        return {name: _extreme(min, partials)}


class Max(Aggregate):
    """The largest value of a number in the states of all agents, for `collect=` of `run`.

    The result is NaN if some value is NaN, or if there are no agents.

    Args: as for `Mean`: `name` is the number's key in the states, and `living` leaves out agents that have stopped.
    """

    kind = "max"

    def _partial(self, column: NDArray[Any]) -> Any:  # noqa: ANN401
        return (column.max() + 0).item() if len(column) else None

    @staticmethod
    def merged(name: str, partials: Iterable[Any]) -> dict[str, Value]:
        """Return {name: the greatest number of all groups}; NaN if some number is NaN, or if there are no agents."""
        return {name: _extreme(max, partials)}


class Quantile(Aggregate):
    """A quantile, by linear interpolation, of a number in the states of all agents, for `collect=` of `run`.

    The result is that of `numpy.quantile`, rounded once at the end. It is NaN if some number is NaN, or if there are no
    agents. `q` is between 0 and 1: 0.5 gives the median. The other arguments are as for `Mean`. To collect several
    quantiles of one key, write `Quantile("p10", 0.1, of="wealth")` and so on.
    """

    kind = "quantile"

    def __init__(
        self, name: str, q: float, of: Callable[[Any], Any] | str | None = None, *, living: bool = False
    ) -> None:
        super().__init__(name, of, living=living)
        self.q = q

    def __repr__(self) -> str:
        return f"Quantile({self.name!r}, {self.q!r})"

    def _partial(self, column: NDArray[Any]) -> Any:  # noqa: ANN401
        return float(self.q), _listed(column)

    @staticmethod
    def merged(name: str, partials: Iterable[Any]) -> dict[str, Value]:
        """Return {name: the quantile of the numbers of all groups}."""
        (q, *_), listed = zip(*partials, strict=True)
        numbers = _sorted(listed)
        # numpy sorts NaN to the end, so the last number shows whether there is one.
        if not len(numbers) or np.isnan(numbers[-1]):
            return {name: nan}
        place = q * (len(numbers) - 1)
        low, part = int(place), place % 1
        first = numbers[low].item()
        if not part:
            return {name: first}
        second = numbers[low + 1].item()
        if first == second or not (isfinite(first) and isfinite(second)):
            return {name: first if first == second else first + second}  # the sum of -inf and inf is NaN
        return {name: float(Fraction(first) + (Fraction(second) - Fraction(first)) * Fraction(part))}


class Gini(Aggregate):
    """The Gini coefficient of a number in the states of all agents, for `collect=` of `run`.

    The Gini coefficient is 0 if all agents have the same number, and near 1 if one agent has nearly the whole sum.

    The coefficient is the mean absolute difference over all pairs of agents, divided by twice the mean, with one
    rounding at the end. The coefficient is NaN if some number is NaN or infinite, or if there are no agents, and 0 if
    all numbers are 0. For each step, the numbers of all agents are stored until the event log has the coefficient.

    Args: as for `Mean`: `name` is the number's key in the states, and `living` leaves out agents that have stopped. The
    numbers must not be negative.
    """

    kind = "gini"

    def _numbers(self, values: Values) -> NDArray[Any]:
        column = super()._numbers(values)
        if len(negative := np.flatnonzero(column < 0)):
            place = int(negative[0])
            raise UnfitValue(f"{self!r} needs numbers of at least 0, but an agent has {column[place].item()!r}", place)
        return column

    def _partial(self, column: NDArray[Any]) -> Any:  # noqa: ANN401
        return _listed(column)

    @staticmethod
    def merged(name: str, partials: Iterable[Any]) -> dict[str, Value]:
        """Return {name: the Gini coefficient of the numbers of all groups}."""
        numbers = _sorted([*partials])
        count = len(numbers)
        if not count or not isfinite(numbers[-1]):
            return {name: nan}
        total = _exact_sum(numbers)
        weights = np.arange(1 - count, count, 2)
        return {name: float(Fraction(_exact_sum(numbers, weights), count * total)) if total else 0.0}


class Count(Aggregate):
    """The number of agents with each value of a key in their states, for `collect=` of `run`.

    The result has a column `name=value` for each value. The values are texts, bools or whole numbers.

    Args: as for `Mean`: `name` is the key in the states, and `living` leaves out agents that have stopped.
    """

    kind = "count"

    def partial(self, values: Values, counted: NDArray[np.bool_] | None = None) -> tuple[str, Any]:
        """Return what one group contributes: the aggregate's kind, and for each value a pair (value, number of agents).

        Args: `values` has the value of each agent, and `counted` says which of them are included (None: all).

        Raises: UnfitValue if the values are floats.
        """
        kind, column = column_of(self.name, values) if len(values) else ("", [])
        if isinstance(column, np.ndarray) and column.dtype.kind == "f":
            raise UnfitValue(
                f"{self!r} needs strs, bools or whole numbers, but the agents' values are floats: round them", 0
            )
        listed = column if isinstance(column, list) else column.tolist()
        if counted is not None:
            listed = [value for value, counts in zip(listed, counted.tolist(), strict=True) if counts]
        # The server refuses groups that report different kinds. With `Of`, which restricts the aggregate to some
        # agents, a group without these agents does not know the type of the values. So with `Of` the kind does not name
        # the type.
        return self.kind if self.among is not None else f"{self.kind} of {kind}", [*Counter(listed).items()]

    @staticmethod
    def merged(name: str, partials: Iterable[Any]) -> dict[str, Value]:
        """Return how many agents of all groups have each value, in ascending order of the values.

        The keys of the result are texts of the form `name=value`.
        """
        return {f"{name}={value}": count for value, count in _counted("Count", name, partials)}


class Share(Count):
    """The share of agents with each value of a key in their states, for `collect=` of `run`.

    There is a column `name=value` for each value. The values are texts, bools or whole numbers. The shares of a step
    add up to 1.

    Args: as for `Mean`: `name` is the key in the states, and `living` leaves out agents that have stopped.
    """

    kind = "share"

    @staticmethod
    def merged(name: str, partials: Iterable[Any]) -> dict[str, Value]:
        """Return which share of the agents of all groups has each value, in ascending order of the values.

        The keys of the result are texts of the form `name=value`.
        """
        counts = _counted("Share", name, partials)
        total = sum(count for _, count in counts)
        return {f"{name}={value}": count / total for value, count in counts}


_KINDS: Mapping[str, type[Aggregate]] = {
    each.kind: each for each in (Sum, Mean, Min, Max, Quantile, Gini, Count, Share)
}


def merged_column(name: str, kind: str, partials: Iterable[Any]) -> dict[str, Value]:
    """Return the columns of an aggregate, given its kind and the partial results of all groups (see `partial`)."""
    return _KINDS[kind.partition(" ")[0]].merged(name, partials)


def _counted(kind: str, name: str, partials: Iterable[Any]) -> list[tuple[Any, int]]:
    counts = Counter[Any]()
    types = dict[type, Value]()
    for partial in partials:
        counts.update(dict(partial))
        types.update({type(value): value for value, _ in partial})
    # Types can differ only with `Of`. Without it, the server has refused groups whose types differ.
    if len(types) > 1:
        given = " and ".join(repr(value) for value in types.values())
        raise ConfigError(f"{kind}({name!r}) found {given}: the values of all agents must be of one kind")
    return sorted(counts.items())


def _sum_of(column: NDArray[Any]) -> tuple[int, bool, bytes, float]:
    """Return the parts of a sum: the number of values, whether all are whole, the finite sum, and the infinite sum.

    The finite sum is exact, in units of 2**-1074. The infinite sum is the sum of the values that are NaN or infinite.
    """
    if column.dtype.kind != "f":
        return len(column), True, _packed(int(column.sum(dtype=object)) << _UNIT), 0.0
    finite = np.isfinite(column)
    return len(column), False, _packed(_exact_sum(column[finite])), sum(column[~finite].tolist())


def _added(partials: Iterable[Any]) -> tuple[int, bool, int, float]:
    count, all_whole, total, special = 0, True, 0, 0.0
    for rows, whole, packed, odd in partials:
        count, all_whole = count + rows, all_whole and whole
        total, special = total + int.from_bytes(packed, signed=True), special + odd
    return count, all_whole, total, special


def _quotient(total: int, count: int) -> float:
    """Return the float nearest to `total` / `count`, or infinity if no float is large enough.

    `total` is in units of 2**-1074.
    """
    try:
        return total / (count << _UNIT)
    except OverflowError:
        return inf if total > 0 else -inf


def _extreme(choose: Callable[..., Any], partials: Iterable[Any]) -> Value:
    found = [each for each in partials if each is not None]
    if not found or any(each != each for each in found):  # only NaN differs from itself
        return nan
    number: Value = choose(found)
    return float(number) if any(type(each) is float for each in found) else number


def _listed(column: NDArray[Any]) -> tuple[str, bytes]:
    return column.dtype.str, column.tobytes()


def _sorted(listed: Iterable[tuple[str, bytes]]) -> NDArray[Any]:
    """Decode the numbers of all groups, given as (numpy type, bytes), and return them in ascending order."""
    return np.sort(np.concatenate([np.frombuffer(data, np.dtype(kind)) for kind, data in listed]) + 0)


def _packed(total: int) -> bytes:
    return total.to_bytes(total.bit_length() // 8 + 1, signed=True)


def _exact_sum(values: NDArray[Any], weights: NDArray[np.int64] | None = None) -> int:
    """Return the exact sum of finite numbers in units of 2**-1074.

    With `weights` each number is multiplied by its weight, a whole number.
    """
    values = values.astype(np.float64, copy=False)
    fractions, exponents = np.frexp(values)
    whole = np.ldexp(fractions, _MANTISSA).astype(np.int64)
    if weights is not None:  # a mantissa times a weight may not fit int64
        products = whole.astype(object) * weights
        return sum(
            _shifted(int(products[exponents == exponent].sum()), int(exponent)) for exponent in np.unique(exponents)
        )
    found, groups = np.unique(exponents, return_inverse=True)
    halves = [np.zeros(len(found), np.int64) for _ in range(2)]
    for half, part in zip(halves, (whole >> _HALF, whole & (2**_HALF - 1)), strict=True):
        np.add.at(half, groups, part)
    high, low = halves
    total = 0
    for exponent, upper, lower in zip(found.tolist(), high.tolist(), low.tolist(), strict=True):
        total += _shifted((upper << _HALF) + lower, exponent)
    return total


def _shifted(mantissas: int, exponent: int) -> int:
    # If `shift` is negative, the number is subnormal, and its mantissa ends in -shift zeros.
    shift = exponent - _MANTISSA + _UNIT
    return mantissas << shift if shift >= 0 else mantissas >> -shift
