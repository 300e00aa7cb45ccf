"""Reader of the streams for the event log. It reads the next entries in advance, and turns entries into rows."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import pyarrow as pa

from ray_messaging.addressing.channels import NAME_LENGTH
from ray_messaging.common import task_health
from ray_messaging.common.backoff import LOG_READ_RETRY, REDIS_REFUSED
from ray_messaging.errors import ConnectionFailed, FrameError, MailboxFull, ServerRefused
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.writing.entries import NOTHING, PIECE_BYTES, chunks_of, decode_entry, pieces
from ray_messaging.eventlog.writing.hearers import BroadcastHearers, HearersOf, Retry
from ray_messaging.eventlog.writing.log_columns import LoggedPart, record_batch
from ray_messaging.eventlog.writing.stream_cursors import READ_BYTES, Read, StreamCursors, WrittenEntry, key, size
from ray_messaging.transports.log_store import LogItem, LogStreams, mailbox_of
from ray_messaging.transports.transport import RedisTransport
from ray_messaging.transports.transport_values import LOG

logger = logging.getLogger(__name__)

T = TypeVar("T")

_SMALL_BYTES = 2**16  # entries with fewer bytes are decoded without a thread, which would cost more than it saves
# If a read returns _MUCH bytes, more entries are waiting, so the next read begins at once. If it returns fewer than
# _LITTLE, the reader waits a moment for more entries, because each batch of rows costs 0.4 ms. If it returns a number
# of bytes in between, the reader does not wait, because a log that is behind may get few bytes from each stream.
_MUCH, _LITTLE = READ_BYTES // 4, 2**16


Chunk = tuple[Sequence[WrittenEntry], pa.RecordBatch | None]  # some entries, and their rows for the log, if any
_NONE: Chunk = (), None


class StreamReader:
    """Reader of one experiment's streams. It retries while the server is away.

    Args: `persist` is a function that repeats a call while the server is away, or while a file cannot be read or
    written.
    """

    def __init__(self, transport: RedisTransport, exp_id: str, folder: Folder, persist: Retry) -> None:
        self.transport, self.exp_id, self.folder = transport, exp_id, folder
        self.unreadable = 0
        self.hearers = BroadcastHearers(transport, folder, persist)
        self._age_s = 0.0  # how old the oldest entry of the last read was when the read returned
        self._read_at = 0.0
        self.away: str | None = None
        self.started = False  # once the writer has started, a call that the server refuses is repeated
        # For each stream, an entry that is only partly in the log, and the number of its rows that are in the log.
        self.begun: dict[str, tuple[str, int]] = {}
        self._refused: list[tuple[LogItem, str]] = []
        self._log = transport.log

    async def list_streams(self) -> tuple[LogStreams, dict[str, str]]:
        """Return the streams, and the last entry of each stream that ended."""
        streams = await self.retry(self._log.streams)
        return streams, await self.retry(partial(self._log.ends, streams.ended))

    async def read(self, read: Read, block_s: float) -> list[LogItem]:
        """Return the next entries. The argument `read` has the cursors and the limit.

        If there are no entries, wait up to `block_s` seconds for the first one.
        """
        items = await self.retry(partial(self._log.read, read.cursors, read.limit, block_s))
        oldest = min((key(item.entry)[0] for item in items), default=None)
        self._read_at = time.monotonic()
        self._age_s = 0.0 if oldest is None else max(0.0, time.time() - oldest / 1000)
        return items

    def behind_s(self, *, blocked: bool) -> float:
        """Return how many seconds the log was behind at its last read: the age of the oldest entry of that read.

        Args: `blocked` is True while the log waits to write. The time since that read is then added.
        """
        return self._age_s + (time.monotonic() - self._read_at if blocked else 0.0)

    async def chunks(self, items: list[LogItem]) -> AsyncIterator[Chunk]:
        """Turn entries into rows. Many entries are decoded in a thread, so that the event loop stays free."""
        hearers_of = await self.hearers.of_frames(item.frame for item in items if item.note is None)
        chunks = self._chunks(items, hearers_of)
        if sum(map(size, items)) < _SMALL_BYTES:
            for chunk in chunks:
                await self._bury()
                yield chunk
        else:
            while (chunk := await asyncio.to_thread(next, chunks, _NONE)) is not _NONE:
                await self._bury()
                yield chunk

    async def _bury(self) -> None:
        """Move unreadable entries of the log stream to the dead letters.

        Unreadable entries of a mailbox are left to the group or messager that reads the mailbox.
        """
        refused, self._refused = self._refused, []
        for item, why in refused:
            await self.retry(partial(self.transport.bury, LOG, item.entry, item.frame, why[:NAME_LENGTH]))

    def _chunks(self, items: list[LogItem], hearers_of: HearersOf) -> Iterator[Chunk]:
        for parts, done in chunks_of(taken for item in items for taken in self._take(item, hearers_of)):
            yield done, record_batch(self.exp_id, parts) if parts else None

    def _take(self, item: LogItem, hearers_of: HearersOf) -> Iterator[tuple[LoggedPart | None, WrittenEntry]]:
        """Yield the rows of an entry in pieces, each with a `WrittenEntry` that says where the piece ends.

        For an entry without rows, yield None with its `WrittenEntry`.
        """
        entry, begin = self.begun.pop(item.stream, ("", 0))
        try:
            part, messages = decode_entry(item, hearers_of) if item.frame else NOTHING
        except FrameError as error:
            self.unreadable += 1
            logger.warning("entry %s of %s is not logged: %s", item.entry, item.stream, error)
            part, messages = NOTHING
            if mailbox_of(item.stream) == LOG:
                self._refused.append((item, str(error)))
        if part is None:
            yield None, WrittenEntry(item, messages)
            return
        for piece, end in pieces(part, begin if entry == item.entry else 0, PIECE_BYTES):
            yield piece, WrittenEntry(item, messages, None if end == len(part.batch) else end)

    async def retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call while the server is away or out of memory, or refuses the call after the writer has started.

        Raises: ServerRefused if the server refuses a call before the writer has started.
        """
        while True:
            try:
                result = await call()
            except (ConnectionFailed, MailboxFull) as error:
                refused = isinstance(error, ServerRefused)
                # If the server refuses the first calls, the password is wrong or rights are missing, so repeating would
                # not help.
                if refused and not self.started:
                    raise
                if self.away is None:
                    logger.warning("the event log of %s cannot be read, and is retried: %s", self.exp_id, error)
                self.away = str(error)
                await asyncio.sleep(REDIS_REFUSED.longest_s if refused else LOG_READ_RETRY.first_s)
            else:
                self.away = None
                return result


