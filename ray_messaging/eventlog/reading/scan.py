"""Scan of the log for the rows that match a query.

`pyarrow.dataset` skips row groups that cannot match, filters rows, and reads in threads.

If few rows match, the filtered columns are read first, and the other columns only for row groups with matching rows.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from ray_messaging.errors import InvalidQuery, LogError
from ray_messaging.eventlog.collected import NOTHING, Unwritten
from ray_messaging.eventlog.folder import Folder, Segment
from ray_messaging.eventlog.log_schema import (
    KINDS,
    POSITION,
    ROW_GROUP_ROWS,
    TEXT,
    channel_head,
    typed_names,
    with_positions,
)
from ray_messaging.eventlog.reading.filters import MICROSECONDS, Filters
from ray_messaging.eventlog.reading.results import field_of, is_there, stored_column, texts_of

T = TypeVar("T")
_THREADS = min(8, os.cpu_count() or 1)
_AHEAD: dict[str, Any] = {"batch_size": ROW_GROUP_ROWS, "batch_readahead": 2, "fragment_readahead": 1}
_FORMAT = ds.ParquetFileFormat(  # `pre_buffer=False` keeps a reader from buffering whole files in memory
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True, pre_buffer=False)
)

# The limit that `time_limit` has set for this context: its seconds, and the monotonic time at which they are over.
_limit: ContextVar[tuple[float, float] | None] = ContextVar("limit", default=None)


@contextmanager
def time_limit(limit_s: float) -> Iterator[None]:
    """Let scans in the `with` block raise InvalidQuery once `limit_s` seconds have passed."""
    token = _limit.set((limit_s, time.monotonic() + limit_s))
    try:
        yield
    finally:
        _limit.reset(token)


def _check_time() -> None:
    limit = _limit.get()
    if limit is not None and time.monotonic() > limit[1]:
        raise InvalidQuery(
            f"reading the log took longer than {limit[0]:g} s: ask about fewer messages or steps",
            field="timeout_s",
            value=limit[0],
        )


class View(NamedTuple):
    """The data that a query reads: the log's files, and rows and collected data that are in no file yet."""

    folder: Folder
    segments: Sequence[Segment]
    live: Sequence[pa.Table] = ()
    collected: Unwritten = NOTHING

    @property
    def closed(self) -> int:
        """Return the position after the last row that is in a file."""
        return self.segments[-1].first_row + self.segments[-1].rows if self.segments else 0

    @property
    def end(self) -> int:
        """Return the position after the last row."""
        return self.closed + sum(map(len, self.live))


def scan(
    view: View, filters: Filters, columns: Sequence[str], *, text: bool = False, raw: bool = False
) -> Iterator[pa.Table]:
    """Yield the matching rows, part by part in log order, as tables of `columns` and `position`. No table is empty.

    If `columns` include the payload, the tables also have the columns of typed payloads.

    Args:
        text: Return typed payloads as JSON text instead.
        raw: If there is no limit, leave texts dictionary-encoded, and leave `position` out.

    Raises: LogError with the path of a damaged file.
    """
    left = filters.limit
    if left == 0:
        return
    raw = raw and left is None
    reader = _Reader(view.folder, filters, columns if raw else [*columns, POSITION.name], text=text, raw=raw)
    for dataset in datasets(view, filters):
        for part in reader.parts(dataset):
            yield part.slice(0, left)
            if left is not None and (left := left - len(part)) <= 0:
                return


def in_threads(then: Callable[[pa.Table], T], parts: Iterable[pa.Table]) -> Iterator[T]:
    """Yield `then(part)` for each part, in order. The calls run in threads, a few at a time."""
    waiting: deque[Future[T]] = deque()
    with ThreadPoolExecutor(_THREADS, "ray_messaging-log-scan") as pool:
        for part in parts:
            waiting.append(pool.submit(then, part))
            if len(waiting) > _THREADS:
                yield waiting.popleft().result()
        yield from (found.result() for found in waiting)


def has_names(view: View, filters: Filters) -> bool:
    """Return whether any matching row has a str id."""
    names = ["from_name", "to_name"]
    return any(part[name].null_count < len(part) for part in scan(view, filters, names, raw=True) for name in names)


