"""The values that a run collects in a step, as bytes: a row per agent, or aggregates, whatever the order of groups.

The bytes begin with the shape, a line of JSON: whether there are rows or aggregates, and the kind of each column. All
steps and groups of an experiment have the same shape, which the server checks.
"""

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import msgspec
import numpy as np
from numpy.typing import NDArray

from ray_messaging.common.tables import MOST_EXACT
from ray_messaging.errors import ConfigError

Value = bool | int | float | str
Values = Sequence[Any] | NDArray[Any]

ROWS, AGGREGATES = "rows", "aggregates"
STEP, AGENT, AGENT_NAME = TAKEN = ("step", "agent", "agent_name")  # the names of the table's other columns
_KINDS: dict[type, str] = {bool: "bool", int: "number", float: "number", str: "text"}
_NUMPY_KINDS = {"b": "bool", "i": "number", "u": "number", "f": "number", "U": "text"}
_LARGEST = np.dtype(np.float64).itemsize
_UNIT = 1074  # all floats are whole multiples of 2**-1074
_MANTISSA = np.finfo(np.float64).nmant + 1
_HALF = 26  # bits of half a mantissa: sums of 2**36 halves fit int64

_EXTREMES = 0.0, struct.unpack("d", b"\xff" * _LARGEST)[0]  # floats that differ in all bytes

_encode = msgspec.msgpack.encode


class UnfitValue(TypeError):
    """A value that cannot be collected; `place` is the position of the value's agent, or None if it is not known."""

    def __init__(self, text: str, place: int | None = None) -> None:
        super().__init__(text)
        self.place = place


class _Aggregate:
    def __init__(self, name: str, of: Callable[[Any], Any] | None = None) -> None:
        self.name = name
        self.of = of

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class Mean(_Aggregate):
    """The mean over all agents of a number in their states, for `collect=`: one number per step.

    The mean is exact but for one rounding at the end, so it does not depend on how the agents are grouped.

    Args: `name` is the key in the state and the name of the column. With `of`, an agent's number is `of(me)`, or in a
    run with by="group", `of(group)` is an array of the agents' numbers.
    """

    def partial(self, values: Values) -> tuple[str, Any]:
        """Return the kind, and a tuple for `merged`; raise UnfitValue unless the values are numbers or bools.

        The tuple has the number of values, the exact sum of the finite values in units of 2**-1074, and the sum of the
        values that are NaN or infinite.
        """
        _, column = column_of(self.name, values)
        if not isinstance(column, np.ndarray):
            raise UnfitValue(f"{self!r} needs numbers, and agents have texts: Count({self.name!r}) counts texts", 0)
        if column.dtype.kind != "f":
            return "mean", (len(column), _packed(int(column.sum(dtype=object)) << _UNIT), 0.0)
        finite = np.isfinite(column)
        return "mean", (len(column), _packed(_exact_sum(column[finite])), sum(column[~finite].tolist()))

    @staticmethod
    def merged(name: str, partials: Iterable[Any]) -> dict[str, Value]:
        """Return the mean of all groups; NaN if there are no agents."""
        count, total, special = 0, 0, 0.0
        for rows, packed, odd in partials:
            count, total, special = count + rows, total + int.from_bytes(packed, signed=True), special + odd
        return {name: total / (count << _UNIT) + special if count else float("nan")}


class Count(_Aggregate):
    """The number of agents with each value of a key in their states, for `collect=`: a column `name=value` per value.

    Args: as for `Mean`; the values are texts, bools or whole numbers.
    """

    def partial(self, values: Values) -> tuple[str, Any]:
        """Return the kind, and each value with the number of agents that have it; raise UnfitValue for floats."""
        kind, column = column_of(self.name, values)
        if isinstance(column, np.ndarray) and column.dtype.kind == "f":
            raise UnfitValue(
                f"{self!r} needs texts, bools or whole numbers, and agents have floats: round the floats", 0
            )
        return f"count of {kind}", [*Counter(column if isinstance(column, list) else column.tolist()).items()]

    @staticmethod
    def merged(name: str, partials: Iterable[Any]) -> dict[str, Value]:
        """Return the counts of all groups, by value in ascending order."""
        counts = Counter[Any]()
        for partial in partials:
            counts.update(dict(partial))
        return {f"{name}={value}": counts[value] for value in sorted(counts)}


Aggregate = Mean | Count
_MERGED: Mapping[str, Callable[[str, Iterable[Any]], dict[str, Value]]] = {"mean": Mean.merged, "count": Count.merged}


class StepSeries(NamedTuple):
    """The values that one group has collected in a step.

    `columns` has for each column its kind and its values, `agents` the agent of each row. With aggregates, `agents` is
    None, and the values of a column are a partial result.
    """

    agents: NDArray[Any] | None
    columns: dict[str, tuple[str, Any]]