class ReadAhead:
    """Reads of the streams. After a read that returned many bytes, the next read begins before a caller asks for it.

    `little` is True if the last read returned some bytes, but few.
    """

    def __init__(self, reader: StreamReader, streams: StreamCursors) -> None:
        self.little = False
        self._reader = reader
        self._streams = streams
        self._pending: asyncio.Task[list[LogItem]] | None = None

    @property
    def pending(self) -> bool:
        """Return whether a read is in progress."""
        return self._pending is not None

    async def items(self, patience_s: Callable[[], float]) -> list[LogItem]:
        """Return the next entries of the streams; wait up to `patience_s()` seconds if there are none yet.

        There is no wait if the read covers only some of the streams.
        """
        if self._pending is None:
            read = self._streams.next_read()
            items = await self._reader.read(read, patience_s() if read.wait else 0.0)
        else:
            items = await self._pending
            self._pending = None
        self._streams.received(items)
        nbytes = sum(map(size, items))
        self.little = 0 < nbytes < _LITTLE
        if nbytes >= _MUCH:
            reading = self._reader.read(self._streams.next_read(), 0.0)
            self._pending = asyncio.create_task(reading, name="ray_messaging log read ahead")
        return items

    async def close(self) -> None:
        """Cancel the read in progress, if any."""
        if self._pending is not None:
            await task_health.end(self._pending)
            self._pending = None
