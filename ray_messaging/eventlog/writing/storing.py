"""Make segments durable, then let the streams be trimmed; whatever is in the way is said, and tried again."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from ray_messaging.errors import ConnectionFailed, LogError, MailboxFull, ServerRefused
from ray_messaging.eventlog.folder import Folder, Segment, Staged
from ray_messaging.eventlog.writing.growing import Sealed
from ray_messaging.transports.log_store import LogMark, LogStore

logger = logging.getLogger(__name__)

T = TypeVar("T")

# A full disk is looked at again after a moment, and more seldom the longer it stays full.
_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 5.0
# A writer that was stopped between looking at its epoch and naming its file has the folder for as long as that lasts.
_TAKE_OVER_S = 20.0


class Storing:
    """Write the segments of one writer, one at a time; `segments` are those that are closed.

    Only the newest one keeps its cursors: each has those of all streams.

    `crash` is called at each point where a crash could harm, `troubled` when something is in the way.
    """

    def __init__(
        self,
        transport: LogStore,
        folder: Folder,
        exp_id: str,
        *,
        crash: Callable[[str], None],
        troubled: Callable[[], None],
    ) -> None:
        self.segments: list[Segment] = []
        self.epoch = -1
        self.trouble: str | None = None
        self.last_s: float | None = None  # what the last write took
        self._transport = transport
        self._folder = folder
        self._exp_id = exp_id
        self._crash = crash
        self._troubled = troubled
        self._hurried = asyncio.Event()

    async def take_over(self, epoch: int) -> None:
        """Begin, under an epoch that fences every earlier writer; look at what is there. Raises LogError."""
        self.epoch = epoch
        deadline = time.monotonic() + _TAKE_OVER_S
        while not await self._list():
            if time.monotonic() > deadline:
                raise LogError(
                    f"the event log's folder {self._folder.where} is held by another process, which has stopped in the "
                    f"middle of a write for {_TAKE_OVER_S:.0f} s: end that process",
                    path=self._folder.where,
                )
            await self._rest(_PAUSE_S)

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
        await self._insist(lambda: self._transport.log_written(self.epoch, marks, finished))
        self._crash("written")

    async def give_back(self) -> None:
        """Return memory that no segment uses to the system: only a writer at rest does not need it again at once."""
        await asyncio.to_thread(pa.default_memory_pool().release_unused)

    def hurry(self) -> None:
        """Try everything once more at most: whoever closes does not wait for room on a disk."""
        self._hurried.set()

    async def _list(self) -> bool:
        with self._folder.lock() as mine:
            if mine:
                found = await asyncio.to_thread(self._folder.segments)
                self.segments = [*map(_light, found[:-1]), *found[-1:]]
            return mine

    async def _write(self, sealed: Sealed) -> Segment:
        await self._check()
        self._crash("checked")
        staged = await asyncio.to_thread(self._stage, sealed)
        self._crash("staged")
        return await self._publish(staged)

    async def _check(self) -> None:
        """Make sure that nobody newer writes this log. Raises Fenced."""
        await self._transport.log_written(self.epoch, {}, ())

    async def _publish(self, staged: Staged) -> Segment:
        # Who takes over fences us first and looks at the folder then, under the lock: it sees this file, or we see
        # the fence. (Where there is no lock, nor renaming, the check before has to do.)
        with self._folder.lock() as mine:
            if not mine:
                raise BlockingIOError(f"another process holds {self._folder.where} right now")
            if self._folder.local:
                await self._check()
            self._crash("locked")
            return await asyncio.to_thread(self._folder.publish, staged)

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
        pause = _PAUSE_S
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
                await self._rest(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
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


def _light(segment: Segment) -> Segment:
    """Return a segment without what only the newest one is asked for."""
    return segment._replace(cursors={}, begun={}, taken=None)


def _times(table: pa.Table) -> tuple[Any, Any]:
    """Return the first and the last sent_at in unix seconds, None where there is no row."""
    found = pc.min_max(pc.cast(table["sent_at"], pa.int64())).as_py()
    return tuple(None if found[end] is None else found[end] / 1e6 for end in ("min", "max"))  # type: ignore[return-value]
