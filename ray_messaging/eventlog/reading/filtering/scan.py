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
from numpy.typing import NDArray

from ray_messaging.errors import LogError
from ray_messaging.eventlog.folder import Folder, Segment
from ray_messaging.eventlog.reading.filtering.fields import MICROSECONDS
from ray_messaging.eventlog.reading.filtering.filters import Filters
from ray_messaging.eventlog.reading.filtering.pruning import may_match
from ray_messaging.eventlog.reading.filtering.stored_columns import completed, needed_of, unified
from ray_messaging.eventlog.schema import POSITION

THREADS = min(8, os.cpu_count() or 1)

T = TypeVar("T")
Positions = NDArray[np.int64]


class View(NamedTuple):
    """The data of a query: closed segments, and tables of the later rows.

    The tables are in order, unless each has positions (see `schema`).
    """

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
    if parts := _live(view, filters, columns):
        yield [then(part) for part in parts]


def schemas(view: View, filters: Filters) -> Iterator[pa.Schema]:
    """Yield the schemas of the files and tables that may have matching rows."""
    for segment in view.segments:
        if _may_hold(segment, filters):
            for path in segment.files:
                with view.folder.open(segment, path) as file:
                    yield file.schema_arrow
    yield from (table.schema for table in view.live)


def _live(view: View, filters: Filters, columns: Sequence[str]) -> list[pa.Table]:
    """Return the hits of the tables in memory."""
    parts, first = [], view.closed
    for table in view.live:
        if POSITION.name in table.column_names:
            parts.append(_part_of(table, table[POSITION.name].to_numpy(), filters, columns))
        else:
            seen = 0 if filters.after is None else min(len(table), max(0, filters.after + 1 - first))
            if seen < len(table):  # a follower asks often, and has seen nearly all rows
                rows = np.arange(first + seen, first + len(table))
                parts.append(_part_of(table.slice(seen), rows, filters, columns))
        first += len(table)
    return _in_order([part for part in parts if part is not None], filters.limit)


def _in_order(parts: list[pa.Table], limit: int | None) -> list[pa.Table]:
    """Return the first rows of parts in log order: joined, where one begins before another ends."""
    if limit is not None and sum(map(len, parts)) > limit:  # before they get the types of rows that are cut off
        last = np.sort(np.concatenate([part[POSITION.name].to_numpy() for part in parts]))[limit - 1]
        kept = [int(np.searchsorted(part[POSITION.name].to_numpy(), last, "right")) for part in parts]
        parts = [part.slice(0, rows) for part, rows in zip(parts, kept, strict=True) if rows]
    ends = [(part[POSITION.name][0].as_py(), part[POSITION.name][-1].as_py()) for part in parts]
    if all(low > high for (low, _), (_, high) in zip(ends[1:], ends, strict=False)):
        return parts
    joined = unified(parts).unify_dictionaries()
    return [joined.take(pa.array(np.argsort(joined[POSITION.name].to_numpy())))]


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
    if not segment.others:
        rows = iter(_read_file(folder, segment, segment.path, filters, columns))
        return [then(part) for part in _up_to(filters.limit, rows)]
    parts = [part for path in segment.files for part in _read_file(folder, segment, path, filters, columns)]
    return [then(part) for part in _in_order(parts, filters.limit)]


def _up_to(limit: int | None, parts: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yield parts until they have so many rows."""
    for part in parts:
        yield part
        if limit is not None:
            limit -= len(part)
            if limit <= 0:
                return


def _read_file(
    folder: Folder, segment: Segment, path: str, filters: Filters, columns: Sequence[str]
) -> Iterator[pa.Table]:
    """Yield the hits of one file of a segment, row group by row group."""
    file = folder.open(segment, path)
    try:
        first = segment.first_row
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            part = None
            unseen = bool(segment.others) or filters.after is None or first + rows > filters.after + 1
            if unseen and may_match(file, group, filters):
                part = _part_of_group(file, group, first, filters, columns)
            first += rows
            if part is not None:
                yield part
    except (OSError, pa.ArrowInvalid) as error:
        raise LogError(
            f"segment {path} of the event log cannot be read: {error}; if it is damaged, move it away: the "
            "other segments stay readable",
            path=path,
        ) from error
    finally:
        file.close(force=True)


def _part_of_group(
    file: pq.ParquetFile, group: int, first: int, filters: Filters, columns: Sequence[str]
) -> pa.Table | None:
    """Read one row group's hits: first the filtered columns, then the others."""
    there = file.schema_arrow.names
    filtered = needed_of(filters.columns, there)
    if POSITION.name in there:
        filtered.append(POSITION.name)
    table = file.read_row_group(group, columns=filtered, use_threads=False)
    rows = file.metadata.row_group(group).num_rows
    positions = table[POSITION.name].to_numpy() if POSITION.name in there else np.arange(first, first + rows)
    hits = _hits(table, positions, filters)
    if hits is not None and not len(hits):
        return None
    others = [name for name in needed_of(columns, there) if name not in filtered]
    if others:
        rest = file.read_row_group(group, columns=others, use_threads=False)
        table = _join_columns(table, rest) if filtered else rest
    return _select_hits(table, columns, hits, positions)


def _part_of(table: pa.Table, positions: Positions, filters: Filters, columns: Sequence[str]) -> pa.Table | None:
    """Return the hits of a table in memory."""
    hits = _hits(table, positions, filters)
    if hits is not None and not len(hits):
        return None
    return _select_hits(table, columns, hits, positions)


def _hits(table: pa.Table, positions: Positions, filters: Filters) -> Positions | None:
    """Return the numbers of the rows that match; None: all do, and there are some."""
    if not len(positions):
        return positions
    mask = filters.mask(completed(table, filters.columns)) if filters.columns else None
    if mask is None and filters.limit is None and (filters.after is None or positions[0] > filters.after):
        return None
    hits = np.arange(len(positions)) if mask is None else np.flatnonzero(mask)
    if filters.after is not None:
        hits = hits[np.searchsorted(positions[hits], filters.after + 1) :]
    return hits if filters.limit is None else hits[: filters.limit]


def _select_hits(table: pa.Table, columns: Sequence[str], hits: Positions | None, positions: Positions) -> pa.Table:
    if hits is not None and len(hits) < len(positions):
        needed = table.select(needed_of(columns, table.column_names))
        low, high = int(hits[0]), int(hits[-1]) + 1
        adjoin = high - low == len(hits)
        table = needed.slice(low, len(hits)) if adjoin else needed.take(pa.array(hits))
        positions = positions[hits]
    return completed(table, columns).append_column(POSITION, pa.array(positions))


def _join_columns(left: pa.Table, right: pa.Table) -> pa.Table:
    for name in right.column_names:
        left = left.append_column(right.schema.field(name), right[name])
    return left
