"""Filters by the values of typed payloads."""

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ray_messaging.eventlog.reading.filtering.fields import invalid, is_collection
from ray_messaging.eventlog.schema import TYPED

_VALUES = (str, int, float, np.generic)


class PayloadFilter:
    """Values that one column of typed payloads may have: some, and those from `low` to before `high`."""

    def __init__(self, name: str, wanted: object) -> None:
        self.column = TYPED + name
        found: list[Any] = [*wanted] if is_collection(wanted) else [wanted]  # type: ignore[misc]
        self._ranges = [(each.start, each.stop) for each in found if isinstance(each, slice)]
        self._values = [each for each in found if not isinstance(each, slice)]
        if any(each.step is not None for each in found if isinstance(each, slice)) or (None, None) in self._ranges:
            raise invalid("payload", wanted, f"says no range of {name}: write slice(low, high)")
        bounds = [bound for each in self._ranges for bound in each if bound is not None]
        if not all(isinstance(value, _VALUES) for value in (*self._values, *bounds)):
            raise invalid("payload", wanted, f"must say one value of {name}, some values, or a slice")

    def mask(self, table: pa.Table) -> NDArray[np.bool_]:
        """Return for each row, bool (n,), whether it matches; a row without the column does not."""
        column = table[self.column].combine_chunks()
        wanted = [scalar for value in self._values if (scalar := _as(value, column.type)) is not None]
        found: NDArray[np.bool_] = (
            _rows(pc.is_in(column, value_set=pa.array(wanted, column.type))) if wanted else _none(column)
        )
        for low, high in self._ranges:
            found = found | (_compared(column, pc.greater_equal, low) & _compared(column, pc.less, high))
        return found


def payload_filters(wanted: object) -> list[PayloadFilter]:
    """Return the filters of the field `payload`; raise InvalidQuery."""
    if wanted is None:
        return []
    if not isinstance(wanted, Mapping) or not all(isinstance(name, str) for name in wanted):
        raise invalid("payload", wanted, 'must name columns and their values: {"price": 3.5, "n": slice(1, 10)}')
    return [PayloadFilter(name, value) for name, value in wanted.items()]


def _compared(column: pa.Array, holds: Callable[..., pa.Array], bound: Any) -> NDArray[np.bool_]:  # noqa: ANN401 - a value
    """Return for each row whether it is at least a bound, or less; None: any value is. NaN bounds nothing."""
    kind, bound = column.type, _plain(bound)
    if bound is None:
        return _rows(pc.is_valid(column))
    if isinstance(bound, str) != _is_text(kind) or bound != bound:
        return _none(column)
    if pa.types.is_integer(kind):  # exactly: Arrow would compare as floats, and refuse large numbers
        limits = np.iinfo(kind.to_pandas_dtype())
        if not limits.min < bound <= limits.max:
            return _rows(pc.is_valid(column)) if (bound <= limits.min) == (holds is pc.greater_equal) else _none(column)
        bound = pa.scalar(math.ceil(bound), kind)
    elif not isinstance(bound, str):
        bound = float(min(max(bound, -sys.float_info.max), sys.float_info.max)) if isinstance(bound, int) else bound
    try:
        return _rows(holds(column, bound))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):  # vectors, for one, have no order
        return _none(column)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _as(value: Any, kind: pa.DataType) -> Any:  # noqa: ANN401 - a value
    """Return a value as one of a column's type; None: the column can hold none like it."""
    if isinstance(value, str) != _is_text(kind):
        return None
    value = _plain(value)
    if isinstance(value, int) and pa.types.is_integer(kind):
        limits = np.iinfo(kind.to_pandas_dtype())
        return int(value) if limits.min <= value <= limits.max else None
    try:
        return pa.scalar(value).cast(kind).as_py()
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, OverflowError):
        return None


def _plain(value: Any) -> Any:  # noqa: ANN401 - a value
    return value.item() if isinstance(value, np.generic) else value


def _rows(mask: pa.Array) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = mask.fill_null(False).to_numpy(zero_copy_only=False)
    return found


def _none(column: pa.Array) -> NDArray[np.bool_]:
    return np.zeros(len(column), np.bool_)
