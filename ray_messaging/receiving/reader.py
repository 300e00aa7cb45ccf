"""Task that reads a mailbox into the inbox while the inbox has capacity."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ray_messaging.addressing.channels import NAME_LENGTH
from ray_messaging.common.backoff import LEASE_RETRY, REDIS_REFUSED, Backoff
from ray_messaging.common.task_health import TaskHealth, end
from ray_messaging.errors import ConnectionFailed, FrameError, MailboxFull, MessagingError, ServerRefused, UnknownName
from ray_messaging.model.batch import Batch, Origin
from ray_messaging.receiving.inbox import Inbox, Piece
from ray_messaging.receiving.unfolder import Unfolder
from ray_messaging.transports.agent_moves import ARRIVAL
from ray_messaging.transports.cursors import Cursor, before
from ray_messaging.wire.frames import FOREIGN_SENDER, decode

if TYPE_CHECKING:
    from ray_messaging.transports.transport import RedisTransport

logger = logging.getLogger(__name__)

T = TypeVar("T")
Frames = Sequence[tuple[str, bytes]]  # the entry and the bytes of each frame

_BLOCK_S = 5.0
# How many frames, and about how many bytes, a read from a near server has at most. There is a limit, because the server
# does nothing else while it copies the frames.
_FRAMES, _READ_BYTES = 32, 2 * 2**20
_NEAR_S = 0.002  # a server is near if the first byte of an answer takes less time than this
_WAITS = 8  # of this many waits for a first byte, the shortest tells whether the server is near
_TIMES = 8  # a read from a far server is at most this many times as large as a read from a near server
_FRAME_BYTES = 64 * 2**10  # the assumed size, in bytes, of a frame before any frame was read
# Decoding must not block the event loop for longer than this, in seconds.
_TURN_S = 0.001
# The next read is a system call, which takes time. So if a fetch was waiting for the frames of a read, the reader first
# waits for this many turns of the event loop, in which that fetch, the handler of its messages, and the handler's sends
# can run.
_TURNS = 4


class ReadSize:
    """How many frames one read takes, if the mailbox has more frames than that.

    There is one read at a time, because the next read begins where the answer to the last read ends. If the server is
    far, a read takes enough frames that the transfer of their bytes takes longer than the wait for the first byte. So
    the connection is used most of the time. The transfer should not take much longer than the wait, because the
    messages of a read can be fetched only when all its bytes have arrived.
    """

    def __init__(self, frame_rows: int) -> None:
        # How many messages, and how many bytes, the largest frames of the last read had.
        self._rows, self._bytes = frame_rows, _FRAME_BYTES
        self._times = 1
        # How long the latest full reads waited for the first byte. The shortest wait counts: if the machine is busy,
        # even a near server answers some reads late, but not all.
        self._waits = deque[float](maxlen=_WAITS)

    @property
    def far(self) -> bool:
        """Return whether the server is so far away that reads take more frames than from a near server."""
        return self._times > 1

    def rows(self, frames: int) -> int:
        """Return how many messages `frames` frames have, if each is as large as the largest one of the last read."""
        return frames * self._rows

    def frames(self, capacity: int) -> int:
        """Return how many frames the next read may take at most, if the inbox has room for `capacity` messages."""
        most = min(self._times * _FRAMES, self._times * _READ_BYTES // self._bytes)
        return max(1, min(most, capacity // self._rows))

    def note(self, rows: int, nbytes: int) -> None:
        """Record how many messages, and how many bytes, the largest frames of the last read had."""
        self._rows, self._bytes = max(1, rows), max(1, nbytes)

    def adapt(self, waited_s: float, came_s: float) -> None:
        """Adapt the size after a full read. The first byte came after `waited_s` seconds, the rest in `came_s` more."""
        self._waits.append(waited_s)
        waited_s = min(self._waits)
        if waited_s < _NEAR_S or came_s > 4 * waited_s:
            self._times = max(1, self._times // 2)
        elif came_s < 2 * waited_s:
            self._times = min(2 * self._times, int(waited_s / _NEAR_S), _TIMES)


class Reader:
    """Reader of one mailbox into the inbox, the queue of messages that a receiver has not fetched yet.

    A frame in the mailbox has at most `frame_rows` messages. From a far server, one read may fetch as many messages as
    fit into an empty inbox, even if the inbox is not empty, so that the read is worth its round trip. After a full read
    from a far server, the next read begins before the frames are decoded, if the inbox has room for these frames. So a
    receiver may have twice as many messages in memory as fit into its inbox.

    `agents_came` is awaited when agents have come from another mailbox, before messages for them can be fetched.
    """

    def __init__(
        self,
        transport: "RedisTransport",
        mailbox: str,
        inbox: Inbox,
        cursor: Cursor,
        frame_rows: int,
        unfolder: Unfolder,
        agents_came: Callable[[], Awaitable[None]],
    ) -> None:
        self.unreadable = 0
        self.foreign = 0  # how many messages in the mailbox were written by foreign clients
        self._transport = transport
        self._mailbox = mailbox
        self._inbox = inbox
        self._cursor = cursor
        self._unfolder = unfolder
        inbox.behind = True
        inbox.read_to = cursor.entry if cursor.row == 0 else before(cursor.entry)
        self._frame_rows = frame_rows
        self._agents_came = agents_came
        self._waits, self._turned_at = True, time.monotonic()
        self._task = asyncio.create_task(self._run(), name=f"ray_messaging reader of {mailbox}")

    def loop(self) -> TaskHealth:
        """Return the health of the reading task. The task is not busy while it waits until the inbox has capacity."""
        found = self._inbox.error or self._inbox.trouble
        error = "" if found is None else str(found)
        return TaskHealth("reader", not self._task.done(), not self._waits, time.monotonic() - self._turned_at, error)

    async def close(self) -> None:
        """Stop reading the mailbox."""
        await end(self._task)

    def stop(self, error: MessagingError) -> None:
        """Stop reading for good, because of an error, which later fetches raise."""
        self._task.cancel()
        self._inbox.stop(error)

    async def _run(self) -> None:
        try:
            await self._read()
        except MessagingError as error:
            self.stop(error)
        except Exception as error:
            logger.exception("the reader of mailbox %s stopped", self._mailbox)
            self.stop(
                MessagingError(
                    f"the task that reads the mailbox failed ({type(error).__name__}: {error}): please report this"
                )
            )

    async def _read(self) -> None:
        inbox, last, size = self._inbox, self._inbox.read_to, ReadSize(self._frame_rows)
        following: asyncio.Task[tuple[Frames, bool]] | None = None  # the next read, if it has begun already
        try:
            while True:
                if following is None and not inbox.has_capacity(self._frame_rows):
                    await self._wait_capacity(self._frame_rows)
                self._waits, self._turned_at = False, time.monotonic()
                if following is None:
                    frames, full = await self._read_once(last, size)
                else:
                    frames, full = await following
                    if not frames:
                        # This read was made ahead, and frames may have come since. So the next read, and not this one,
                        # shows whether the mailbox has more.
                        following = None
                        continue
                following = None
                inbox.behind = bool(frames)
                if frames:
                    last = frames[-1][0]
                    if full and size.far and inbox.has_capacity(size.rows(len(frames))):
                        reading = self._read_once(last, size)
                        following = asyncio.create_task(reading, name=f"ray_messaging read of {self._mailbox}")
                        await asyncio.sleep(0)  # lets the task send its read before the frames are decoded
                    size.note(await self._put(frames, full=full), max(len(frame) for _, frame in frames))
                else:
                    inbox.note_dry()
                turns = 1
                if frames and inbox.awaited:
                    turns, inbox.awaited = _TURNS, False
                for _ in range(turns):
                    await asyncio.sleep(0)
        finally:
            if following is not None:
                await end(following)

    async def _read_once(self, last: str, size: ReadSize) -> tuple[Frames, bool]:
        """Read frames after the entry `last`. Return them, and whether they are as many as one read may return."""
        inbox, began = self._inbox, time.monotonic()
        count = size.frames(inbox.limit if size.far else inbox.limit - inbox.size)
        # After a full read, the mailbox may have more frames, so the next read does not wait for new ones. `behind` is
        # true until a read has found the mailbox's end.
        block_s = 0.0 if inbox.behind else _BLOCK_S
        frames = await self._persist(partial(self._transport.read, self._mailbox, last, count, block_s))
        full = len(frames) == count
        if full and not block_s:
            waited_s = self._transport.waited_s
            size.adapt(waited_s, time.monotonic() - began - waited_s)
        return frames, full

    async def _put(self, frames: Frames, *, full: bool) -> int:
        """Put the frames of a read into the inbox; return the number of messages of the largest frame.

        Args: `full` says that the read has returned as many frames as it may, so that the mailbox may have more.
        """
        inbox, most, turned_at = self._inbox, 0, time.monotonic()
        for entry, frame in frames:
            try:
                batch = decode(frame)
                whole = batch if batch.fold is None else await self._persist(partial(self._unfolder.unfold, batch))
                piece = self._piece(entry, whole, len(frame))
            except (FrameError, UnknownName) as error:
                piece = await self._bury(entry, frame, error)
            if piece.came:
                await self._persist(self._agents_came)
            most = max(most, rows := piece.high - piece.low)
            room = min(rows, self._frame_rows)
            # The number of frames to read was computed from the frames of the previous read. This frame may have more
            # messages than those.
            if not inbox.has_capacity(room):
                await self._wait_capacity(room)
            if entry == frames[-1][0]:
                inbox.behind = full
            inbox.put(piece)
            if (now := time.monotonic()) - turned_at > _TURN_S:
                turned_at = now
                await asyncio.sleep(0)
        return most

    async def _wait_capacity(self, rows: int) -> None:
        """Wait until the inbox has room for `rows` messages."""
        self._waits = True
        await self._inbox.wait_capacity(rows)
        self._waits, self._turned_at = False, time.monotonic()

    async def _persist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call while the server does not answer, is out of memory, or refuses this client.

        There is no time limit, because the messages wait on the server during this time. While the server refuses this
        client, fetches raise the server's error.
        """
        unanswered: Backoff | None = None  # made only when it is needed, because most calls succeed at once
        refused: Backoff | None = None
        while True:
            try:
                result = await call()
            except ServerRefused as error:
                if self._inbox.trouble is None:
                    # A refusal is no bug, so the log needs no traceback.
                    logger.error("mailbox %s cannot be read, and is tried again: %s", self._mailbox, error)  # noqa: TRY400
                self._inbox.note_trouble(error)
                self._waits, self._turned_at = True, time.monotonic()
                unanswered, pauses = None, (refused := refused or Backoff(REDIS_REFUSED))
            except (ConnectionFailed, MailboxFull) as error:
                logger.warning("mailbox %s cannot be read, and is tried again: %s", self._mailbox, error)
                pauses = unanswered = unanswered or Backoff(LEASE_RETRY)
            else:
                if self._inbox.trouble is not None:
                    logger.warning("mailbox %s can be read again", self._mailbox)
                    self._inbox.note_trouble(None)
                return result
            await pauses.sleep()

    def _piece(self, entry: str, batch: Batch, nbytes: int) -> Piece:
        """Return a frame as a decoded Piece for the inbox; raise FrameError if the frame has no payloads."""
        if batch.lines is None:
            raise FrameError(
                "a frame (a batch of messages) on the server has no payloads: find the program that wrote it"
            )
        rows = batch.rows
        if batch.sender.startswith(FOREIGN_SENDER):
            self.foreign += rows
        low = min(self._cursor.row, rows) if entry == self._cursor.entry else 0
        batch.origin = Origin(self._mailbox, entry)
        # A frame without messages only moves the cursor.
        piece = Piece(entry, batch if low < rows else None, low, rows, nbytes)
        piece.came = batch.sender == ARRIVAL
        return piece

    async def _bury(self, entry: str, frame: bytes, error: MessagingError) -> Piece:
        """Write an unreadable frame to the dead letters; return a piece that only moves the cursor."""
        self.unreadable += 1
        logger.warning("entry %s of mailbox %s becomes a dead letter: %s", entry, self._mailbox, error)
        await self._persist(partial(self._transport.bury, self._mailbox, entry, frame, str(error)[:NAME_LENGTH]))
        return Piece(entry, None, 0, 0, 0)
