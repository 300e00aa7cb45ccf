"""The event log's writer: from the streams into segments, each row once, whenever it dies."""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pyarrow as pa

from ray_messaging.common.limits import MAILBOX_BYTES, MAILBOX_MESSAGES
from ray_messaging.errors import Fenced, LogError, MessagingError
from ray_messaging.eventlog.folder import Folder, Segment
from ray_messaging.eventlog.writing.intake import Chunk, Intake
from ray_messaging.eventlog.writing.log_errors import gone, lost, stuck
from ray_messaging.eventlog.writing.open_segment import OpenSegment, Sealed
from ray_messaging.eventlog.writing.read_ahead import ReadAhead
from ray_messaging.eventlog.writing.segment_store import SegmentStore
from ray_messaging.eventlog.writing.streams import Streams
from ray_messaging.eventlog.writing.waiters import Waiters
from ray_messaging.transports.base import Limits
from ray_messaging.transports.log_store import LogItem, LogStore

logger = logging.getLogger(__name__)

# Two segments are in memory at most, the one that grows and the one that is being written, so these bound what the log
# takes: some 200 MB with all that reading, building and Parquet need beside. A busy writer keeps that for the segment
# that comes next, one at rest gives back what it can.
SEGMENT_ROWS = 131_072
SEGMENT_BYTES = 24 * 2**20
# As old may be what only the streams hold: every so often a file is written that is not full yet.
SEGMENT_AGE_S = 30.0
# What was blocked waits in the log stream; as much of it as of messages in a mailbox by default.
LOG_LIMITS = Limits(MAILBOX_MESSAGES, MAILBOX_BYTES, lease_s=0.0, leased=False)

_BLOCK_S = 5.0
_GATHER_S = 0.02  # lone messages gather for so long: as a batch of their own each would cost 0.3 ms
_SAVE_S = 30.0  # so long is waited at the end for what was read of lost streams to be written
_BUSY_S = 0.2  # a read waits so long while a file is being written whose successor is due already


def _live_on(_point: str) -> None:
    """Do not crash."""


async def _known() -> bool:
    """Take whatever log the server knows for ours."""
    return True


