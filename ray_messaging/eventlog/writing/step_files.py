"""Writers of checkpoints, and of files with collected data, beside the event log of an experiment with steps."""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

import pyarrow as pa

from ray_messaging.default_limits_and_leases import STEP_NEWS_TIMEOUT_S
from ray_messaging.eventlog.call_rows import calls_file, calls_table
from ray_messaging.eventlog.checkpoint_files import write_checkpoint
from ray_messaging.eventlog.collected import Unwritten
from ray_messaging.eventlog.series_tables import series_file, series_table
from ray_messaging.eventlog.writing.segment_store import SegmentStore
from ray_messaging.eventlog.writing.step_rows import StepFeed
from ray_messaging.eventlog.writing.stream_reader import StreamReader
from ray_messaging.transports.step_values import CHECKPOINT, Collected, CollectedKind, Progress

FILE_BYTES = 8 * 2**20  # collected data are written to a file when they have this many bytes


class CollectedWriter:
    """Writer of files with the data of `collect=` and `me.remember`, for the steps whose rows are in the log."""

    def __init__(self, reader: StreamReader, segments: SegmentStore, feed: StepFeed) -> None:
        self._feed = feed
        self._store = reader.transport.steps
        self._folder = reader.folder
        self._retry = reader.retry
        self._segments = segments
        self._born = ""

    async def begin(self) -> None:
        """Ask the server when it began to count the steps, because that time is part of the files' names."""
        self._born = await self._retry(partial(self._store.collected_born, f"{time.time_ns() // 10**6:013d}"))

    async def write(self, *, least: int = 1) -> None:
        """Write the collected data to files, if they have `least` bytes or more.

        Raises: Fenced if there is a newer writer; LogError if a write still fails after `SegmentStore.stop_retrying`.
        """
        if await self._retry(self._store.collected_bytes) < least:
            return
        found = await self.unwritten()
        if found.entries:
            await self._segments.write_beside(partial(self._write, found))
            await self._retry(partial(self._store.drop_collected, found.entries))

    async def unwritten(self) -> Unwritten:
        """Return the collected data that the server still has, of the steps whose rows are in the log."""
        return Unwritten(self._born, await self._retry(partial(self._store.collected, self._feed.position.handled)))

    def _write(self, found: Unwritten) -> None:
        for kind, encode in _FILES.items():
            # `beyond` leaves out the entries that are already in files, but not yet deleted on the server.
            new = found.beyond(kind, self._folder.collected_files(kind, self._born))
            if new:
                steps = {entry.step for entry in new}
                span, epoch = (min(steps), max(steps)), self._segments.epoch
                self._folder.write_collected(kind, self._born, span, encode(new), epoch=epoch)


_FILES: dict[CollectedKind, Callable[[Sequence[Collected]], pa.Buffer]] = {
    CollectedKind.SERIES: lambda entries: series_file(series_table(entries)),
    CollectedKind.CALLS: lambda entries: calls_file(calls_table(entries)),
}


class CheckpointWriter:
    """Task that writes checkpoints: after each `every` steps, it copies all data of the experiment to a file.

    No step begins while the data are copied. Steps go on while the file is written. `segments` writes the files under
    the folder's lock.
    """

    def __init__(self, reader: StreamReader, every: int, segments: SegmentStore) -> None:
        self._transport = reader.transport
        self._store = reader.transport.steps
        self._folder = reader.folder
        self._retry = reader.retry
        self._every = every
        self._segments = segments
        self._next = -1  # the step after which data are copied next
        self._written = -1  # the last step whose checkpoint has a file

    async def begin(self) -> None:
        """Choose the step after which data are copied next. The server begins no later step before the copy is made."""
        progress = await self._retry(self._store.progress)
        self._written = max(await asyncio.to_thread(self._folder.checkpoints), default=-1)
        # An earlier writer may have stopped the groups after the latest step, and died before it wrote the checkpoint.
        # So the latest step may be chosen too, unless its checkpoint has a file.
        done = progress.latest == progress.sealed <= self._written
        await self._hold(self._after(progress.latest if done else progress.latest - 1))

    def _after(self, step: int) -> int:
        return (step + 1) // self._every * self._every + self._every - 1

    async def _hold(self, step: int) -> None:
        self._next = step
        await self._retry(partial(self._store.hold, CHECKPOINT, step))

    async def run(self) -> None:
        """Take checkpoints until cancelled.

        Raises: Fenced if there is a newer writer; LogError if a write still fails after `SegmentStore.stop_retrying`.
        """
        while True:
            progress = await self._retry(self._store.progress)
            if progress.sealed >= self._next:
                await self._take(progress)
            # After a failover, the server may lack the request to stop after step `_next`, so the request is repeated.
            elif progress.holds.get(CHECKPOINT) != self._next:
                await self._hold(self._next)
            else:
                await self._retry(partial(self._store.wait, progress.news, STEP_NEWS_TIMEOUT_S))

    async def end(self) -> None:
        """Take the last checkpoint, if no step is open, and let steps begin without further checkpoints."""
        progress = await self._retry(self._store.progress)
        if progress.latest == progress.sealed > self._written:
            await self._take(progress)
        await self._retry(partial(self._store.drop_hold, CHECKPOINT))

    async def _take(self, progress: Progress) -> None:
        step = progress.sealed
        copied = await self._retry(partial(self._transport.checkpoints.read, step))
        await self._hold(self._after(step))
        await self._segments.write_beside(partial(write_checkpoint, self._folder, step, copied))
        self._written = step
