"""Counts of rows by columns, and statistics made of such counts.

The log is read part by part, so that only counts, and not the rows, are in memory.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ray_messaging.eventlog.log_schema import SCHEMA
from ray_messaging.eventlog.reading.filters import MICROSECONDS, Filters, check_columns, invalid
from ray_messaging.eventlog.reading.results import COLUMNS, as_id, plain, stored, with_ids
from ray_messaging.eventlog.reading.scan import View, in_threads, scan
from ray_messaging.model.fates import FATES, STORED

UNITS = ("second", "minute", "hour", "day")  # units of sent_at, in UTC
COUNTABLE = (*(name for name in COLUMNS if name not in {"from_name", "to_name", "labels"}), *UNITS)
_MERGE_ROWS = 1_000_000
# A sample consists of this many slices of the log, because the newest rows alone may all have one sender.
_SLICES = 8
BUSIEST = 10
BINS = 120  # `stats` counts rows in at most this many intervals of time
GROUPS = 16  # the matrix of `stats` has at most this many rows and columns, OTHERS included
OTHERS = "(others)"
_GROUPINGS = (("fate",), ("rule", "fate"), ("from_id",), ("to_id",), ("sender", "mailbox", "fate"), ("bin", "fate"))

Derive = Callable[[pa.Table], pa.Table]


def count(view: View, *, by: str | Collection[str] = "fate", **fields: Any) -> pa.Table:  # noqa: ANN401 - see Fields
    """Count the matching rows by some columns of COUNTABLE; return these columns and `count`, sorted by count."""
    keys = check_columns(by, COUNTABLE)
    (counted,) = counts(view, [Filters(**fields)], [keys], _with_units)
    return counted


class CountSample(NamedTuple):
    """The result of `sample`.

    `counts` is a table as from `count`. `reached` is the position of the log's last row at the time of the call, and
    `share` is the number of counted rows divided by the number of rows after `after`.
    """

    counts: pa.Table
    reached: int
    share: float


def sample(view: View, *, by: str | Collection[str], after: int, most: int) -> CountSample:
    """Count the rows after the position `after`, by the columns `by`.

    If there are more than `most` rows, count about `most` of them, in evenly spread slices.
    """
    if not isinstance(most, int) or most < _SLICES:
        raise invalid("most", most, f"must be a number of rows, at least {_SLICES}")
    keys, behind = check_columns(by, COUNTABLE), Filters(after=after).after
    new = view.end - 1 - (-1 if behind is None else behind)
    if new <= most:
        return CountSample(count(view, by=keys, after=after), view.end - 1, 1.0)
    size = most // _SLICES
    begins = (after + new * (2 * number + 1) // (2 * _SLICES) - size // 2 for number in range(_SLICES))
    (counted,) = counts(view, [Filters(after=begin, limit=size) for begin in begins], [keys], _with_units)
    return CountSample(counted, view.end - 1, size * _SLICES / new)


def _with_units(part: pa.Table) -> pa.Table:
    if "sent_at" in part.column_names:
        for unit in UNITS:
            part = part.append_column(unit, pc.floor_temporal(part["sent_at"], unit=unit))
    return part


def counts(
    view: View, filters: Sequence[Filters], groupings: Sequence[Sequence[str]], derive: Derive
) -> list[pa.Table]:
    """Count the rows that match the filters, by each of several sets of columns, in one pass for each filter.

    Return a table of counts for each set. A row that matches several of the filters is counted several times.

    Args:
        derive: A function that takes a table of rows and adds computed columns, such as the hour of `sent_at`.
    """
    keys = [stored(grouping) for grouping in groupings]
    columns = dict.fromkeys(name if name in SCHEMA.names else "sent_at" for grouping in keys for name in grouping)
    empty = pa.schema(SCHEMA.field(name) for name in columns).empty_table()
    sums = [_Sum(counted, grouping) for counted, grouping in zip(_grouped(empty, keys, derive), keys, strict=True)]
    grouped = partial(_grouped, keys=keys, derive=derive)
    parts = chain.from_iterable(scan(view, each, [*columns], raw=True) for each in filters)
    for part in in_threads(grouped, parts):
        for total, counted in zip(sums, part, strict=True):
            total.add(counted)
    return [_in_order(with_ids(total.merged()), names) for total, names in zip(sums, groupings, strict=True)]


class _Sum:
    """The total counts of a query, to which the counts of each part of the log are added.

    The added tables are merged from time to time, so that they take little memory.
    """

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


def stats(view: View, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - see Fields
    """Return statistics of the matching rows as a dict of JSON's types. Times are in unix seconds.

    The keys are: rows; first and last (the earliest and latest sent_at; None if there are no rows); fates; rules, as
    {rule: {fate: rows}}; writers and readers (numbers of distinct ids); busiest_writers and busiest_readers (lists of
    [id, rows]; the id of the user is None); traffic (start, width_s, and the rows in each interval by fate); groups
    (the number of rows delivered `from` each messager `to` each mailbox); segments and bytes (the number and size of
    the log's files); live (the number of rows that are in no file yet).
    """
    filters = Filters(**fields)
    first, last = _span(view, filters)
    width = bin_width(last - first)
    start = first // width * width

    def with_bin(part: pa.Table) -> pa.Table:
        return part.append_column("bin", pc.divide(pc.subtract(part["sent_at"].cast(pa.int64()), start), width))

    fates, rules, writers, readers, groups, bins = counts(view, [filters], _GROUPINGS, with_bin)
    rows = pc.sum(fates["count"]).as_py() or 0
    return {
        "rows": rows,
        "first": first / MICROSECONDS if rows else None,
        "last": last / MICROSECONDS if rows else None,
        "fates": dict.fromkeys(FATES, 0) | {row["fate"]: row["count"] for row in fates.to_pylist()},
        "rules": _rules(rules),
        "writers": len(writers) - writers["from_id"].null_count,
        "readers": len(readers) - readers["to_id"].null_count,
        "busiest_writers": _busiest(writers),
        "busiest_readers": _busiest(readers),
        "traffic": _traffic(bins, start, width, (last - start) // width + 1 if rows else 0),
        "groups": _matrix(groups),
        "segments": len(view.segments),
        "bytes": sum(segment.size for segment in view.segments),
        "live": sum(map(len, view.live)),
    }


def _span(view: View, filters: Filters) -> tuple[int, int]:
    """Return the earliest and the latest sent_at of matching rows, in microseconds; (0, 0) without rows."""
    parts = scan(view, filters, ["sent_at"], raw=True)
    spans = [pc.min_max(part["sent_at"].cast(pa.int64())).as_py() for part in parts]
    return min((span["min"] for span in spans), default=0), max((span["max"] for span in spans), default=0)


def bin_width(span_us: int) -> int:
    """Return a round width of intervals, in microseconds, such that at most BINS intervals fill a span of time."""
    round_ones = [factor * 10**power for power in range(3, 7) for factor in (1, 2, 5)]
    round_ones += [seconds * MICROSECONDS for seconds in (10, 15, 30)]
    round_ones += [minutes * 60 * MICROSECONDS for minutes in (1, 2, 5, 10, 15, 30)]
    round_ones += [hours * 3600 * MICROSECONDS for hours in (1, 2, 3, 6, 12)]
    day = 24 * 3600 * MICROSECONDS
    fits = (width for width in round_ones if span_us < width * (BINS - 1))
    return next(fits, day * -(-span_us // (day * (BINS - 1))))


def _rules(counted: pa.Table) -> dict[str, dict[str, int]]:
    rules: dict[str, dict[str, int]] = {}
    for row in counted.to_pylist():
        if row["rule"] is not None:
            rules.setdefault(row["rule"], {})[row["fate"]] = row["count"]
    return rules


def _busiest(counted: pa.Table) -> list[list[Any]]:
    return [[as_id(end), rows] for end, rows in (row.values() for row in counted.slice(0, BUSIEST).to_pylist())]


def _traffic(counted: pa.Table, start: int, width: int, bins: int) -> dict[str, Any]:
    fates = {fate: [0] * bins for fate in FATES}
    for row in counted.to_pylist():
        fates.setdefault(row["fate"], [0] * bins)[row["bin"]] += row["count"]
    return {"start": start / MICROSECONDS, "width_s": width / MICROSECONDS, "fates": fates}


def _matrix(counted: pa.Table) -> dict[str, Any]:
    rows = [row for row in counted.to_pylist() if row["mailbox"] is not None and row["fate"] in STORED]
    senders, mailboxes = (_kept([row[end] for row in rows]) for end in ("sender", "mailbox"))
    delivered = [[0] * len(mailboxes) for _ in senders]
    for row in rows:
        sender, mailbox = (
            names.index(row[end]) if row[end] in names else len(names) - 1
            for end, names in (("sender", senders), ("mailbox", mailboxes))
        )
        delivered[sender][mailbox] += row["count"]
    return {"from": senders, "to": mailboxes, "delivered": delivered}


def _kept(names: list[str]) -> list[str]:
    """Return at most GROUPS names, sorted. OTHERS replaces the names that do not fit.

    Args: `names` are sorted by traffic, the busiest first.
    """
    unique = list(dict.fromkeys(names))
    return sorted(unique) if len(unique) <= GROUPS else [*sorted(unique[: GROUPS - 1]), OTHERS]
