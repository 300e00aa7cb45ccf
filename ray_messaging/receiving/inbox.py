"""Bounded buffer of frames between the reader and the fetching side."""

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec

from ray_messaging.errors import MessagingError
from ray_messaging.message import Slice
from ray_messaging.model.batch import Batch
from ray_messaging.receiving.commits import InFlight
from ray_messaging.transports.cursors import START, order


class Piece(msgspec.Struct):
    """A frame in the inbox; `entry` is its place in the mailbox, None for a foreign client's publication."""

    entry: str | None
    batch: Batch | None  # None: it has no messages to read, and only moves the cursor
    low: int
    high: int
    nbytes: int
    pattern: bytes | None = None


class Inbox:
    """Frames up to a limit in messages; a fetch may take a part of a frame."""

    def __init__(self, limit: int) -> None:
        self.limit = self._base = limit
        self.size = 0
        self.behind = False  # the mailbox may have unread frames
        self.error: MessagingError | None = None  # that stopped the reader: nothing more will come
        self.read_to = START.entry  # everything up to this entry was put in
        self.foreign_bytes = 0  # of foreign publications
        self._pieces: deque[Piece] = deque()
        self._kept: list[Piece] | None = None  # taken since `keep`
        self._reaching = 0  # calls of `reach` in progress
        self._dry = False  # the mailbox was read to its end since the last `reach` began
        self._arrived = asyncio.Event()
        self._grown = asyncio.Event()
        self._emptied = asyncio.Event()

    def put(self, piece: Piece) -> None:
        """Add a frame."""
        pieces = self._pieces
        if piece.batch is None and pieces and pieces[-1].batch is None:
            # These are never fetched: one piece stands for a flood of them.
            pieces[-1].entry, pieces[-1].nbytes = piece.entry, pieces[-1].nbytes + piece.nbytes
        else:
            pieces.append(piece)
        if piece.entry is None:
            self.foreign_bytes += piece.nbytes
        else:
            self.read_to = piece.entry
        self.size += piece.high - piece.low
        self._arrived.set()
        if self._reaching:
            self._grown.set()

    def stop(self, error: MessagingError) -> None:
        """Wake waiting fetches, which raise the error: the reader has stopped."""
        self.error = error
        self._arrived.set()
        self._grown.set()

    def note_dry(self) -> None:
        """Record that a read has found nothing."""
        self._dry = True
        self._grown.set()

    async def reach(self, entry: str, capacity: int, check: Callable[[], object]) -> bool:
        """Wait until everything up to an entry was put in; return False if that is more than `capacity` messages.

        The limit is raised meanwhile. `check` raises if nothing more will come.
        """
        end, self._dry, base = order(entry), False, self._base
        self._reaching += 1
        try:
            while order(self.read_to) < end and not self._dry:
                if self.size > capacity:
                    return False
                self.limit = max(base, 2 * capacity)
                self._emptied.set()
                self._grown.clear()
                await self._grown.wait()
                check()
        finally:
            self._reaching -= 1
            self.limit = self.limit if self._reaching else base
        return True

    async def arrival(self) -> None:
        """Wait until something is there, or the reader has stopped."""
        await self._arrived.wait()

    def has_capacity(self, rows: int) -> bool:
        """Return whether so many messages fit; an empty inbox takes any number."""
        return not self.size or self.size + rows <= self.limit

    async def wait_capacity(self, rows: int) -> None:
        """Wait until so many messages fit."""
        while not self.has_capacity(rows):
            self._emptied.clear()
            await self._emptied.wait()

    def take(self, limit: int | None, in_flight: InFlight) -> list[Slice]:
        """Take out up to `limit` messages; those of the mailbox are in flight from then on."""
        slices: list[Slice] = []
        pieces, ahead = self._pieces, in_flight.ahead
        left = self.size if limit is None else min(limit, self.size)
        while pieces and (left or pieces[0].batch is None):
            piece = pieces[0]
            entry, batch, low = piece.entry, piece.batch, piece.low
            high, known = min(piece.high, low + left), False
            if ahead and entry is not None and batch is not None:
                known, stop = in_flight.acked_before(entry, low, piece.high)
                high = stop if known else min(high, stop)
            whole = high == piece.high
            if entry is None:
                self.foreign_bytes -= piece.nbytes
            elif known:
                in_flight.skip(entry, low, high, whole, piece.nbytes)
            else:
                in_flight.take(entry, low, high, whole, piece.nbytes)
            if batch is not None and not known:
                slices.append(Slice(batch, low, high, piece.pattern))
                left -= high - low
            if self._kept is not None:
                self._kept.append(msgspec.structs.replace(piece, high=high))
            self.size -= high - low
            if whole:
                pieces.popleft()
            else:
                piece.low = high
        if not pieces:
            self._arrived.clear()
        self._emptied.set()
        return slices

    def keep(self) -> None:
        """Keep all that is taken from now on, so that it can be put back."""
        self._kept = []

    def discard_kept(self) -> None:
        """Drop all that was kept since `keep`, and keep nothing more."""
        self._kept = None

    def put_back(self) -> None:
        """Put everything that was kept back in its place; it may exceed the limit for a while."""
        kept, self._kept = self._kept or [], None
        for piece in reversed(kept):
            self.size += piece.high - piece.low
            self.foreign_bytes += piece.nbytes if piece.entry is None else 0
            first = self._pieces[0] if self._pieces else None
            if first is not None and first.batch is piece.batch and first.low == piece.high and first.batch is not None:
                first.low = piece.low  # the rest of its frame
            else:
                self._pieces.appendleft(piece)
        if self._pieces:
            self._arrived.set()
