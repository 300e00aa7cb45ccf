"""Make segments durable, then let the streams be trimmed; whatever is in the way is said, and tried again.

A server may lose the streams (it is flushed, or restored from before this log): then what was read of them is nowhere
else, and is written all the same, as long as nobody newer has the folder.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from ray_messaging.common.backoff import LOG_WRITE_RETRY, Backoff
from ray_messaging.errors import ConnectionFailed, Fenced, LogError, MailboxFull, ServerRefused
from ray_messaging.eventlog.account import claim, note_missing, read_account
from ray_messaging.eventlog.folder import Folder, Segment, Staged
from ray_messaging.eventlog.writing.log_errors import taken_over
from ray_messaging.eventlog.writing.open_segment import Sealed
from ray_messaging.transports.log_store import LogMark, LogStore

logger = logging.getLogger(__name__)

T = TypeVar("T")

# A writer that was stopped between looking at its epoch and naming its file has the folder for as long as that lasts.
_TAKE_OVER_S = 20.0


class SegmentStore:
    """Write the segments of one writer, one at a time; `segments` are those that are closed.

    Only the newest one keeps its cursors: each has those of all streams.

    `crash` is called at each point where a crash could harm, `troubled` when something is in the way. `writer` is its
    name in the folder's account; `known` tells whether the server knows our run's log.
    """

    def __init__(
        self,
        transport: LogStore,
        folder: Folder,
        exp_id: str,
        *,
        writer: str,
        known: Callable[[], Awaitable[bool]],
        crash: Callable[[str], None],
        troubled: Callable[[], None],
    ) -> None:
        self.segments: list[Segment] = []
        self.epoch = -1
        self.lost = False  # the server has lost the streams
        self.trouble: str | None = None
        self.last_s: float | None = None  # what the last write took
        self._transport = transport
        self._folder = folder
        self._exp_id = exp_id
        self._writer = writer
        self._known = known
        self._crash = crash
        self._troubled = troubled
        self._hurried = asyncio.Event()

    async def take_over(self, epoch: int) -> None:
        """Begin, under an epoch that fences every earlier writer; look at what is there. Raises LogError."""
        self.epoch = epoch
        found = await when_free(self._folder, self._list, self._rest)
        self.segments = [*map(_light, found[:-1]), *found[-1:]]

    def _list(self) -> list[Segment]:
        claim(self._folder, self._writer)
        return self._folder.segments()

    async def resume(self, taken: dict[str, tuple[int, int]]) -> None:
        """Tell the transport what the segments hold, which their writer may not have told. Raises Fenced."""
        await self._insist(lambda: self._transport.log_resumed(self.epoch, taken))

    async def store(self, sealed: Sealed) -> Segment:
        """Make a segment durable. Raises Fenced, LogError once `hurry` was called."""
        begun = time.perf_counter()
        segment = await self._insist(lambda: self._write(sealed))
        self.last_s = time.perf_counter() - begun
        self._crash("renamed")
        return segment

    def append(self, segment: Segment) -> None:
        """Note that a segment is closed."""
        if self.segments:
            self.segments[-1] = _light(self.segments[-1])
        self.segments.append(segment)

    async def confirm(self, marks: dict[str, LogMark], finished: tuple[str, ...]) -> None:
        """Tell the transport what is durable. Raises Fenced."""
        await self._insist(lambda: self._tell(marks, finished))
        self._crash("written")

    async def look(self) -> None:
        """See whether the log is still this writer's, or `lost`. Raises Fenced, ConnectionFailed."""
        self.lost = self.lost or not await self._known()
        await self._tell({}, ())

    async def _tell(self, marks: dict[str, LogMark], finished: tuple[str, ...]) -> None:
        if self.lost:
            return
        try:
            await self._transport.log_written(self.epoch, marks, finished)
        except Fenced:
            if await self._transport.log_epoch() > self.epoch and await self._known():
                raise
            self.lost = True

    async def note_missing(self, text: str) -> None:
        """Write into the folder's account what is missing. Raises LogError once `hurry` was called."""
        await self._insist(lambda: self._under_lock(lambda: note_missing(self._folder, self._writer, text)))

    async def give_back(self) -> None:
        """Return memory that no segment uses to the system: only a writer at rest does not need it again at once."""
        await asyncio.to_thread(pa.default_memory_pool().release_unused)

    def hurry(self) -> None:
        """Try everything once more at most: whoever closes does not wait for room on a disk."""
        self._hurried.set()

    async def _write(self, sealed: Sealed) -> Segment:
        await self.look()
        self._crash("checked")
        staged = await asyncio.to_thread(self._stage, sealed)
        self._crash("staged")
        return await self._under_lock(lambda: self._publish(staged), self.look if self._folder.local else None)

    async def _under_lock(self, work: Callable[[], T], first: Callable[[], Awaitable[None]] | None = None) -> T:
        # Who takes over fences us first and looks at the folder then, under the lock: it sees this file, or we see
        # the fence. (Where there is no lock, nor renaming, the look before has to do.)
        with self._folder.lock() as mine:
            if not mine:
                raise BlockingIOError(f"another process holds {self._folder.where} right now")
            if first is not None:
                await first()
            return await asyncio.to_thread(work)

    def _publish(self, staged: Staged) -> Segment:
        self._crash("locked")
        if not read_account(self._folder).belongs_to(self._writer):
            raise taken_over(self._exp_id, self._folder, staged.segment)
        return self._folder.publish(staged)

    def _stage(self, sealed: Sealed) -> Staged:
        table = sealed.table().unify_dictionaries()  # else Parquet gives up dictionaries where they change
        first_s, last_s = _times(table)
        meta = {
            "exp_id": self._exp_id,
            "epoch": self.epoch,
            "first_row": sealed.first_row,
            "cursors": sealed.cursors,
            "begun": sealed.begun,
            "taken": sealed.taken,
            "first_s": first_s,
            "last_s": last_s,
        }
        return self._folder.stage(sealed.number, table, meta)

    async def _insist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try until it works; everything is kept meanwhile, and senders feel it once the streams are full."""
        backoff = Backoff(LOG_WRITE_RETRY)
        while True:
            last = self._hurried.is_set()
            try:
                result = await attempt()
            except ServerRefused:
                raise
            except (OSError, ConnectionFailed, MailboxFull) as error:
                self._say(error)
                if last:
                    raise self._given_up(error) from error
                await self._rest(backoff.next_pause())
            else:
                self._recovered()
                return result

    async def _rest(self, pause_s: float) -> None:
        try:
            await asyncio.wait_for(self._hurried.wait(), pause_s)
        except TimeoutError:
            return

    def _say(self, error: Exception) -> None:
        trouble = f"{type(error).__name__}: {error}"
        if self.trouble is None:
            logger.error(
                "the event log of %s cannot be written to %s, trying on (nothing is lost, but senders will be made to "
                "wait): %s; make room or set it right",
                self._exp_id,
                self._folder.where,
                trouble,
            )
        self.trouble = trouble
        self._troubled()

    def _recovered(self) -> None:
        if self.trouble is not None:
            logger.warning("the event log of %s is written again", self._exp_id)
            self.trouble = None

    def _given_up(self, error: Exception) -> LogError:
        return LogError(
            f"the end of the event log could not be written to {self._folder.where}: {error}; the streams keep it: "
            "set this right and start a writer again",
            path=self._folder.where,
        )


async def when_free(folder: Folder, work: Callable[[], T], rest: Callable[[float], Awaitable[None]]) -> T:
    """Do something in a thread under a folder's lock, once no other process has that. Raises LogError."""
    deadline = time.monotonic() + _TAKE_OVER_S
    while True:
        with folder.lock() as mine:
            if mine:
                return await asyncio.to_thread(work)
        if time.monotonic() > deadline:
            raise LogError(
                f"the event log's folder {folder.where} is held by another process, which has stopped in the middle "
                f"of a write for {_TAKE_OVER_S:.0f} s: end that process",
                path=folder.where,
            )
        await rest(LOG_WRITE_RETRY.first_s)


def _light(segment: Segment) -> Segment:
    """Return a segment without what only the newest one is asked for."""
    return segment._replace(cursors={}, begun={}, taken=None)


def _times(table: pa.Table) -> tuple[Any, Any]:
    """Return the first and the last sent_at in unix seconds, None where there is no row."""
    found = pc.min_max(pc.cast(table["sent_at"], pa.int64())).as_py()
    return tuple(None if found[end] is None else found[end] / 1e6 for end in ("min", "max"))  # type: ignore[return-value]
