"""Durable storage of segments, the Parquet files of the log.

Once a segment is stored, the server may trim the streams. A write that fails is reported and repeated.

A server may lose the streams, if it is flushed or restored from an older state. Then the rows that this process has
already read are the only copy. They are still written, unless a newer writer owns the folder.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ray_messaging.common.backoff import LOG_WRITE_RETRY, Backoff
from ray_messaging.errors import ConnectionFailed, Fenced, LogError, MailboxFull, ServerRefused
from ray_messaging.eventlog.folder import Folder, Segment, Staged
from ray_messaging.eventlog.folder_records import claim, note_missing, read_account
from ray_messaging.eventlog.writing.open_segment import SegmentContent
from ray_messaging.transports.log_store import LogMark, RedisLog

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Seconds to wait for the folder's lock. A process that is suspended while it publishes a file has the lock for a while.
_TAKE_OVER_S = 20.0


class SegmentStore:
    """Storage of one writer's segments (the Parquet files of the log), one at a time.

    `closed` has the segments that get no more rows, without their positions in the streams: the file of the next
    segment has newer positions in all streams.

    Args: `writer` is the writer's name in the folder's account (see `FolderAccount`). `known` returns whether the
    server still knows the log of this run. `crash` is called at the points where tests crash the writer. `on_trouble`
    is called when a write has failed.
    """

    def __init__(
        self,
        log: RedisLog,
        folder: Folder,
        exp_id: str,
        *,
        writer: str,
        known: Callable[[], Awaitable[bool]],
        crash: Callable[[str], None],
        on_trouble: Callable[[], None],
    ) -> None:
        self.closed: list[Segment] = []
        self.epoch = -1
        self.lost = False  # whether the server has lost the streams
        self.trouble: str | None = None
        self.last_s: float | None = None  # how long the last write took, in seconds; None: nothing was written yet
        self.missing: dict[str, None] = {}  # this writer's descriptions of missing rows, in order
        self._log = log
        self._folder = folder
        self._exp_id = exp_id
        self._writer = writer
        self._known = known
        self._crash = crash
        self._on_trouble = on_trouble
        self._stopping = asyncio.Event()
        self.started = False  # once the writer has started, a call that the server refuses is repeated
        self._publishing = asyncio.Lock()  # only one file is published at a time

    async def take_over(self, epoch: int) -> Segment | None:
        """Make this writer the folder's owner; return the newest segment (file of the log), or None if there is none.

        Raises: LogError if the folder cannot be used.
        """
        self.epoch = epoch
        found = await with_folder_lock(self._folder, self._list, self._pause)
        for segment in found:
            self.append(segment)
        return found[-1] if found else None

    def _list(self) -> list[Segment]:
        claim(self._folder, self._writer, self._exp_id)
        return self._folder.segments()

    async def resume(self, taken: dict[str, tuple[int, int]]) -> None:
        """Tell the server what is already in files, because an earlier writer may have died before it told the server.

        Args: `taken` has, for each stream, how many of its messages and bytes are in files.

        Raises: Fenced if there is a newer writer.
        """
        await self.retry(lambda: self._log.note_resumed(self.epoch, taken))

    async def store(self, content: SegmentContent) -> Segment:
        """Write a segment, one Parquet file of the log, and retry until it is on the disk. Return its description.

        Raises: Fenced if there is a newer writer; LogError if the write fails after `stop_retrying`, or if a newer run
        owns the folder.
        """
        begun = time.perf_counter()
        segment = await self.retry(lambda: self._write(content))
        self.last_s = time.perf_counter() - begun
        self._crash("renamed")
        return segment

    async def write_beside(self, work: Callable[[], None]) -> None:
        """Run `work`, which writes a file into the log's folder; if it fails, repeat it until it succeeds.

        Raises: Fenced if there is a newer writer; LogError if `work` fails after `stop_retrying`, or if a newer run
        owns the folder.
        """

        def checked() -> None:
            self._check_account("series and remembered calls of this run are in no file")
            work()

        await self.retry(lambda: self._under_lock(checked, self.check_owner))

    def append(self, segment: Segment) -> None:
        """Add a closed segment to `closed`."""
        self.closed.append(msgspec.structs.replace(segment, cursors={}, begun={}, taken={}))

    async def confirm(self, marks: dict[str, LogMark], finished: tuple[str, ...]) -> None:
        """Report to the server how much of each stream is in files, and which streams are in files to their end.

        Args: `marks` has the position in each stream, and `finished` names the streams that ended and are in files to
        their end.

        Raises: Fenced if there is a newer writer; LogError if the report fails after `stop_retrying`.
        """
        await self.retry(lambda: self._mark_written(marks, finished))
        self._crash("written")

    async def check_owner(self) -> None:
        """Raise an error unless this writer still owns the log; set `lost` if the server has lost the log.

        Raises: Fenced if there is a newer writer; ConnectionFailed if the server cannot be reached.
        """
        self.lost = self.lost or not await self._known()
        await self._mark_written({}, ())

    async def _mark_written(self, marks: dict[str, LogMark], finished: tuple[str, ...]) -> None:
        if self.lost:
            return
        try:
            await self._log.note_written(self.epoch, marks, finished)
        except Fenced:
            if await self._log.writer_epoch() > self.epoch and await self._known():
                raise
            self.lost = True

    async def note_missing(self, text: str) -> None:
        """Add a description of missing rows to the folder's account.

        Raises: LogError if that fails after `stop_retrying`.
        """
        await self.retry(lambda: self._under_lock(lambda: note_missing(self._folder, self._writer, text)))
        self.missing[text] = None

    def stop_retrying(self) -> None:
        """Let `retry` begin only one more attempt at each call, so that closing does not wait for space on a disk."""
        self._stopping.set()

    async def _write(self, content: SegmentContent) -> Segment:
        await self.check_owner()
        self._crash("checked")
        staged = await asyncio.to_thread(self._stage, content)
        self._crash("staged")
        return await self._under_lock(lambda: self._publish(staged), self.check_owner)

    async def _under_lock(self, work: Callable[[], T], first: Callable[[], Awaitable[None]] | None = None) -> T:
        # A successor first fences this writer: the server refuses the writer's calls from then on. Then the successor
        # lists the folder under the lock. So either the successor sees this file, or this writer sees that it is
        # fenced. An object store has no lock. There the successor's segments have other names, because the names
        # contain the writer's epoch.
        async with self._publishing:
            with self._folder.lock() as mine:
                if not mine:
                    raise BlockingIOError(f"another process is writing to {self._folder.where} now")
                if first is not None:
                    await first()
                return await asyncio.to_thread(work)

    def _publish(self, staged: Staged) -> Segment:
        self._crash("locked")
        self._check_account(
            f"{staged.segment.rows:,} rows that the event log of {self._exp_id!r} had read are in no file"
        )
        return self._folder.publish(staged)

    def _check_account(self, loss: str) -> None:
        """Raise LogError if another run of the experiment owns the folder. The error's text begins with `loss`."""
        if not read_account(self._folder).belongs_to(self._writer):
            raise LogError(
                f"{loss}: a newer run of this experiment writes to {self._folder.where} now: shut this run down",
                path=self._folder.where,
            )

    def _stage(self, content: SegmentContent) -> Staged:
        assert content.table is not None
        span = pc.min_max(content.table["sent_at"].cast(pa.int64())).as_py()
        own = {"exp_id": self._exp_id, "epoch": self.epoch, "first_s": span["min"] / 1e6, "last_s": span["max"] / 1e6}
        return self._folder.stage(content.number, content.table, content.meta | own)

    async def retry(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call while the server is away or full, or while a file cannot be read or written.

        Meanwhile no rows are dropped: when the streams are full, senders wait.

        Raises: LogError if an attempt that began after `stop_retrying` fails; ServerRefused if the server refuses a
        call before the writer has started.
        """
        backoff = Backoff(LOG_WRITE_RETRY)
        while True:
            last = self._stopping.is_set()
            try:
                result = await attempt()
            except (OSError, ConnectionFailed, MailboxFull) as error:
                if isinstance(error, ServerRefused) and not self.started:
                    raise
                self._report(error)
                if last:
                    raise LogError(
                        f"the end of the event log could not be written to {self._folder.where}: {error}; its last "
                        "rows are still on the server. Remove the cause, then start the experiment again by "
                        "on_existing='resume', which writes them",
                        path=self._folder.where,
                    ) from error
                await self._pause(backoff.next_pause())
            else:
                if self.trouble is not None:
                    logger.warning("the event log of %s can be written again", self._exp_id)
                    self.trouble = None
                return result

    async def _pause(self, pause_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):  # `wait_for` is not used, because it could lose a cancellation
                await self._stopping.wait()

    def _report(self, error: Exception) -> None:
        trouble = f"{type(error).__name__}: {error}"
        if self.trouble is None:
            logger.error(
                "the event log of %s cannot be written to %s, and is retried (nothing is lost, but senders may have to "
                "wait): %s; make room or remove the cause",
                self._exp_id,
                self._folder.where,
                trouble,
            )
        self.trouble = trouble
        self._on_trouble()


async def with_folder_lock(folder: Folder, work: Callable[[], T], pause: Callable[[float], Awaitable[None]]) -> T:
    """Run `work` in a thread under the folder's lock; raise LogError if another process holds it for _TAKE_OVER_S.

    Args: `pause` waits some seconds between two attempts to get the lock.
    """
    deadline = time.monotonic() + _TAKE_OVER_S
    while True:
        with folder.lock() as mine:
            if mine:
                return await asyncio.to_thread(work)
        if time.monotonic() > deadline:
            raise LogError(
                f"the event log's folder {folder.where} is locked by another process, which has not gone on with its "
                f"write for {_TAKE_OVER_S:.0f} s: end that process",
                path=folder.where,
            )
        await pause(LOG_WRITE_RETRY.first_s)


def died_before_loss(exp_id: str, folder: Folder, segments: Sequence[Segment]) -> LogError:
    """Build the error for a new writer that finds files of the log in the folder, but no streams on the server."""
    rows = sum(segment.rows for segment in segments)
    return LogError(
        f"the log's process died, and the server has lost the data of experiment {exp_id!r} (was it flushed, restored "
        f"or replaced?): {folder.where} has {rows:,} rows, and messages that were in no file yet are missing. Shut "
        "the experiment down; start it again by on_existing='resume' to go on in this folder, or in a new one",
        path=folder.where,
        lost=True,
    )
