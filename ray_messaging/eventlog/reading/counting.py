"""Counts of rows by columns, part by part: memory holds the counts, not the rows."""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ray_messaging.eventlog.reading.fields import check_columns, invalid
from ray_messaging.eventlog.reading.filters import Filters
from ray_messaging.eventlog.reading.results import COLUMNS, plain, stored, with_ids
from ray_messaging.eventlog.reading.scan import View, in_threads, scan
from ray_messaging.eventlog.schema import SCHEMA

UNITS = ("second", "minute", "hour", "day")  # of sent_at, UTC
COUNTABLE = (*(name for name in COLUMNS if name not in {"from_name", "to_name", "labels"}), *UNITS)
_MERGE_ROWS = 1_000_000
_SLICES = 8  # of a sample: the newest rows may be of one sender alone

Derive = Callable[[pa.Table], pa.Table]


def count(view: View, *, by: str | Collection[str] = "fate", **fields: Any) -> pa.Table:  # noqa: ANN401 - see Fields
    """Count the matching rows by one or several of COUNTABLE; return them and `count`, the largest counts first."""
    keys = check_columns(by, COUNTABLE)
    (counted,) = counts(view, Filters(**fields), [keys], _with_units)
    return counted


class Sample(NamedTuple):
    """Counts of the rows behind a position up to `reached`, as `count` returns them, of a share of them."""

    counts: pa.Table
    reached: int
    share: float


def sample(view: View, *, by: str | Collection[str], after: int, most: int) -> Sample:
    """Count the rows behind a position; of more than `most` rows, about so many, in slices from all parts."""
    if not isinstance(most, int) or most < _SLICES:
        raise invalid("most", most, f"must be a number of rows, at least {_SLICES}")
    keys, behind = check_columns(by, COUNTABLE), Filters(after=after).after
    new = view.end - 1 - (-1 if behind is None else behind)
    if new <= most:
        return Sample(count(view, by=keys, after=after), view.end - 1, 1.0)
    size, total = most // _SLICES, None
    for number in range(_SLICES):
        begin = after + new * (2 * number + 1) // (2 * _SLICES) - size // 2
        (found,) = counts(view, Filters(after=begin, limit=size), [keys], _with_units)
        total = _Sum(found, keys) if total is None else total
        if number:
            total.add(found)
    assert total is not None
    return Sample(_in_order(total.merged(), keys), view.end - 1, size * _SLICES / new)


def _with_units(part: pa.Table) -> pa.Table:
    if "sent_at" in part.column_names:
        for unit in UNITS:
            part = part.append_column(unit, pc.floor_temporal(part["sent_at"], unit=unit))
    return part


def counts(view: View, filters: Filters, groupings: Sequence[Sequence[str]], derive: Derive) -> list[pa.Table]:
    """Count by several groupings in one pass; `derive` adds the columns that are not stored."""
    keys = [stored(grouping) for grouping in groupings]
    columns = dict.fromkeys(name if name in SCHEMA.names else "sent_at" for grouping in keys for name in grouping)
    empty = pa.schema(SCHEMA.field(name) for name in columns).empty_table()
    sums = [_Sum(counted, grouping) for counted, grouping in zip(_grouped(empty, keys, derive), keys, strict=True)]
    grouped = partial(_grouped, keys=keys, derive=derive)
    for part in in_threads(grouped, scan(view, filters, [*columns], raw=True)):
        for total, counted in zip(sums, part, strict=True):
            total.add(counted)
    return [_in_order(with_ids(total.merged()), names) for total, names in zip(sums, groupings, strict=True)]


class _Sum:
    """Sum of counted parts, merged each time their rows have doubled."""

    def __init__(self, first: pa.Table, keys: Sequence[str]) -> None:
        self._tables = [first]
        self._keys = keys
        self._rows = 0
        self._limit = _MERGE_ROWS

    def add(self, counted: pa.Table) -> None:
        self._tables.append(counted)
        self._rows += len(counted)
        if self._rows > self._limit:
            self._tables = [self.merged()]
            self._rows = len(self._tables[0])
            self._limit = max(_MERGE_ROWS, 2 * self._rows)

    def merged(self) -> pa.Table:
        keys = [*self._keys]
        summed = pa.concat_tables(self._tables).group_by(keys).aggregate([("count", "sum")])
        return summed.select([*keys, "count_sum"]).rename_columns([*keys, "count"])


def _grouped(part: pa.Table, keys: Sequence[Sequence[str]], derive: Derive) -> list[pa.Table]:
    part = derive(part.combine_chunks())
    return [_count(part, grouping) for grouping in keys]


def _count(part: pa.Table, keys: Sequence[str]) -> pa.Table:
    counted = part.group_by(list(keys), use_threads=False).aggregate([([], "count_all")])
    return plain(counted.select([*keys, "count_all"]).rename_columns([*keys, "count"]))


def _in_order(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    return table.sort_by([("count", "descending"), *((key, "ascending") for key in keys)])
