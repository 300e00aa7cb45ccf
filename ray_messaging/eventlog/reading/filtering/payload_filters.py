"""Filters by the values of typed payloads."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ray_messaging.eventlog.reading.filtering.fields import invalid, is_collection
from ray_messaging.eventlog.schema import TYPED

_VALUES = (str, int, float, np.generic)


class PayloadFilter:
    """Values that one column of typed payloads may have: some, or those from `low` to before `high`."""

    def __init__(self, name: str, wanted: object) -> None:
        self.column = TYPED + name
        bounds = [wanted.start, wanted.stop] if isinstance(wanted, slice) else []
        found: list[Any] = bounds or ([*wanted] if is_collection(wanted) else [wanted])  # type: ignore[misc]
        if isinstance(wanted, slice) and (wanted.step is not None or bounds == [None, None]):
            raise invalid("payload", wanted, f"says no range of {name}: write slice(low, high)")
        for value in found:
            if not isinstance(value, _VALUES) and not (value is None and bounds):
                raise invalid("payload", wanted, f"must say one value of {name}, some values, or a slice")
        self._bounds = bounds
        self._values = [] if bounds else found

    def mask(self, table: pa.Table) -> NDArray[np.bool_]:
        """Return for each row, bool (n,), whether it matches; a row without the column does not."""
        column = table[self.column].combine_chunks()
        if not self._bounds:
            wanted = [scalar for value in self._values if (scalar := _as(value, column.type)) is not None]
            return _rows(pc.is_in(column, value_set=pa.array(wanted, column.type))) if wanted else _none(column)
        masks = []
        for bound, holds in zip(self._bounds, (pc.greater_equal, pc.less), strict=True):
            if bound is not None:
                try:
                    masks.append(_rows(holds(column, pa.scalar(_plain(bound)))))
                except (pa.ArrowNotImplementedError, pa.ArrowInvalid):  # a text is no bound of numbers
                    return _none(column)
        found: NDArray[np.bool_] = np.logical_and.reduce(masks)
        return found


def payload_filters(wanted: object) -> list[PayloadFilter]:
    """Return the filters of the field `payload`; raise InvalidQuery."""
    if wanted is None:
        return []
    if not isinstance(wanted, Mapping) or not all(isinstance(name, str) for name in wanted):
        raise invalid("payload", wanted, 'must name columns and their values: {"price": 3.5, "n": slice(1, 10)}')
    return [PayloadFilter(name, value) for name, value in wanted.items()]


def _as(value: Any, kind: pa.DataType) -> Any:  # noqa: ANN401 - a value
    """Return a value as one of a column's type; None: the column can hold none like it."""
    if isinstance(value, str) != (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return None
    try:
        return pa.scalar(_plain(value)).cast(kind).as_py()
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return None


def _plain(value: Any) -> Any:  # noqa: ANN401 - a value
    return value.item() if isinstance(value, np.generic) else value


def _rows(mask: pa.Array) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = mask.fill_null(False).to_numpy(zero_copy_only=False)
    return found


def _none(column: pa.Array) -> NDArray[np.bool_]:
    return np.zeros(len(column), np.bool_)
