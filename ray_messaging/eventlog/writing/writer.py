"""Writer of the event log. It writes each message from the streams to a file exactly once, despite crashes."""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from ray_messaging.default_limits_and_leases import MAILBOX_BYTES, MAILBOX_MESSAGES
from ray_messaging.errors import Closed, Fenced, LogError, MessagingError
from ray_messaging.eventlog.collected import NOTHING, Unwritten
from ray_messaging.eventlog.folder import Folder, Segment, StepPosition
from ray_messaging.eventlog.writing.open_segment import (
    SEGMENT_AGE_S,
    SEGMENT_BYTES,
    SEGMENT_ROWS,
    OpenSegment,
    SegmentContent,
)
from ray_messaging.eventlog.writing.segment_store import SegmentStore
from ray_messaging.eventlog.writing.step_files import FILE_BYTES, CheckpointWriter, CollectedWriter
from ray_messaging.eventlog.writing.step_rows import StepFeed
from ray_messaging.eventlog.writing.stream_cursors import StreamCursors, Waiters
from ray_messaging.eventlog.writing.stream_reader import ReadAhead, StreamReader
from ray_messaging.transports.log_store import LogItem
from ray_messaging.transports.transport import RedisTransport
from ray_messaging.transports.transport_values import Limits

logger = logging.getLogger(__name__)

T = TypeVar("T")

# The limits of the log stream, which has blocked messages and log notes. A mailbox has the same limits.
LOG_LIMITS = Limits(MAILBOX_MESSAGES, MAILBOX_BYTES, lease_s=0.0, leased=False)

_BLOCK_S = 5.0
_GATHER_S = 0.02  # seconds for which single messages are collected, because even a batch of one costs 0.3 ms
_SAVE_S = 30.0  # seconds for which `close` tries to write rows of streams that the server has lost
# Sometimes a segment is saved early, so that steps can go on. If the segment has fewer rows than this, it stays open,
# and gets more rows.
_SAVED_ROWS = 2**16
_BUSY_S = 0.2  # how long a read blocks while a file is being written and the next file is due


async def _always_known() -> bool:
    """Return True: by this default check, any log on the server counts as the log of this run."""
    return True