def schemas(view: View, filters: Filters) -> Iterator[pa.Schema]:
    """Yield the schemas of those files, and of those tables of rows in no file yet, that may have matching rows."""
    return (dataset.schema for dataset in datasets(view, filters))


def datasets(view: View, filters: Filters) -> Iterator[ds.Dataset]:
    """Yield datasets: each file of the log that may match, then the tables of rows that are in no file yet.

    There is a dataset for each file, because a dataset of several files would read files before they are needed.
    """
    for segment in view.segments:
        _check_time()
        if _may_hold(segment, filters):
            yield _file(view.folder, segment.path)
    first_row = view.closed
    for table in view.live:
        yield ds.dataset(with_positions(table, first_row))
        first_row += len(table)


def _may_hold(segment: Segment, filters: Filters) -> bool:
    return not (
        (filters.after is not None and segment.first_row + segment.rows <= filters.after + 1)
        or (filters.since is not None and segment.last_s is not None and _us(segment.last_s) < filters.since)
        or (filters.until is not None and segment.first_s is not None and _us(segment.first_s) >= filters.until)
    )


def _us(seconds: float) -> int:
    return round(seconds * MICROSECONDS)


def _file(folder: Folder, path: str) -> ds.FileSystemDataset:
    """Return the rows of a file as a dataset. All columns are nullable, so that files do not differ in this."""
    fragment = _FORMAT.make_fragment(path, folder.filesystem)
    try:
        found, facts = fragment.physical_schema, fragment.metadata
    except (OSError, pa.ArrowInvalid) as error:
        raise folder.damaged(path, error) from error
    schema = pa.schema([field.with_nullable(True) for field in found], channel_head(facts))
    return ds.FileSystemDataset([fragment], schema, _FORMAT, folder.filesystem)