def are_aggregates(collect: object) -> TypeGuard[Aggregate | Sequence[Aggregate]]:
    """Return whether collect is an aggregate or a list of them, not a function."""
    return isinstance(collect, Mean | Count | list | tuple)


def check_collect(collect: object, every: object) -> None:
    """Raise ConfigError unless the arguments `collect` and `collect_every` of a run are valid."""
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ConfigError(f"collect_every={every!r} must be a number of steps, at least 1")
    listed = collect if isinstance(collect, list | tuple) else [collect]
    fits = callable(collect) or (listed and all(isinstance(each, Mean | Count) for each in listed))
    if collect is not None and not fits:
        raise ConfigError(
            f"collect={collect!r} must be a function that returns a dict, such as lambda me: {{'mood': "
            "me.state['mood']}, or an aggregate, such as Mean('mood') or Count('health'), or a list of aggregates"
        )
    aggregates = [each for each in listed if isinstance(each, Mean | Count)]
    for each in aggregates:
        if type(each.name) is not str or not each.name or "=" in each.name or each.name in TAKEN:
            raise ConfigError(f"the name of {each!r} must be a text without '=', and not one of {', '.join(TAKEN)}")
    if len({each.name for each in aggregates}) < len(aggregates):
        raise ConfigError(f"two aggregates of collect={collect!r} have one name: use Mean(another name, of=...)")


def column_of(name: str, values: Values) -> tuple[str, NDArray[Any] | list[str]]:
    """Return the kind of a column, and its values; raise UnfitValue for the first value that does not fit."""
    if isinstance(values, np.ndarray):
        return _array_column(name, values)
    if floats := float_columns(values, lambda number: number):
        return "number", floats[0]
    plain = _plain(values)
    kinds = {*map(type, plain)}
    named = {_KINDS.get(kind) for kind in kinds}
    if len(named) == 1 and (kind := named.pop()) is not None:
        if kind == "text":
            for place, text in enumerate(plain):
                if not text.isascii() and not _is_text(text):
                    raise _unfit(name, text, place)
            return kind, plain
        # numpy would round a whole number beside floats in silence.
        whole = plain if kinds == {int} else [value for value in plain if type(value) is int] if int in kinds else []
        if not whole or (min(whole) >= -MOST_EXACT and max(whole) <= MOST_EXACT):
            return kind, np.array(plain, np.bool_ if kind == "bool" else np.float64 if float in kinds else np.int64)
        place = next(at for at, value in enumerate(plain) if type(value) is int and abs(value) > MOST_EXACT)
        raise _unfit(name, plain[place], place)
    first = _KINDS.get(type(plain[0]))
    place = 0 if first is None else next(at for at, value in enumerate(plain) if _KINDS.get(type(value)) != first)
    raise _unfit(name, plain[place], place)


def _array_column(name: str, array: NDArray[Any]) -> tuple[str, NDArray[Any] | list[str]]:
    kind = _NUMPY_KINDS.get(array.dtype.kind)
    if array.ndim != 1 or kind is None or (kind == "number" and array.dtype.itemsize > _LARGEST):
        raise UnfitValue(
            f"collect returned {name}=array of {array.dtype} and shape {array.shape}: return one bool, number or text "
            "for each agent"
        )
    if kind == "text":
        return column_of(name, array.tolist()) if len(array) else (kind, [])
    if array.dtype.kind in "iu" and len(array) and not (array.min() >= -MOST_EXACT and array.max() <= MOST_EXACT):
        place = int(np.flatnonzero((array < -MOST_EXACT) | (array > MOST_EXACT))[0])
        raise _unfit(name, array[place].item(), place)
    return kind, array.astype({"b": np.bool_, "f": np.float64}.get(array.dtype.kind, np.int64), copy=False)


def float_columns(items: Sequence[Any], like: Callable[[float], Any]) -> list[NDArray[np.float64]] | None:
    """Return the floats of items as columns, in half of the time that Python and numpy take.

    Return None unless each item has the form of `like(number)`, with any floats where `like` puts the number.
    """
    try:
        zeros, ones = (np.frombuffer(_encode(like(number)), np.uint8) for number in _EXTREMES)
        size, fixed = len(zeros), zeros == ones
        encoded = _encode(items) if len(_encode(items[0])) == size else b""
    except (TypeError, ValueError, OverflowError):
        return None
    start = len(_encode([None] * len(items))) - len(items)
    if len(encoded) != start + size * len(items):
        return None
    if (np.frombuffer(encoded, np.uint8, offset=start).reshape(-1, size)[:, fixed] != zeros[fixed]).any():
        return None
    places = start + np.flatnonzero(~fixed)[::_LARGEST]
    return [np.ndarray(len(items), ">f8", encoded, place, size).astype(np.float64) for place in places.tolist()]