class LogWriter:
    """Writer of one experiment's log into a folder while the experiment runs.

    Args: `run` is the id of this run of the experiment. `known` returns whether the server still knows the log of that
    run. `checkpoint` is the number of steps from one checkpoint to the next (None: there are no checkpoints). `crash`
    lets tests crash the writer: it is called at the points checked, staged, locked, renamed and written.
    """

    def __init__(
        self,
        transport: RedisTransport,
        folder: Folder,
        exp_id: str,
        *,
        run: str = "",
        known: Callable[[], Awaitable[bool]] = _always_known,
        limits: Limits = LOG_LIMITS,
        segment_rows: int = SEGMENT_ROWS,
        segment_bytes: int = SEGMENT_BYTES,
        segment_age_s: float = SEGMENT_AGE_S,
        checkpoint: int | None = None,
        crash: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.exp_id = exp_id
        self.folder = folder
        self.error: MessagingError | None = None  # the error that stopped the writer
        self._log = transport.log
        self._limits = limits
        self._segment_limits, self._segment_age_s = (segment_rows, segment_bytes), segment_age_s
        writer = f"{run}/{secrets.token_hex(8)}"
        self._segments = SegmentStore(
            self._log, folder, exp_id, writer=writer, known=known, crash=crash, on_trouble=self._fail_waiters
        )
        self._reader = StreamReader(transport, exp_id, folder, self._persist)
        self._streams = StreamCursors()
        self._read_ahead = ReadAhead(self._reader, self._streams)
        self._waiters = Waiters()
        self._transport = transport
        self._feed: StepFeed | None = None  # None: the experiment has no steps
        self._collected: CollectedWriter | None = None  # None: the experiment has no steps
        self._every = checkpoint
        self._checkpoints: CheckpointWriter | None = None  # None: no checkpoints are kept
        self._open = OpenSegment(1, 0)
        self._full: OpenSegment | None = None  # the previous segment, until its file is durable
        self._read_task: asyncio.Task[None] | None = None
        self._step_tasks: list[asyncio.Task[None]] = []
        self._write_task: asyncio.Task[None] | None = None
        self._closed = False
        self._blocked = 0  # the number of readers that wait until a file is written or read
        self._rotating = asyncio.Lock()

    async def start(self) -> None:
        """Register the log on the server, and continue after the last row that is in a file.

        Raises: LogError if the folder cannot be used; ConnectionFailed if the server cannot be reached.
        """
        await asyncio.to_thread(self.folder.prepare, self.exp_id)
        newest = await self._segments.take_over(await self._log.register(self._limits))
        if newest is not None:
            self._streams.cursors = dict(newest.cursors)
            self._streams.begun, self._reader.begun = dict(newest.begun), dict(newest.begun)
            self._streams.taken_before = dict(newest.taken)
            self._open = OpenSegment(newest.number + 1, newest.first_row + newest.rows)
        self._streams.update(*await self._reader.list_streams())
        await self._segments.resume(self._streams.taken())
        await self._begin_steps(None if newest is None else newest.steps)
        self._reader.started = self._segments.started = True
        self._read_task = self._spawn(self._read, "reader")

    async def _begin_steps(self, position: StepPosition | None) -> None:
        """Begin to read the experiment's steps, if it has any, after the steps that are already in the folder."""
        settings = await self._transport.steps.settings()
        if settings is None:
            return
        feed = StepFeed(self._reader, settings, self._take, self._waiters.notify)
        await feed.begin(position)
        self._collected = CollectedWriter(self._reader, self._segments, feed)
        await self._collected.begin()
        self._feed = feed
        self._step_tasks.append(self._spawn(self._follow_steps, "steps"))
        if self._every is not None:
            self._checkpoints = CheckpointWriter(self._reader, self._every, self._segments)
            await self._checkpoints.begin()
            self._step_tasks.append(self._spawn(self._checkpoints.run, "checkpoints"))

    async def close(self) -> None:
        """Write everything that is in the streams now, and stop. A second call is harmless.

        Rows that could not be written stay in the streams.

        Raises: LogError if the folder cannot be written, or if the server has lost the streams; ConnectionFailed if the
        server is away.
        """
        if self._closed or self._read_task is None:
            self._closed = True
            return
        stopped = self.error
        try:
            if stopped is None:
                await self.caught_up()
        except LogError as error:
            if not error.lost:  # a loss of data is reported below
                raise
        finally:
            await self._finish(self._read_task)
        # A loss of data is reported again here, even if it was reported before.
        reported = self.error is stopped and not self._segments.lost
        if self.error is not None and not reported and not isinstance(self.error, Fenced):
            raise self.error

    async def retire(self) -> None:
        """Close the writer, and unregister the log.

        From then on the server removes entries from streams without waiting for the log.
        """
        await self.close()
        if self.error is None:
            if self._collected is not None:
                await self._collected.write()
            if self._checkpoints is not None:
                await self._checkpoints.end()
            await self._log.unregister(self._segments.epoch)
            if self._feed is not None:
                await self._feed.end()

    # -- state ------------------------------------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        """Return the number of rows in the log, including rows that are not in a file yet."""
        return self._open.first_row + self._open.rows

    def snapshot(self) -> tuple[list[Segment], list[pa.Table], int]:
        """Return all rows of the log: closed files, tables of later rows, and how many rows the closed files have."""
        tables = [each.table() for each in self._unstored if each.rows]
        return [*self._segments.closed], tables, self._unstored[0].first_row

    @property
    def _unstored(self) -> list[OpenSegment]:
        """Return the segments whose rows are in no closed file.

        These are the full segment, while its file is being written, and then the open segment.
        """
        return [each for each in (self._full, self._open) if each is not None]

    async def caught_up(self) -> None:
        """Wait until the snapshot includes everything that is in the streams now.

        Raises: LogError while the folder cannot be written, or the error that stopped the writer.
        """
        self._check()
        await self._segments.check_owner()
        self._check()
        streams = await self._log.streams()
        ends = await self._log.ends([*streams.live, *streams.ended])
        self._check()
        goals = [partial(self._streams.reached, name, entry) for name, entry in ends.items()]
        await self._waiters.reach(goals if self._feed is None else [*goals, self._feed.ask()])

    async def wait_beyond(self, row: int, timeout_s: float) -> bool:
        """Wait until the log has more than `row` rows; return whether it has.

        Raises the error that stopped the writer.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while self.rows <= row:
                    self._check_alive()
                    await self._waiters.wait_change()
        except TimeoutError:
            return False
        return True

    def stats(self) -> dict[str, Any]:
        """Return how much is in the log, how many seconds it is behind, and what went wrong.

        `rows` counts the rows, and `segments` the closed files. `open_rows` and `open_bytes` are in no closed file yet.
        `lag_s` is how many seconds the log is behind. `error` is a text, or None if there is no error.
        """
        return {
            "rows": self.rows,
            "segments": len(self._segments.closed),
            "open_rows": sum(each.rows for each in self._unstored),
            "open_bytes": sum(each.nbytes for each in self._unstored),
            "lag_s": self._reader.behind_s(blocked=self._blocked > 0),
            "unreadable": self._reader.unreadable + (0 if self._feed is None else self._feed.unreadable),
            "missing": [*self._segments.missing],
            "write_s": self._segments.last_s,
            "lost": self._segments.lost,
            "error": str(self.error) if self.error is not None else self._segments.trouble or self._reader.away,
        }

    # -- reading ----------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            while self._read_ahead.pending or not self._segments.lost:
                items = await self._read_ahead.items(self._patience)
                await self._append(items)
                if self._read_ahead.little:
                    await self._waiters.pause(_GATHER_S)
                elif not items:
                    await self._reader.retry(self._segments.check_owner)
        finally:
            await self._read_ahead.close()
        await self._save_lost()

    async def _save_lost(self) -> None:
        """Write all rows that were read before the server lost the streams, record the loss, and stop."""
        await self._written()
        await self._store_rest()
        error = self._lost()
        await self._segments.note_missing(str(error))
        raise error

    async def _append(self, items: list[LogItem]) -> None:
        streams_changed = False
        async for done, rows in self._reader.chunks(items):
            # An entry without a frame says that a mailbox came or went.
            streams_changed |= any(not one.item.frame for one in done)
            await self._take(rows, partial(self._streams.move, done))
        if streams_changed:
            await self._reader.retry(self._segments.check_owner)
            # If the server has lost this run's streams, any streams that it has now belong to a newer run.
            if not self._segments.lost:
                self._streams.update(*await self._reader.list_streams())
        if self._open.age() >= self._segment_age_s and not self._busy and not self._rotating.locked():
            self._begin_file(closed=False)

    def _patience(self) -> float:
        if not self._open.waiting:
            return _BLOCK_S
        due = self._segment_age_s - self._open.age()
        return max(0.0, min(_BLOCK_S, max(due, _BUSY_S) if self._busy else due))

    async def _take(self, rows: pa.RecordBatch | None, move: Callable[[], bool], missing: str = "") -> None:
        """Add rows to the log, and begin to write a file if the segment is full or is needed in a file soon.

        Args: `rows` are rows of streams, or all rows of a step (None: there are none). `move` is called right after the
        rows are added. It records that the rows were read, and returns whether groups may soon have to wait until the
        rows are in a file. `missing` says which messages are missing among the rows ("": none).
        """
        for text in (*self._reader.hearers.lacking(), *([missing] if missing else ())):
            logger.error("the event log of %s is not complete: %s", self.exp_id, text)
            await self._segments.note_missing(text)
        if self._open.is_too_wide_for(rows):
            await self._save(closed=True)
        self._open.add(rows)
        soon = move()
        self._waiters.notify()
        if self._open.is_full(*self._segment_limits):
            await self._save(closed=True)
        elif soon:
            await self._save(closed=self._open.rows >= _SAVED_ROWS)

    # -- steps ------------------------------------------------------------------------------------------------------

    async def _follow_steps(self) -> None:
        assert self._feed is not None
        try:
            await self._feed.run()
        except MessagingError:
            await self._reader.retry(self._segments.check_owner)
            if not self._segments.lost:  # if the streams are lost, `_read` saves the rows
                raise

    # -- writing ----------------------------------------------------------------------------------------------------

    @property
    def _busy(self) -> bool:
        return self._write_task is not None and not self._write_task.done()

    async def _save(self, *, closed: bool) -> None:
        """Begin to write the open segment to a file, as soon as no other file is being written.

        With `closed`, later rows go into the next segment. Otherwise they go into this segment, and its file is
        replaced later.
        """
        async with self._rotating:
            if self._busy:
                self._blocked += 1
                try:
                    if self._segments.trouble is not None:
                        self._fail_waiters()
                    await self._written()
                finally:
                    self._blocked -= 1
            self._begin_file(closed=closed)

    def _begin_file(self, *, closed: bool) -> None:
        content = self._take_content(closed=closed)
        self._write_task = self._spawn(partial(self._store, content, closed=closed), "file")

    async def _persist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat a reader's call that reads or writes a file, until it succeeds.

        Raises: Fenced if there is a newer writer; LogError if a write still fails after `SegmentStore.stop_retrying`.
        """
        self._blocked += 1
        try:
            return await self._segments.retry(attempt)
        finally:
            self._blocked -= 1

    def _fail_waiters(self) -> None:
        if self._blocked:
            self._waiters.fail(self._stuck())

    def _take_content(self, *, closed: bool) -> SegmentContent:
        """Return all rows of the open segment, to be written. With `closed`, later rows go into the next segment."""
        content = self._open.content(self._streams, None if self._feed is None else self._feed.position)
        if closed:
            self._full, self._open = self._open, OpenSegment(content.number + 1, self.rows)
        return content

    async def _store(self, content: SegmentContent, *, closed: bool) -> None:
        # Entries may have no rows for the log. If all new entries are of this kind, no new file is needed: a writer
        # that starts again reads them again, and again gets no rows.
        segment = content.stored
        if segment is None and content.table is not None:
            segment = await self._segments.store(content)
        if closed and segment is not None:
            self._segments.append(segment)
            self._full = None
        elif segment is not None:
            self._open.stored = segment
        await self._segments.confirm(content.marks, content.finished)
        self._streams.drop(content.finished)
        if self._feed is not None and self._collected is not None and content.steps is not None:
            await self._feed.written(content.steps)
            await self._collected.write(least=FILE_BYTES)
        if not self._segments.lost:
            await self._segments.retry(self._reader.hearers.tidy)
        # Unused memory is released only if the segment is not full, so that few rows are coming. If many rows came, the
        # memory would be needed again at once.
        if not closed:
            await asyncio.to_thread(pa.default_memory_pool().release_unused)

    async def unwritten(self) -> Unwritten:
        """Return the data of `collect=` and `me.remember` that the server still has, for steps that are in the log."""
        return NOTHING if self._collected is None else await self._collected.unwritten()

    async def _written(self) -> None:
        """Wait until no file is being written."""
        if self._write_task is not None:
            await asyncio.wait([self._write_task])

    # -- the end ----------------------------------------------------------------------------------------------------

    async def _finish(self, reading: asyncio.Task[None]) -> None:
        self._closed = True
        self._segments.stop_retrying()
        if self._segments.lost:  # the reader has the only copy of the rows, and writes them
            await asyncio.wait([reading], timeout=_BLOCK_S + _SAVE_S)
        self._cancel_tasks()
        await asyncio.gather(reading, *self._step_tasks, return_exceptions=True)
        await self._written()
        self._waiters.fail(self._gone())
        if self.error is None:
            await self._guard(self._store_rest)
        if self.error is None and self._segments.lost:
            await self._guard(self._save_lost)

    async def _store_rest(self) -> None:
        if self._open.waiting:
            closed = self._open.rows > 0
            await self._store(self._take_content(closed=closed), closed=closed)

    def _spawn(self, work: Callable[[], Awaitable[None]], name: str) -> asyncio.Task[None]:
        return asyncio.create_task(self._guard(work), name=f"ray_messaging log {name} of {self.exp_id}")

    async def _guard(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except MessagingError as error:
            logger.error("the event log's writer of %s stops: %s", self.exp_id, error)  # noqa: TRY400 - expected
            self._stop(error)
        except Exception as error:
            logger.exception("the event log's writer of %s stops", self.exp_id)
            self._stop(
                MessagingError(f"the event log's writer failed ({type(error).__name__}: {error}): please report this")
            )

    def _stop(self, error: MessagingError) -> None:
        self.error = self.error or error
        self._waiters.fail(self.error)
        self._cancel_tasks()

    def _cancel_tasks(self) -> None:
        for task in (self._read_task, *self._step_tasks):
            if task is not None and task is not asyncio.current_task():
                task.cancel()

    def _gone(self) -> Closed:
        return Closed(
            f"the event log of {self.exp_id!r} was closed: read its folder by EventLog.open({self.folder.where!r})"
        )

    def _stuck(self) -> LogError:
        return LogError(
            f"the event log of {self.exp_id!r} stands still, because its rows cannot be written: "
            f"{self._segments.trouble}. Remove the cause, and the log goes on; new messages wait on the server",
            path=self.folder.where,
        )

    def _lost(self) -> LogError:
        return LogError(
            f"the server has lost the data of experiment {self.exp_id!r} (was it flushed, restored or replaced?): the "
            f"log in {self.folder.where} has all {self.rows:,} rows that were read before that, but later messages "
            "are missing. Shut the experiment down; start it again by on_existing='resume' to go on in this folder, "
            "or in "
            "a new one",
            path=self.folder.where,
            lost=True,
        )

    def _check_alive(self) -> None:
        if self.error is not None:
            raise self.error.with_traceback(None)
        if self._segments.lost:
            raise self._lost()
        if self._closed:
            raise self._gone()

    def _check(self) -> None:
        self._check_alive()
        if self._blocked and self._segments.trouble is not None:
            raise self._stuck()