class _Reader:
    """Reader of the rows that match the filters. It reads one dataset at a time."""

    def __init__(self, folder: Folder, filters: Filters, columns: Sequence[str], *, text: bool, raw: bool) -> None:
        self._folder, self._filters, self._columns = folder, filters, columns
        self._text, self._raw = text, raw
        self._sparse = filters.select or filters.limit is not None  # True: some row groups may have no matching rows

    def parts(self, dataset: ds.Dataset) -> Iterator[pa.Table]:
        """Yield the matching rows of a dataset."""
        schema, condition = dataset.schema, self._filters.condition(dataset.schema)
        try:
            if self._sparse and isinstance(dataset, ds.FileSystemDataset):
                found = self._with_hits(dataset, condition)
                if found is None:
                    return
                dataset = found
            needed = self._needed(schema)
            columns = {name: self._column(name, schema) for name in needed if is_there(name, schema)}
            scanner = dataset.scanner(columns=columns, filter=condition, **_AHEAD)
            kinds = scanner.projected_schema
            fields = pa.schema([field_of(name, kinds.field(name).type if name in columns else None) for name in needed])
            for batch in scanner.to_batches():
                _check_time()
                if not (rows := batch.num_rows):
                    continue
                found = [batch[each.name] if each.name in columns else pa.nulls(rows, each.type) for each in fields]
                part = self._finished(pa.Table.from_arrays(found, schema=fields))
                if len(part):
                    yield part
        except (OSError, pa.ArrowInvalid) as error:
            raise damaged_file(self._folder, [dataset]) or error from error

    def _column(self, name: str, schema: pa.Schema) -> pc.Expression:
        column = stored_column(name, schema)
        named = name in schema.names and pa.types.is_dictionary(schema.field(name).type)
        return column.cast(pa.string()) if named and not self._raw else column

    def _with_hits(self, dataset: ds.FileSystemDataset, condition: pc.Expression | None) -> ds.FileSystemDataset | None:
        """Return a dataset of only the row groups that have rows that meet the condition, or None if no row meets it.

        If the filters have a limit, row groups after the last row that is needed may be left out. To find the row
        groups, only `position` and the columns that the condition uses are read. If the file does not record the
        positions of its row groups, the whole dataset is returned.
        """
        (file,) = dataset.get_fragments()
        some = file if condition is None else file.subset(condition, schema=dataset.schema)
        if not some.num_row_groups:
            return None
        named = {*groups_with(file, self._filters.texts(dataset.schema))}
        some = file.subset(row_group_ids=[group.id for group in some.row_groups if group.id in named])
        if not some.num_row_groups:
            return None
        scanner = some.scanner(dataset.schema, columns=[POSITION.name], filter=condition, **_AHEAD)
        # `condition` ignores `contains` for typed payloads, so a row that meets the condition may not match after all.
        whole = self._filters.contains is None or not typed_names(dataset.schema.names)
        limit = self._filters.limit if whole else None
        hits = (scanner.to_table() if limit is None else scanner.head(limit))[POSITION.name].to_numpy()
        if not len(hits):
            return None
        groups = [*_groups(file)]
        firsts = [first for _, first in groups if first is not None]
        if len(firsts) < len(groups):
            return dataset
        found = [groups[place][0] for place in np.unique(np.searchsorted(firsts, hits, "right") - 1)]
        self._sparse = self._filters.limit is not None or len(found) < len(groups) / 2
        fragment = file.subset(row_group_ids=found)
        return ds.FileSystemDataset([fragment], dataset.schema, dataset.format, dataset.filesystem)

    def _needed(self, schema: pa.Schema) -> list[str]:
        """Return the names of the columns to read from a file with this schema.

        Payload columns are included if the result has payloads, or if the filter `contains` searches typed payloads.
        """
        typed, searched = typed_names(schema.names), self._filters.contains is not None
        of_payloads = typed if searched or TEXT in self._columns else []
        if typed and (searched or self._text):
            of_payloads = [*typed, *(name for name in (TEXT, KINDS) if name in schema.names)]
        ends = [name for name in self._columns if name == POSITION.name]
        return list(dict.fromkeys([*(name for name in self._columns if name not in ends), *of_payloads, *ends]))

    def _finished(self, part: pa.Table) -> pa.Table:
        """Return those rows whose payloads match `contains`, with the payload columns that the result needs."""
        typed, contains = typed_names(part.column_names), self._filters.contains
        if typed and (self._text or contains is not None):
            texts = texts_of(part)
            if contains is not None:
                hits = pc.match_substring(texts, contains)
                part, texts = part.filter(hits), texts.filter(hits)
            if self._text and TEXT in self._columns:
                part = part.set_column(part.column_names.index(TEXT), field_of(TEXT), texts)
            shown = typed if TEXT in self._columns and not self._text else []
            part = part.select([name for name in part.column_names if name in self._columns or name in shown])
        return part


def groups_with(file: ds.ParquetFileFragment, wanted: Mapping[str, Sequence[str]]) -> list[int]:
    """Return the row groups of a Parquet file that may have a wanted text in each column of `wanted`.

    The groups' statistics are read here, because Arrow ignores the statistics of dictionary columns.
    """
    footer, groups = file.metadata, []
    if not wanted:
        return [*range(footer.num_row_groups)]
    for place in range(footer.num_row_groups):
        group = footer.row_group(place)
        known = {(column := group.column(at)).path_in_schema: column.statistics for at in range(group.num_columns)}
        ranges = {name: found for name in wanted if (found := known.get(name)) is not None and found.has_min_max}
        if all(any(found.min <= text <= found.max for text in wanted[name]) for name, found in ranges.items()):
            groups.append(place)
    return groups


def _groups(file: ds.ParquetFileFragment) -> Iterator[tuple[int, int | None]]:
    """Yield the number of each row group that has rows, and the position of its first row.

    The position is None if the statistics do not have it.
    """
    footer = file.metadata
    for place in range(footer.num_row_groups):
        group = footer.row_group(place)
        if group.num_rows:
            column = group.column(footer.num_columns - 1)
            known = column.path_in_schema == POSITION.name and column.is_stats_set
            yield place, column.statistics.min if known else None


def damaged_file(folder: Folder, parts: Iterable[ds.Dataset]) -> LogError | None:
    """Return the error for the first file that cannot be read, or None if all files can be read."""
    for file in (file for part in parts for file in part.get_fragments() if isinstance(file, ds.FileFragment)):
        try:
            for _ in file.scanner().to_batches():
                pass
        except (OSError, pa.ArrowInvalid) as error:
            return folder.damaged(file.path, error)
    return None
