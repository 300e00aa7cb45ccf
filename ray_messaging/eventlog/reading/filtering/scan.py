"""Scan of the log for the rows that match a query, with as little reading as possible.

A segment is skipped by its times, a row group by its statistics. Of the others only the filtered columns are read, and
the rest only for row groups with hits. Threads read segments a few ahead: memory holds some segments' hits, never the
log.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ray_messaging.errors import LogError
from ray_messaging.eventlog.folder import Folder, Segment
from ray_messaging.eventlog.reading.filtering.fields import MICROSECONDS
from ray_messaging.eventlog.reading.filtering.filters import Filters
from ray_messaging.eventlog.reading.filtering.pruning import may_match
from ray_messaging.eventlog.schema import SCHEMA

POSITION = pa.field("position", pa.int64(), nullable=False)
THREADS = min(8, os.cpu_count() or 1)

T = TypeVar("T")


class View(NamedTuple):
    """The data of a query: closed segments, and tables (by `schema.SCHEMA`) of the later rows."""

    folder: Folder
    segments: Sequence[Segment]
    live: Sequence[pa.Table] = ()

    @property
    def closed(self) -> int:
        """Return the position after the segments' last row."""
        return self.segments[-1].first_row + self.segments[-1].rows if self.segments else 0

    @property
    def end(self) -> int:
        """Return the position after the last row."""
        return self.closed + sum(map(len, self.live))


def scan(view: View, filters: Filters, columns: Sequence[str], then: Callable[[pa.Table], T]) -> Iterator[T]:
    """Yield `then(part)` of the matching rows, part by part in log order; `then` runs in threads.

    A part is a table of `columns` and `position`, never empty. Raises LogError with the path of a damaged segment.
    """
    left = filters.limit
    if left == 0:
        return
    for parts in _ahead(view, filters, columns, then if left is None else _as_it_is):
        for part in parts:
            if left is None:
                yield part
                continue
            yield then(part.slice(0, left))
            left -= len(part)
            if left <= 0:
                return


def _as_it_is(part: Any) -> Any:  # noqa: ANN401 - its argument
    return part


def _ahead(view: View, filters: Filters, columns: Sequence[str], then: Callable[[pa.Table], Any]) -> Iterator[Any]:
    """Yield lists of parts, one per segment, reading a few segments ahead; then those of the live tables."""
    jobs: deque[Future[list[Any]]] = deque()
    pool = ThreadPoolExecutor(THREADS, "ray_messaging-log-scan")
    try:
        for segment in view.segments:
            if not _may_hold(segment, filters):
                continue
            jobs.append(pool.submit(_read, view.folder, segment, filters, columns, then))
            if len(jobs) > THREADS:
                yield jobs.popleft().result()
        while jobs:
            yield jobs.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    first = view.closed
    for table in view.live:
        seen = 0 if filters.after is None else min(len(table), max(0, filters.after + 1 - first))
        if seen < len(table):  # a follower asks often, and has seen nearly all rows
            part = _part_of(table.slice(seen), first + seen, filters, columns)
            if part is not None:
                yield [then(part)]
        first += len(table)


def _may_hold(segment: Segment, filters: Filters) -> bool:
    return not (
        (filters.after is not None and segment.first_row + segment.rows <= filters.after + 1)
        or (filters.since is not None and segment.last_s is not None and _us(segment.last_s) < filters.since)
        or (filters.until is not None and segment.first_s is not None and _us(segment.first_s) >= filters.until)
    )


def _us(seconds: float) -> int:
    return round(seconds * MICROSECONDS)


def _read(
    folder: Folder, segment: Segment, filters: Filters, columns: Sequence[str], then: Callable[[pa.Table], T]
) -> list[T]:
    """Read one segment's hits, row group by row group."""
    found: list[T] = []
    file = folder.open(segment)
    try:
        first, left = segment.first_row, filters.limit
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            part = None
            if (filters.after is None or first + rows > filters.after + 1) and may_match(file, group, filters):
                part = _part_of_group(file, group, first, filters, columns)
            first += rows
            if part is None:
                continue
            found.append(then(part))
            if left is not None:
                left -= len(part)
                if left <= 0:
                    break
    except (OSError, pa.ArrowInvalid) as error:
        raise LogError(
            f"segment {segment.path} of the event log cannot be read: {error}; if it is damaged, move it away: the "
            "other segments stay readable",
            path=segment.path,
        ) from error
    finally:
        file.close(force=True)
    return found


def _part_of_group(
    file: pq.ParquetFile, group: int, first: int, filters: Filters, columns: Sequence[str]
) -> pa.Table | None:
    """Read one row group's hits: first the filtered columns, then the others."""
    filtered = filters.columns
    first_columns = _columns_of_group(file, group, filtered) if filtered else None
    hits = None if first_columns is None else _hits(first_columns, first, filters)
    if hits is not None and not len(hits):
        return None
    others = [name for name in columns if name not in filtered]
    rest = _columns_of_group(file, group, others)
    return _select_hits(
        rest if first_columns is None else _join_columns(first_columns, rest), columns, hits, first, filters
    )


def _columns_of_group(file: pq.ParquetFile, group: int, columns: Sequence[str]) -> pa.Table:
    """Read columns of a row group; one that the file's schema lacks has only nulls."""
    table = file.read_row_group(group, columns=list(columns), use_threads=False)
    for name in columns:
        if name not in table.column_names:
            table = table.append_column(SCHEMA.field(name), pa.nulls(len(table), SCHEMA.field(name).type))
    return table


def _part_of(table: pa.Table, first: int, filters: Filters, columns: Sequence[str]) -> pa.Table | None:
    """Return the hits of a table in memory."""
    hits = _hits(table, first, filters) if filters.columns else None
    if hits is not None and not len(hits):
        return None
    return _select_hits(table, columns, hits, first, filters)


def _hits(table: pa.Table, first: int, filters: Filters) -> Any:  # noqa: ANN401 - row numbers (n,)
    mask = filters.mask(table)
    hits = np.arange(len(table)) if mask is None else np.flatnonzero(mask)
    if filters.after is not None:
        hits = hits[np.searchsorted(hits, filters.after + 1 - first) :]
    return hits if filters.limit is None else hits[: filters.limit]


def _select_hits(
    table: pa.Table,
    columns: Sequence[str],
    hits: Any,  # noqa: ANN401 - as `_hits`
    first: int,
    filters: Filters,
) -> pa.Table | None:
    table = table.select(list(columns))
    if hits is None:  # filtered by position only
        start = 0 if filters.after is None else min(len(table), max(0, filters.after + 1 - first))
        table = table.slice(start, filters.limit)
        if not len(table):
            return None
        positions = pa.array(np.arange(first + start, first + start + len(table)))
    else:
        if len(hits) < len(table):
            table = table.take(pa.array(hits))
        positions = pa.array(hits + first)
    return table.append_column(POSITION, positions)


def _join_columns(left: pa.Table, right: pa.Table) -> pa.Table:
    for name in right.column_names:
        left = left.append_column(right.schema.field(name), right[name])
    return left
