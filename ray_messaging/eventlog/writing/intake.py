"""What comes in for the event log: entries read and turned into rows, some thousands at a time."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import pyarrow as pa

from ray_messaging.addressing.channels import NAME_LENGTH
from ray_messaging.common.backoff import LOG_READ_RETRY
from ray_messaging.errors import ConnectionFailed, FrameError, MailboxFull, ServerRefused
from ray_messaging.eventlog.writing.rows.columns import Part, record_batch
from ray_messaging.eventlog.writing.rows.pieces import payload_bytes, pieces
from ray_messaging.eventlog.writing.rows.records import NOTHING, take
from ray_messaging.eventlog.writing.streams import Read, key, size
from ray_messaging.transports.base import LOG, LOG_STREAM
from ray_messaging.transports.log_store import LogItem, LogStore, LogStreams

logger = logging.getLogger(__name__)

T = TypeVar("T")

# A batch of rows costs 0.4 ms whatever it holds: with 8,192 rows a fifth of the time that its rows take. Of more than
# these the columns no longer stay in the processor's cache.
CHUNK_ROWS = 32_768
PIECE_BYTES = 16 * 2**20  # of payload in a batch: the segment must hold all of it before it can be closed
_SMALL_BYTES = 2**16  # are turned into rows sooner than a thread is asked to


class Done(NamedTuple):
    """An entry that was turned into rows: all of it, or only its first `rows`."""

    item: LogItem
    messages: int
    rows: int | None = None


class Chunk(NamedTuple):
    """Some entries and their rows in the log (None: none)."""

    done: Sequence[Done]
    batch: pa.RecordBatch | None
    marked: bool  # mailboxes came or went


class Intake:
    """Read one experiment's streams."""

    def __init__(self, transport: LogStore, exp_id: str) -> None:
        self.unreadable = 0
        self._age_s = 0.0  # of the oldest entry of the last read
        self._read_at = 0.0
        self.away: str | None = None
        self.begun: dict[str, tuple[str, int]] = {}  # stream -> an entry of which the log has so many rows already
        self._refused: list[tuple[LogItem, str]] = []
        self._transport = transport
        self._exp_id = exp_id

    async def look(self) -> tuple[LogStreams, dict[str, str]]:
        """Return the streams that are there, and the ends of those that ended."""
        streams = await self.insist(self._transport.log_streams)
        return streams, await self.insist(partial(self._transport.log_ends, streams.ended))

    async def read(self, read: Read, block_s: float) -> list[LogItem]:
        """Read the next entries."""
        items = await self.insist(partial(self._transport.read_log, read.cursors, read.limit, block_s))
        oldest = min((key(item.entry)[0] for item in items), default=None)
        self._read_at = time.time()
        self._age_s = 0.0 if oldest is None else max(0.0, self._read_at - oldest / 1000)
        return items

    def behind_s(self, *, held: bool) -> float:
        """Return how old the oldest entry was when it was read; `held`: more has waited since."""
        return self._age_s + (time.time() - self._read_at if held else 0.0)

    async def chunks(self, items: list[LogItem]) -> AsyncIterator[Chunk]:
        """Turn entries into rows; many of them in a thread, as whoever shares the event loop must not wait."""
        chunks = self._chunks(items)
        if sum(map(size, items)) < _SMALL_BYTES:
            for chunk in chunks:
                await self._bury()
                yield chunk
        else:
            while (chunk := await asyncio.to_thread(next, chunks, _NONE)) is not _NONE:
                await self._bury()
                yield chunk

    async def _bury(self) -> None:
        """Keep what nobody can read of the log stream; what a mailbox holds is for its own reader to keep."""
        refused, self._refused = self._refused, []
        for item, why in refused:
            await self.insist(partial(self._transport.bury, LOG, item.entry, item.frame, why[:NAME_LENGTH]))

    def _chunks(self, items: list[LogItem]) -> Iterator[Chunk]:
        done: list[Done] = []
        parts: list[Part] = []
        rows = nbytes = 0
        for item in items:
            for part, one in self._take(item):
                if part is not None:
                    if parts and nbytes + payload_bytes(part) > PIECE_BYTES:
                        yield self._chunk(done, parts)
                        done, parts, rows, nbytes = [], [], 0, 0
                    parts.append(part)
                    rows += len(part.batch)
                    nbytes += payload_bytes(part)
                done.append(one)
            if rows >= CHUNK_ROWS:
                yield self._chunk(done, parts)
                done, parts, rows, nbytes = [], [], 0, 0
        if done:
            yield self._chunk(done, parts)

    def _chunk(self, done: list[Done], parts: list[Part]) -> Chunk:
        marked = any(not one.item.frame for one in done)
        return Chunk(done, record_batch(self._exp_id, parts) if parts else None, marked)

    def _take(self, item: LogItem) -> Iterator[tuple[Part | None, Done]]:
        """Yield what of an entry belongs in the log, the last piece with the entry as done."""
        entry, begin = self.begun.pop(item.stream, ("", 0))
        try:
            part, messages = take(item) if item.frame else NOTHING
        except FrameError as error:
            self.unreadable += 1
            logger.warning("entry %s of %s is not logged: %s", item.entry, item.stream, error)
            part, messages = NOTHING
            if item.stream == LOG_STREAM:
                self._refused.append((item, str(error)))
        if part is None:
            yield None, Done(item, messages)
            return
        for piece, end in pieces(part, begin if entry == item.entry else 0, PIECE_BYTES):
            yield piece, Done(item, messages, None if end == len(part.batch) else end)

    async def insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Wait for a server that is away, or out of memory, as the messages do."""
        while True:
            try:
                result = await call()
            except ServerRefused:
                raise
            except (ConnectionFailed, MailboxFull) as error:
                if self.away is None:
                    logger.warning("the event log of %s cannot be read, trying on: %s", self._exp_id, error)
                self.away = str(error)
                await asyncio.sleep(LOG_READ_RETRY.first_s)
            else:
                self.away = None
                return result


_NONE = Chunk((), None, marked=False)