class LogWriter:
    """Write one experiment's log into a folder while it runs.

    Args: run names the run of the experiment to which it belongs, known tells whether the server knows that run's log.
    `crash` is called at each point where a crash could harm: checked, staged, locked, renamed, written.
    """

    def __init__(
        self,
        transport: LogStore,
        folder: Folder,
        exp_id: str,
        *,
        run: str = "",
        known: Callable[[], Awaitable[bool]] = _known,
        limits: Limits = LOG_LIMITS,
        segment_rows: int = SEGMENT_ROWS,
        segment_bytes: int = SEGMENT_BYTES,
        segment_age_s: float = SEGMENT_AGE_S,
        crash: Callable[[str], None] = _live_on,
    ) -> None:
        self.exp_id = exp_id
        self.folder = folder
        self.error: MessagingError | None = None  # why it stopped
        self._transport = transport
        self._limits = limits
        self._full_rows, self._full_bytes, self._old_s = segment_rows, segment_bytes, segment_age_s
        writer = f"{run}/{secrets.token_hex(8)}"
        self._storing = SegmentStore(
            transport, folder, exp_id, writer=writer, known=known, crash=crash, troubled=self._hold
        )
        self._intake = Intake(transport, exp_id)
        self._streams = Streams()
        self._ahead = ReadAhead(self._intake, self._streams)
        self._goals = Waiters(self._streams.reached)
        self._growing = OpenSegment(1, 0)
        self._full: Sealed | None = None  # and not durable yet
        self._reading: asyncio.Task[None] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._closed = False
        self._held = False  # reading stands still until a file is written

    async def start(self) -> None:
        """Register the log, and go on after what the folder holds. Raises LogError, ConnectionFailed."""
        await asyncio.to_thread(self.folder.prepare, self.exp_id)
        await self._storing.take_over(await self._transport.open_log(self._limits))
        if self._storing.segments:
            newest = self._storing.segments[-1]
            self._streams.cursors = dict(newest.cursors)
            self._streams.begun, self._intake.begun = dict(newest.begun), dict(newest.begun)
            self._streams.held = dict(newest.taken or {})
            self._growing = OpenSegment(newest.number + 1, newest.first_row + newest.rows)
        self._streams.update(*await self._intake.look())
        await self._storing.resume(self._streams.taken())
        self._reading = self._spawn(self._read, "reader")

    async def close(self) -> None:
        """Write all that was in the streams when this was called, and stop; closing twice does no harm.

        Raises: LogError where it cannot be written, ConnectionFailed; what is missing stays in the streams.
        """
        if self._closed or self._reading is None:
            self._closed = True
            return
        stopped = self.error
        try:
            if stopped is None:
                await self.caught_up()
        except LogError as error:
            if not error.lost:  # else it is only known at the end what became of it
                raise
        finally:
            await self._wind_up(self._reading)
        told = self.error is stopped and not self._storing.lost  # of a loss the last one to ask hears, too
        if self.error is not None and not told and not isinstance(self.error, Fenced):
            raise self.error

    async def retire(self) -> None:
        """Close, and take the log out: from then on mailboxes are trimmed by their readers alone."""
        await self.close()
        if self.error is None:
            await self._transport.close_log(self._storing.epoch)

    # -- what is there ----------------------------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        """Return how many rows there are, in segments and after them."""
        return self._growing.first_row + self._growing.rows

    def snapshot(self) -> tuple[list[Segment], list[pa.Table], int]:
        """Return the closed segments, all rows after those in order, and how many rows come before these."""
        full = [] if self._full is None else [self._full.table()]
        first_row = self._growing.first_row if self._full is None else self._full.first_row
        return [*self._storing.segments], [*full, *self._growing.tables()], first_row

    async def caught_up(self) -> None:
        """Wait until the snapshot has everything that is in the streams now.

        Raises: LogError while that cannot be, as the folder cannot be written; why the writer stopped, if it did.
        """
        self._check()
        await self._storing.look()
        self._check()
        streams = await self._transport.log_streams()
        ends = await self._transport.log_ends([*streams.live, *streams.ended])
        self._check()
        await self._goals.reach(ends)

    async def wait_beyond(self, row: int, timeout_s: float) -> bool:
        """Wait until there are more than `row` rows; tell whether there are. Raises why the writer stopped."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.rows <= row:
                    self._check_alive()
                    await self._goals.news()
        except TimeoutError:
            return False
        return True

    def stats(self) -> dict[str, Any]:
        """Return rows, segments, what is open, how far it is behind, and what is wrong (`error`; None: nothing)."""
        tail = self._growing.rows + (0 if self._full is None else self._full.rows)
        return {
            "rows": self.rows,
            "segments": len(self._storing.segments),
            "open_rows": tail,
            "open_bytes": self._growing.nbytes + (0 if self._full is None else self._full.nbytes),
            "lag_s": self._intake.behind_s(held=self._held),
            "unreadable": self._intake.unreadable,
            "write_s": self._storing.last_s,
            "lost": self._storing.lost,
            "error": str(self.error) if self.error is not None else self._storing.trouble or self._intake.away,
        }

    # -- reading ----------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            while self._ahead.coming or not self._storing.lost:
                items = await self._ahead.items(self._patience)
                await self._take(items)
                if self._ahead.few:
                    await self._goals.lull(_GATHER_S)
                elif not items:
                    await self._intake.insist(self._storing.look)
        finally:
            await self._ahead.close()
        await self._save()

    async def _save(self) -> None:
        """Write all that was read of streams that the server has lost, say what is missing, and stop."""
        await self._written()
        await self._store_rest()
        error = self._lost()
        await self._storing.note_missing(str(error))
        raise error

    async def _take(self, items: list[LogItem]) -> None:
        marked = False
        async for chunk in self._intake.chunks(items):
            marked |= chunk.marked
            self._add(chunk)
            if self._growing.rows >= self._full_rows or self._growing.nbytes >= self._full_bytes:
                await self._rotate()
        if marked:
            await self._intake.insist(self._storing.look)
            if not self._storing.lost:  # else they are a newer run's
                self._streams.update(*await self._intake.look())
        if self._growing.age() >= self._old_s and not self._busy:
            sealed = self._growing.seal(self._streams)
            self._writing = self._spawn(partial(self._store, sealed, closed=False), "file")

    def _patience(self) -> float:
        if not self._growing.waiting:
            return _BLOCK_S
        due = self._old_s - self._growing.age()
        return max(0.0, min(_BLOCK_S, max(due, _BUSY_S) if self._busy else due))

    def _add(self, chunk: Chunk) -> None:
        """Take a chunk's rows, and move the cursors over its entries; both or neither."""
        if chunk.batch is not None:
            self._growing.add(chunk.batch)
        self._growing.touch()
        for item, messages, rows in chunk.done:
            if rows is None:
                self._streams.passed(item, messages)
            else:
                self._streams.began(item, rows)
        self._goals.moved()

    # -- writing ----------------------------------------------------------------------------------------------------

    @property
    def _busy(self) -> bool:
        return self._writing is not None and not self._writing.done()

    async def _rotate(self) -> None:
        """Have the open segment written, and go on with the next one."""
        if self._busy:
            self._held = True
            if self._storing.trouble is not None:
                self._hold()
            await self._written()
            self._held = False
        self._writing = self._spawn(partial(self._store, self._next(), closed=True), "file")

    def _hold(self) -> None:
        if self._held:
            self._goals.fail(stuck(self.exp_id, self.folder, self._storing.trouble))

    def _next(self) -> Sealed:
        """Close the open segment, and begin the next one."""
        sealed = self._full = self._growing.seal(self._streams)
        self._growing = OpenSegment(sealed.number + 1, sealed.first_row + sealed.rows)
        return sealed

    async def _store(self, sealed: Sealed, *, closed: bool) -> None:
        # Entries of which no row is logged need no new file: whoever reads them again finds no row again.
        segment = sealed.stored
        if segment is None and sealed.rows:
            segment = await self._storing.store(sealed)
        if closed and segment is not None:
            self._storing.append(segment)
            self._full = None
        elif segment is not None:
            self._growing.stored = segment
        await self._storing.confirm(sealed.marks, sealed.finished)
        self._streams.forget(sealed.finished)
        if not closed:
            await self._storing.give_back()

    async def _written(self) -> None:
        """Wait until no file is being written."""
        if self._writing is not None:
            await asyncio.wait([self._writing])

    # -- the end ----------------------------------------------------------------------------------------------------

    async def _wind_up(self, reading: asyncio.Task[None]) -> None:
        self._closed = True
        self._storing.hurry()
        if self._storing.lost:  # it comes to its end by itself, as what it has in hand is nowhere else
            await asyncio.wait([reading], timeout=_BLOCK_S + _SAVE_S)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await self._written()
        self._goals.fail(gone(self.exp_id, self.folder))
        if self.error is None:
            await self._guard(self._store_rest)
        if self.error is None and self._storing.lost:
            await self._guard(self._save)

    async def _store_rest(self) -> None:
        if self._growing.waiting:
            closed = self._growing.rows > 0
            sealed = self._next() if closed else self._growing.seal(self._streams)
            await self._store(sealed, closed=closed)

    def _spawn(self, work: Callable[[], Awaitable[None]], what: str) -> asyncio.Task[None]:
        return asyncio.create_task(self._guard(work), name=f"ray_messaging log {what} of {self.exp_id}")

    async def _guard(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except MessagingError as error:
            logger.error("the event log's writer of %s stops: %s", self.exp_id, error)  # noqa: TRY400 - it is foreseen
            self._stop(error)
        except Exception as error:
            logger.exception("the event log's writer of %s stops", self.exp_id)
            self._stop(
                MessagingError(f"the event log's writer failed ({type(error).__name__}: {error}): please report this")
            )

    def _stop(self, error: MessagingError) -> None:
        self.error = self.error or error
        self._goals.fail(self.error)
        if self._reading is not None and self._reading is not asyncio.current_task():
            self._reading.cancel()

    def _lost(self) -> LogError:
        return lost(self.exp_id, self.folder, self.rows)

    def _check_alive(self) -> None:
        if self.error is not None:
            raise self.error.with_traceback(None)
        if self._storing.lost:
            raise self._lost()
        if self._closed:
            raise gone(self.exp_id, self.folder)

    def _check(self) -> None:
        self._check_alive()
        if self._held and self._storing.trouble is not None:
            raise stuck(self.exp_id, self.folder, self._storing.trouble)
