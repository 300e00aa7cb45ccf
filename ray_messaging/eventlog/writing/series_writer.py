"""Writer of an experiment's series into the folder of its event log."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ray_messaging.common.tables import with_exact_integers
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.series import joined, read_series, series_table
from ray_messaging.eventlog.writing.segment_store import SegmentStore
from ray_messaging.transports.step_values import SeriesEntry
from ray_messaging.transports.steps import RedisSteps

FILE_BYTES = 8 * 2**20  # so much is collected before a file is written


class SeriesWriter:
    """Writer of series, once their steps are sealed.

    Args: `segments` writes the folder's other files; `retry` repeats a call while the server is away.
    """

    def __init__(
        self,
        store: RedisSteps,
        folder: Folder,
        segments: SegmentStore,
        retry: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]],
    ) -> None:
        self._store = store
        self._folder = folder
        self._segments = segments
        self._retry = retry
        self._lock = asyncio.Lock()
        self._born = ""
        self._written = -1  # the last step in a file

    async def begin(self) -> None:
        """Go on after the files of an earlier writer; raise LogError if the folder cannot be read."""
        self._born = await self._retry(partial(self._store.series_born, f"{time.time_ns() // 10**6:013d}"))
        files = await asyncio.to_thread(self._folder.series_files, self._born)
        self._written = int(files[-1].rpartition("-")[2].removesuffix(".parquet")) if files else -1

    async def write(self, through: int, *, least: int = 1) -> None:
        """Write what was collected in the steps up to `through` into a file, if it has at least so many bytes.

        Raises: as `SegmentStore.store`.
        """
        if await self._retry(self._store.series_bytes) < least:
            return
        async with self._lock:
            entries = await self._entries(through)
            new = [entry for entry in entries if entry.step > self._written]  # the others were not dropped in time
            if new:
                await self._segments.write_beside(partial(self._write, new))
                self._written = max(entry.step for entry in new)
            await self._retry(partial(self._store.drop_series, entries))

    async def table(self, through: int) -> pa.Table:
        """Return the series up to a step, also what is in no file yet."""
        async with self._lock:
            entries = [entry for entry in await self._entries(through) if entry.step > self._written]
            return await asyncio.to_thread(self._table, entries)

    async def _entries(self, through: int) -> list[SeriesEntry]:
        found: list[SeriesEntry] = await self._retry(partial(self._store.series, through))
        return found

    def _table(self, entries: Sequence[SeriesEntry]) -> pa.Table:
        return joined([read_series(self._folder, self._born), series_table(entries)])

    def _write(self, entries: Sequence[SeriesEntry]) -> None:
        steps = {entry.step for entry in entries}
        sink = pa.BufferOutputStream()
        pq.write_table(with_exact_integers(series_table(entries)), sink, compression="zstd")
        self._folder.write_series(self._born, min(steps), max(steps), sink.getvalue())
