"""The series of a run: tables of what groups have collected, and their files in the folder of the event log.

The files are `_series/{first step}-{last step}.parquet`, one behind the other. Each is complete or absent. Their folder
has an underscore, because programs that read the log's folder as one table skip such names.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ray_messaging.common.tables import with_exact_integers
from ray_messaging.eventlog.folder import Folder
from ray_messaging.model.series import AGENT, AGENT_NAME, STEP, StepSeries, decode_series, merged
from ray_messaging.transports.step_values import SeriesEntry
from ray_messaging.transports.steps import RedisSteps

FILE_BYTES = 8 * 2**20  # so much is collected before a file is written

_EMPTY = pa.table({STEP: pa.array([], pa.int64())})


def series_table(entries: Sequence[SeriesEntry]) -> pa.Table:
    """Return what all groups have collected in some steps, by step and agent, ints before strs."""
    if not entries:
        return _EMPTY
    ordered = sorted(entries, key=lambda entry: entry.step)
    by_step = {
        step: [decode_series(each.data) for each in some] for step, some in groupby(ordered, lambda each: each.step)
    }
    if all(part.agents is None for parts in by_step.values() for part in parts):
        rows = [{STEP: step} | merged(parts) for step, parts in by_step.items()]
        return pa.table(
            {name: [row.get(name, 0) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}
        )
    return _joined([_rows(step, parts) for step, parts in by_step.items()])


def _rows(step: int, parts: Sequence[StepSeries]) -> pa.Table:
    ids = [agent for part in parts if part.agents is not None for agent in part.agents.tolist()]
    order = sorted(range(len(ids)), key=lambda place: (isinstance(ids[place], str), ids[place]))
    agents = [ids[place] for place in order]
    columns = {
        STEP: pa.array(np.full(len(ids), step)),
        AGENT: pa.array([None if isinstance(agent, str) else agent for agent in agents], pa.int64()),
    }
    if any(isinstance(agent, str) for agent in agents):
        columns[AGENT_NAME] = pa.array([agent if isinstance(agent, str) else None for agent in agents], pa.string())
    places = np.array(order)
    for name, (kind, _) in parts[0].columns.items():
        values = [part.columns[name][1] for part in parts]
        joined = [text for some in values for text in some] if kind == "text" else np.concatenate(values)
        columns[name] = pa.array([joined[place] for place in order] if kind == "text" else joined[places])
    return pa.table(columns)


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Join tables of consecutive steps. A count that a table lacks is 0 there; ints beside floats become floats."""
    found = [table for table in tables if len(table)] or tables[:1] or [_EMPTY]
    whole = pa.concat_tables(found, promote_options="permissive")
    for place, field in enumerate(whole.schema):
        if field.name not in (AGENT, AGENT_NAME) and whole[place].null_count:
            whole = whole.set_column(place, field.name, whole[place].fill_null(0))
    return whole


def read_series(folder: Folder) -> pa.Table:
    """Return the series that are in files; raise LogError if one cannot be read."""
    return _joined([pq.read_table(pa.BufferReader(folder.read_small(name))) for name in folder.series_files()])


class SeriesWriter:
    """Writer of an experiment's series into the folder of its event log, once their steps are sealed.

    Args: `retry` repeats a call while the server is away.
    """

    def __init__(
        self, store: RedisSteps, folder: Folder, retry: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
    ) -> None:
        self._store = store
        self._folder = folder
        self._retry = retry
        self._lock = asyncio.Lock()

    async def write(self, through: int, *, least: int = 1) -> None:
        """Write what was collected in the steps up to `through` into a file, if it has at least so many bytes."""
        if await self._retry(self._store.series_bytes) < least:
            return
        async with self._lock:
            entries = await self._entries(through)
            written = await asyncio.to_thread(self._last_written)
            new = [entry for entry in entries if entry.step > written]  # a writer that died has written the others
            if new:
                await asyncio.to_thread(self._write, new)
            await self._retry(partial(self._store.drop_series, entries))

    async def table(self, through: int) -> pa.Table:
        """Return the series up to a step, also what is in no file yet."""
        async with self._lock:
            entries = await self._entries(through)
            return await asyncio.to_thread(self._table, entries)

    async def _entries(self, through: int) -> list[SeriesEntry]:
        found: list[SeriesEntry] = await self._retry(partial(self._store.series, through))
        return found

    def _table(self, entries: Sequence[SeriesEntry]) -> pa.Table:
        written = self._last_written()
        return _joined([read_series(self._folder), series_table([entry for entry in entries if entry.step > written])])

    def _last_written(self) -> int:
        return max(
            (int(name.split("-")[-1].removesuffix(".parquet")) for name in self._folder.series_files()), default=-1
        )

    def _write(self, entries: Sequence[SeriesEntry]) -> None:
        steps = {entry.step for entry in entries}
        sink = pa.BufferOutputStream()
        pq.write_table(with_exact_integers(series_table(entries)), sink, compression="zstd")
        self._folder.write_series(min(steps), max(steps), sink.getvalue())
