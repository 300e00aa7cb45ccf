"""Filters: the validated fields of a query, and the rows that match them."""

from collections.abc import Callable, Iterable
from copy import copy
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ray_messaging.addressing.channels import INT64_MAX, INT64_MIN
from ray_messaging.eventlog.reading.filtering.fields import (
    CHECKS,
    NAMES,
    NEVER_NULL,
    check_count,
    check_moment,
    check_span,
    check_text,
    invalid,
    is_collection,
    refuse_name,
)
from ray_messaging.eventlog.reading.filtering.payload_filters import payload_filters
from ray_messaging.eventlog.reading.filtering.stored_columns import AS_TEXT

_OF_RECIPIENT = ("to_id", "agent", "channel")
_NEEDS = {"from": ("from_id", "from_name"), "to": ("to_id", "to_name")}


class Wanted:
    """Values that a column may have; `none`: null matches, too."""

    __slots__ = ("none", "numbers", "texts")

    def __init__(self, values: Iterable[Any]) -> None:
        found = list(values)
        self.none = None in found
        self.numbers = np.array(sorted({value for value in found if isinstance(value, int)}), np.int64)
        self.texts = sorted({value for value in found if isinstance(value, str)})

    def mask(self, column: pa.Array) -> NDArray[np.bool_]:
        """Return for each row of an int64 or text column whether it has one of the values; null does not match."""
        if pa.types.is_dictionary(column.type):
            known = self._of_texts(column.dictionary)
            codes = column.indices
            if not known.any():
                return np.zeros(len(column), np.bool_)
            return _no_null(codes, known[codes.fill_null(0).to_numpy(zero_copy_only=False)])
        if not pa.types.is_integer(column.type):
            return self._of_texts(column)
        values = column.fill_null(0).to_numpy(zero_copy_only=False)
        if len(self.numbers) == 1:
            return _no_null(column, values == self.numbers[0])
        return _no_null(column, np.isin(values, self.numbers))

    def _of_texts(self, column: pa.Array) -> NDArray[np.bool_]:
        return _to_numpy(pc.is_in(column, value_set=pa.array(self.texts, column.type)))

    def between(self, low: Any, high: Any) -> bool:  # noqa: ANN401 - a column's statistics
        """Return whether one of the values is in a closed range."""
        if isinstance(low, str):
            return any(low <= text <= high for text in self.texts)
        at = int(np.searchsorted(self.numbers, low))
        return at < len(self.numbers) and bool(self.numbers[at] <= high)


class Filters:
    """Validated fields of a query; raise InvalidQuery for an invalid one.

    `wanted` maps a field to its values, `steps` is [low, high), `since` and `until` are microseconds.
    """

    def __init__(self, **fields: Any) -> None:  # noqa: ANN401 - whatever a user passed
        self.loose = False
        for name, value in fields.items():
            if name not in NAMES:
                refuse_name(name, value, NAMES, "a question has no field")
        self.wanted: dict[str, Wanted] = {}
        self.steps: tuple[int, int] | None = None
        for name, check in CHECKS.items():
            if name in fields:
                self._take(name, fields[name], check)
        self.since = check_moment("since", fields.get("since"))
        self.until = check_moment("until", fields.get("until"))
        self.contains = check_text("contains", fields.get("contains"))
        self.payloads = payload_filters(fields.get("payload"))
        self.limit = check_count("limit", fields.get("limit"), at_least=0)
        self.after = check_count("after", fields.get("after"), at_least=-1)

    def _take(self, name: str, value: Any, check: Callable[[str, Any], Any]) -> None:  # noqa: ANN401
        if name == "step" and isinstance(value, range | slice):
            self.steps = check_span(value)
            return
        if name == "step" and isinstance(value, tuple):
            raise invalid(name, value, "could be two steps or all between: write [first, second] or range(first, end)")
        values = [value] if value is None or not is_collection(value) else list(value)
        self.wanted[name] = Wanted(None if one is None else check(name, one) for one in values)
        if name in NEVER_NULL and self.wanted[name].none:
            raise invalid(name, value, "but every row has one: leave the field out to get all")

    def loosened(self, limit: int | None) -> "Filters":
        """Return filters with another limit, which broadcasts pass whatever recipient is wanted: they name none."""
        made = copy(self)
        made.loose, made.limit = True, limit
        return made

    def wants(self, name: str) -> bool:
        """Return whether rows without the value of a field are left out."""
        return not (self.loose and name in _OF_RECIPIENT)

    @property
    def columns(self) -> list[str]:
        """Return the columns to read in order to find the matching rows."""
        needed = ["pairs"] if self.loose else []
        for name in self.wanted:
            needed += [column for end in _ends(name) for column in _NEEDS[end]] or [name]
        if self.steps is not None:
            needed.append("step")
        if self.since is not None or self.until is not None:
            needed.append("sent_at")
        needed += [each.column for each in self.payloads]
        if self.contains is not None:
            needed.append(AS_TEXT)
        return list(dict.fromkeys(needed))

    def mask(self, table: pa.Table) -> NDArray[np.bool_] | None:
        """Return for each row of a table, bool (n,), whether it matches; None: all do, for lack of filters."""
        masks = [self._mask_of(name, wanted, table) for name, wanted in self.wanted.items()]
        if self.loose:
            said = _to_numpy(_one(table["pairs"]).is_valid())
            masks = [mask if self.wants(name) else mask | said for name, mask in zip(self.wanted, masks, strict=True)]
        if self.steps is not None:
            masks.append(_within(table["step"], *self.steps))
        if self.since is not None or self.until is not None:
            since = INT64_MIN if self.since is None else self.since
            until = INT64_MAX if self.until is None else self.until
            masks.append(_within(table["sent_at"].cast(pa.int64()), since, until))
        masks += [each.mask(table) for each in self.payloads]
        mask = np.logical_and.reduce(masks) if masks else None
        if self.contains is None:
            return mask
        found = _to_numpy(pc.match_substring(_one(table[AS_TEXT]), self.contains))
        return found if mask is None else mask & found

    def _mask_of(self, name: str, wanted: Wanted, table: pa.Table) -> NDArray[np.bool_]:
        if not _ends(name):
            column = _one(table[name])
            mask = wanted.mask(column)
            return mask | _nulls(column) if wanted.none else mask
        mask = np.zeros(len(table), np.bool_)
        for end in _ends(name):
            numbers, names = (_one(table[column]) for column in _NEEDS[end])
            if len(wanted.numbers):
                mask |= wanted.mask(numbers)
            if wanted.texts:
                mask |= wanted.mask(names)
            if wanted.none:
                mask |= _nulls(numbers) & _nulls(names)
        return mask


def _ends(name: str) -> tuple[str, ...]:
    return {"from_id": ("from",), "to_id": ("to",), "agent": ("from", "to")}.get(name, ())


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _to_numpy(mask: pa.Array) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = mask.fill_null(False).to_numpy(zero_copy_only=False)
    return found


def _nulls(column: pa.Array) -> NDArray[np.bool_]:
    return _to_numpy(column.is_null())


def _no_null(column: pa.Array, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return mask & _to_numpy(column.is_valid()) if column.null_count else mask


def _within(column: pa.ChunkedArray, low: int, high: int) -> NDArray[np.bool_]:
    array = _one(column)
    values = array.fill_null(0).to_numpy(zero_copy_only=False)
    return _no_null(array, (values >= low) & (values < high))
