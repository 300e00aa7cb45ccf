"""Writer of what groups collect in steps into the folder of an experiment's event log."""

import time
from collections.abc import Callable, Sequence
from functools import partial

import pyarrow as pa

from ray_messaging.eventlog.calls import calls_file, calls_table
from ray_messaging.eventlog.collected import Unwritten
from ray_messaging.eventlog.series import series_file, series_table
from ray_messaging.eventlog.writing.segment_store import SegmentStore
from ray_messaging.eventlog.writing.stream_reader import StreamReader
from ray_messaging.transports.step_values import Collected, Kind

FILE_BYTES = 8 * 2**20  # so much is collected before files are written


class CollectedWriter:
    """Writer of series and remembered calls, once their steps are sealed, beside the files that `segments` writes."""

    def __init__(self, reader: StreamReader, segments: SegmentStore) -> None:
        self._store = reader.transport.steps
        self._folder = reader.folder
        self._retry = reader.retry
        self._segments = segments
        self._born = ""

    async def begin(self) -> None:
        """Learn since when the server counts the steps."""
        self._born = await self._retry(partial(self._store.collected_born, f"{time.time_ns() // 10**6:013d}"))

    async def write(self, through: int, *, least: int = 1) -> None:
        """Write what was collected up to a step, if it has `least` bytes or more. Raises as `SegmentStore.store`."""
        if await self._retry(self._store.collected_bytes) < least:
            return
        found = await self.unwritten(through)
        if found.entries:
            await self._segments.write_beside(partial(self._write, found))
            await self._retry(partial(self._store.drop_collected, found.entries))

    async def unwritten(self, through: int) -> Unwritten:
        """Return what the server has of the steps up to `through`."""
        return Unwritten(self._born, await self._retry(partial(self._store.collected, through)))

    def _write(self, found: Unwritten) -> None:
        for kind, encode in _FILES.items():
            _, new = found.beside_files(self._folder, kind)  # the others were not dropped in time
            if new:
                steps = {entry.step for entry in new}
                self._folder.write_collected(kind, self._born, min(steps), max(steps), encode(new))


_FILES: dict[Kind, Callable[[Sequence[Collected]], pa.Buffer]] = {
    Kind.SERIES: lambda entries: series_file(series_table(entries)),
    Kind.CALLS: lambda entries: calls_file(calls_table(entries)),
}