def _plain(values: Values) -> list[Any]:
    """Return values with Python's numbers in place of numpy's."""
    if any(issubclass(kind, np.generic) for kind in {*map(type, values)}):
        return [value.item() if isinstance(value, np.generic) else value for value in values]
    return [*values]


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unfit(name: str, value: object, place: int) -> UnfitValue:
    return UnfitValue(
        f"collect returned {name}={value!r:.100}, of type {type(value).__name__}: return bools, numbers (whole ones up "
        "to 2**53) or valid texts, of one kind for all agents",
        place,
    )


def encode_rows(agents: NDArray[Any], columns: Mapping[str, Values]) -> bytes:
    """Encode a row per agent, columns in alphabetical order, which is the same in all groups.

    Raises: UnfitValue for a value that cannot be collected.
    """
    for name in columns:
        if type(name) is not str or not name or name in TAKEN or not _is_text(name):
            raise UnfitValue(f"collect has a column {name!r}: name it by a text, not one of {', '.join(TAKEN)}")
    found = {name: column_of(name, columns[name]) for name in sorted(columns)}
    ids = np.ascontiguousarray(agents).data if agents.dtype != object else agents.tolist()
    listed = [
        (column.dtype.str, np.ascontiguousarray(column).data) if isinstance(column, np.ndarray) else ("text", column)
        for _, column in found.values()
    ]
    return _shape(ROWS, {name: kind for name, (kind, _) in found.items()}) + _encode((ids, listed))


def encode_aggregates(aggregates: Sequence[Aggregate], values: Sequence[Values]) -> bytes:
    """Encode the aggregates of a group, each from the values of all agents; raise UnfitValue for an unfit value."""
    found = {each.name: each.partial(column) for each, column in zip(aggregates, values, strict=True)}
    kinds = {name: kind for name, (kind, _) in found.items()}
    return _shape(AGGREGATES, kinds) + _encode((None, [partial for _, partial in found.values()]))


def _shape(what: str, kinds: Mapping[str, str]) -> bytes:
    return msgspec.json.encode((what, list(kinds.items()))) + b"\n"


def shape_in_words(data: bytes) -> str:
    """Return, as a text for an error, the shape with which an encoded series begins."""
    what, kinds = msgspec.json.decode(data.partition(b"\n")[0])
    listed = ", ".join(f"{name} ({kind})" for name, kind in kinds)
    return f"{listed}, {'a row per agent' if what == ROWS else 'one row per step'}"


def decode_series(data: bytes) -> StepSeries:
    """Decode the bytes of `encode_rows` or `encode_aggregates`."""
    line, _, rest = data.partition(b"\n")
    what, kinds = msgspec.json.decode(line)
    ids, listed = msgspec.msgpack.decode(rest)
    if what == AGGREGATES:
        return StepSeries(None, {name: (kind, values) for (name, kind), values in zip(kinds, listed, strict=True)})
    agents = np.frombuffer(ids, np.int64) if isinstance(ids, bytes) else np.array(ids, object)
    columns = {
        name: (kind, values if dtype == "text" else np.frombuffer(values, np.dtype(dtype)))
        for (name, kind), (dtype, values) in zip(kinds, listed, strict=True)
    }
    return StepSeries(agents, columns)


def merged(parts: Sequence[StepSeries]) -> dict[str, Value]:
    """Return the aggregates of one step from the aggregates of all groups."""
    found: dict[str, Value] = {}
    for name, (kind, _) in parts[0].columns.items():
        found |= _MERGED[kind.split(" ")[0]](name, [part.columns[name][1] for part in parts])
    return found


def _packed(total: int) -> bytes:
    return total.to_bytes(total.bit_length() // 8 + 1, signed=True)


def _exact_sum(values: NDArray[np.float64]) -> int:
    """Return the sum of finite numbers in units of 2**-1074, without any rounding."""
    fractions, exponents = np.frexp(values)
    whole = np.ldexp(fractions, _MANTISSA).astype(np.int64)
    found, groups = np.unique(exponents, return_inverse=True)
    halves = [np.zeros(len(found), np.int64) for _ in range(2)]
    for half, part in zip(halves, (whole >> _HALF, whole & (2**_HALF - 1)), strict=True):
        np.add.at(half, groups, part)
    high, low = halves
    total = 0
    for exponent, upper, lower in zip(found.tolist(), high.tolist(), low.tolist(), strict=True):
        sum_of = (upper << _HALF) + lower
        shift = exponent - _MANTISSA + _UNIT  # a subnormal number's mantissa ends in as many zeros as this is below 0
        total += sum_of << shift if shift >= 0 else sum_of >> -shift
    return total
