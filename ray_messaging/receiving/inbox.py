"""The inbox: a bounded buffer of frames between the reader and those who fetch."""

import asyncio
from collections import deque
from functools import reduce
from typing import NamedTuple

import msgspec

from ray_messaging.batch import Batch
from ray_messaging.messages import Slice
from ray_messaging.transports.base import Cursor, place


class Handled(NamedTuple):
    """What can be committed: the cursor behind it (None: nothing of the mailbox), messages, bytes of whole frames."""

    cursor: Cursor | None = None
    messages: int = 0
    nbytes: int = 0

    def plus(self, later: "Handled") -> "Handled":
        """Return both, `later` being behind."""
        if self is NOTHING:
            return later
        return Handled(later.cursor or self.cursor, self.messages + later.messages, self.nbytes + later.nbytes)


NOTHING = Handled()


class Piece(msgspec.Struct):
    """A frame in the inbox; `entry` is its place in the mailbox, None for what a foreign client published."""

    entry: str | None
    batch: Batch | None  # None: it could not be read, and only the cursor must pass it
    low: int
    high: int
    nbytes: int
    pattern: bytes | None = None


class Inbox:
    """Buffer frames up to a limit in messages; they are taken apart by those who fetch."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self.foreign_bytes = 0  # of what foreign clients published
        self._pieces: deque[Piece] = deque()
        self._kept: list[tuple[Piece, Handled]] | None = None  # what was taken since `keep`
        self._arrived = asyncio.Event()
        self._emptied = asyncio.Event()

    def put(self, piece: Piece) -> None:
        """Add a frame."""
        last = self._pieces[-1] if self._pieces else None
        if last is not None and last.batch is None and piece.batch is None:
            # Nobody fetches these, so that a flood of them would have no end: one stands for all.
            last.entry, last.nbytes = piece.entry, last.nbytes + piece.nbytes
        else:
            self._pieces.append(piece)
        if piece.entry is None:
            self.foreign_bytes += piece.nbytes
        self.size += piece.high - piece.low
        self._arrived.set()

    def wake(self) -> None:
        """Wake those who wait for a message: the reader has something to say."""
        self._arrived.set()

    async def arrival(self) -> None:
        """Wait until something is there, or the reader has something to say."""
        await self._arrived.wait()

    def has_room(self, rows: int) -> bool:
        """Tell whether so many messages fit; an empty inbox takes any."""
        return not self.size or self.size + rows <= self.limit

    async def room(self, rows: int) -> None:
        """Wait until so many messages fit."""
        while not self.has_room(rows):
            self._emptied.clear()
            await self._emptied.wait()

    def take(self, limit: int | None) -> tuple[list[Slice], Handled]:
        """Take up to `limit` messages out, and what committing them means."""
        slices: list[Slice] = []
        handled = NOTHING
        left = self.size if limit is None else min(limit, self.size)
        while self._pieces and (left or self._pieces[0].batch is None):
            piece = self._pieces[0]
            high = min(piece.high, piece.low + left)
            whole = high == piece.high
            if piece.batch is not None:
                slices.append(Slice(piece.batch, piece.low, high, piece.pattern))
            part = NOTHING
            if piece.entry is not None:
                cursor = Cursor(piece.entry, 0 if whole else high)
                part = Handled(cursor, high - piece.low, piece.nbytes if whole else 0)
                handled = handled.plus(part)
            else:
                self.foreign_bytes -= piece.nbytes
            if self._kept is not None:
                self._kept.append((msgspec.structs.replace(piece, high=high), part))
            left -= high - piece.low
            self.size -= high - piece.low
            piece.low = high
            if whole:
                self._pieces.popleft()
        self._taken()
        return slices, handled

    def keep(self) -> None:
        """Keep what is taken from now on, so that it can be put back."""
        self._kept = []

    @property
    def kept(self) -> Handled:
        """Return what committing all that is kept means."""
        return reduce(Handled.plus, (part for _, part in self._kept or ()), NOTHING)

    def let_go(self) -> None:
        """Keep nothing any more."""
        self._kept = None

    def put_back(self) -> None:
        """Put what is kept back where it was; it may pass the limit for a while."""
        kept, self._kept = self._kept or [], None
        for piece, _ in reversed(kept):
            self.size += piece.high - piece.low
            self.foreign_bytes += piece.nbytes if piece.entry is None else 0
            first = self._pieces[0] if self._pieces else None
            if first is not None and first.batch is piece.batch and first.low == piece.high and first.batch is not None:
                first.low = piece.low  # the rest of its frame
            else:
                self._pieces.appendleft(piece)
        if self._pieces:
            self._arrived.set()

    def drop(self, end: Cursor) -> Handled:
        """Drop what lies before a cursor, though not what foreign clients published; return what that means."""
        handled, kept = NOTHING, deque[Piece]()
        for piece in self._pieces:
            if piece.entry is None or place(Cursor(piece.entry, 1)) > place(end):
                kept.append(piece)
                continue
            high = piece.high if end.entry != piece.entry or not end.row else max(piece.low, end.row)
            whole = high >= piece.high
            cursor = Cursor(piece.entry, 0 if whole else high)
            handled = handled.plus(Handled(cursor, high - piece.low, piece.nbytes if whole else 0))
            self.size -= high - piece.low
            piece.low = high
            if not whole:
                kept.append(piece)
        self._pieces = kept
        self._taken()
        return handled

    def reaches(self, end: Cursor) -> bool:
        """Tell whether something behind a cursor is there."""
        return any(piece.entry is not None and place(Cursor(piece.entry, 1)) > place(end) for piece in self._pieces)

    def _taken(self) -> None:
        if not self._pieces:
            self._arrived.clear()
        self._emptied.set()
