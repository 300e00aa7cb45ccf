"""Columns of the values that a run collects from agents: bools, numbers or strs. No value is rounded."""

import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ray_messaging.common.tables import MOST_EXACT

Value = bool | int | float | str
Values = Sequence[Any] | NDArray[Any]

# The table of collected values has these columns too, so no collected column may have one of these names.
STEP, AGENT, AGENT_NAME = TAKEN = ("step", "agent", "agent_name")
_KINDS: dict[type, str] = {bool: "bool", int: "number", float: "number", str: "text"}
_NUMPY_KINDS = {"b": "bool", "i": "number", "u": "number", "f": "number", "U": "text"}
_LARGEST = np.dtype(np.float64).itemsize

# These two floats differ in every byte. So if an item is encoded with the one and with the other, the bytes that differ
# are those of the item's floats.
_EXTREMES = 0.0, struct.unpack("d", b"\xff" * _LARGEST)[0]

_encode = msgspec.msgpack.encode


class UnfitValue(TypeError):
    """An error: a model's value cannot be collected.

    `place` is the position of the value's agent among the group's agents, or None if it is not known.
    """

    def __init__(self, text: str, place: int | None = None) -> None:
        super().__init__(text)
        self.place = place


def column_of(name: str, values: Values) -> tuple[str, NDArray[Any] | list[str]]:
    """Return a column's kind, which is "bool", "number" or "text", and its values.

    Raises: UnfitValue for the first value that does not fit.
    """
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
                if not text.isascii() and not is_text(text):
                    raise _unfit(name, text, place)
            return kind, plain
        # Large whole numbers are refused, because in a column with floats, numpy would round them without a warning.
        # Even if there is no float here, the values of another group in the same column may be floats.
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
            f"collect returned for {name!r} an array with the dtype {array.dtype} and the shape {array.shape}: return "
            "one bool, int, float or str for each agent"
        )
    if kind == "text":
        return column_of(name, array.tolist()) if len(array) else (kind, [])
    if array.dtype.kind in "iu" and len(array) and not (array.min() >= -MOST_EXACT and array.max() <= MOST_EXACT):
        place = int(np.flatnonzero((array < -MOST_EXACT) | (array > MOST_EXACT))[0])
        raise _unfit(name, array[place].item(), place)
    return kind, array.astype({"b": np.bool_, "f": np.float64}.get(array.dtype.kind, np.int64), copy=False)


def float_columns(items: Sequence[Any], like: Callable[[float], Any]) -> list[NDArray[np.float64]] | None:
    """Return the floats that the items contain, as columns; return None if the items do not all have the same form.

    This takes half of the time of a loop over the items.

    Args: `like` builds an item of the required form: it takes a float, and puts it in each place that has a float.
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
    """Return values with Python numbers in place of numpy scalars."""
    if any(issubclass(kind, np.generic) for kind in {*map(type, values)}):
        return [value.item() if isinstance(value, np.generic) else value for value in values]
    return [*values]


def is_text(text: str) -> bool:
    """Return whether a str is valid Unicode, without lone surrogates."""
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
