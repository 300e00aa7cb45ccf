"""A buffer of frames with a limit. The reader puts frames in, and fetches take them out."""

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec

from ray_messaging.errors import MessagingError
from ray_messaging.messages import Slice
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.batch import Batch
from ray_messaging.receiving.commits import InFlight
from ray_messaging.transports.cursors import START, order


class Piece(msgspec.Struct):
    """A frame in the inbox. `entry` is its id in the mailbox, or None for a message that a foreign client published.

    The rows from `low` to `high - 1` are still in the inbox.
    """

    entry: str | None
    batch: Batch | None  # None if all messages of the frame were handled, or it has none
    low: int
    high: int
    nbytes: int
    pattern: bytes | None = None
    came: bool = False  # whether the frame reports that agents have come to the mailbox


class Inbox:
    """Buffer of frames, with a limit on the number of messages. A fetch may take a part of a frame."""

    def __init__(self, limit: int) -> None:
        self.limit = self._base = limit
        self.size = 0
        self.behind = False  # whether the mailbox may have frames that were not read
        self.error: MessagingError | None = None  # the error that stopped the reader; None while it runs
        # The error with which the server refuses the reader at present. The reader goes on trying.
        self.trouble: MessagingError | None = None
        self.read_to = START.entry  # all frames up to this entry were put into the inbox
        self.foreign_bytes = 0  # the bytes of messages that foreign clients published
        self._pieces: deque[Piece] = deque()
        self._kept: list[Piece] | None = None  # the pieces that were taken since `keep`
        self._reaching = 0  # the number of calls of `reach` in progress
        self._dry = False  # whether the mailbox was read to its end after the last `reach` began
        self._arrived = asyncio.Event()
        self._grown = asyncio.Event()
        self._emptied = asyncio.Event()
        # A function that is called after each frame and by `stop`, for a caller that does not wait in `arrival`.
        self.on_news: Callable[[], None] | None = None
        self.awaited = False  # set when a fetch waits for a frame, or `on_news` is called; the reader clears it
        # Agents that are leaving. The first message for them, and all messages after it, must not be taken.
        self._withheld: AgentSet | None = None
        self.paused = False  # whether no message may be taken
        self._guarded = False  # whether the inbox is paused, or agents are leaving
        self.flowing = asyncio.Event()  # set unless the inbox is paused
        self.undisturbed = asyncio.Event()  # set unless agents are leaving
        self.flowing.set()
        self.undisturbed.set()

    def put(self, piece: Piece) -> None:
        """Add a frame that was read from the mailbox, or a message that a foreign client published."""
        pieces = self._pieces
        if piece.batch is None and pieces and pieces[-1].batch is None:
            # Neither this piece nor the last piece has messages to fetch. So the last piece now stands for both frames.
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
        if self.on_news is not None:
            self.awaited = True
            self.on_news()

    def stop(self, error: MessagingError) -> None:
        """Record that the reader has stopped, and make waiting fetches raise the error."""
        self.error = error
        self._arrived.set()
        self._grown.set()
        if self.on_news is not None:
            self.on_news()

    def note_trouble(self, error: MessagingError | None) -> None:
        """Record the error with which the server refuses the reader, and make waiting fetches raise it.

        None means that reading works again.
        """
        self.trouble = error
        if error is not None:
            self._arrived.set()
            self._grown.set()

    def note_dry(self) -> None:
        """Record that the last read has found nothing, so that the mailbox was read to its end."""
        self._dry = True
        self._grown.set()

    async def reach(self, entry: str, capacity: int, check: Callable[[], object]) -> bool:
        """Wait until the inbox has all frames up to an entry.

        Return False if these frames have more than `capacity` messages.

        The inbox's limit is raised during this call. `check` raises an error if no more frames will arrive.
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
                if self.trouble is not None:
                    raise self.trouble.with_traceback(None)
        finally:
            self._reaching -= 1
            self.limit = self.limit if self._reaching else base
        return True

    def wake(self) -> None:
        """End the waits in `arrival`, although no new frame has come."""
        self._arrived.set()

    async def arrival(self) -> None:
        """Wait until the inbox has a frame, the reader has stopped, or `wake` was called."""
        self.awaited = True
        await self._arrived.wait()

    def has_capacity(self, rows: int) -> bool:
        """Return whether `rows` more messages fit. An empty inbox accepts any number."""
        return not self.size or self.size + rows <= self.limit

    async def wait_capacity(self, rows: int) -> None:
        """Wait until the inbox has room for `rows` more messages."""
        while not self.has_capacity(rows):
            self._emptied.clear()
            await self._emptied.wait()

    def take(self, limit: int | None, in_flight: InFlight) -> list[Slice]:
        """Take out up to `limit` messages (None: all), and record the taken rows of the mailbox in `in_flight`."""
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
            if self._guarded and (high := self._guard(piece, high, known=known)) < low:
                break
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

    def _guard(self, piece: Piece, high: int, *, known: bool) -> int:
        """Return up to which row (exclusive) the rows of a piece may be taken, or -1 if no row may be taken.

        Args: `known` says whether the rows were acknowledged earlier. Such rows are not held back, because no agent
        gets them.
        """
        if self.paused:
            self._arrived.clear()
            return -1
        if self._withheld is None or piece.batch is None or piece.entry is None or known:
            return high
        leaving = self._withheld.find(piece.batch.to_ids)[piece.low : high]
        if not leaving.any():
            return high
        if leaving[0]:
            self._arrived.clear()  # waiting fetches wait on until the agents have left
            return -1
        return piece.low + int(leaving.argmax())

    def withhold(self, agents: AgentSet | None) -> None:
        """Hold back the first message for one of these agents, which are leaving, and all messages after it.

        With None, no messages are held back any more.
        """
        self._withheld = agents
        self._guarded = self.paused or agents is not None
        if agents is not None:
            self.undisturbed.clear()
        else:
            self.undisturbed.set()
            if self._pieces:
                self._arrived.set()

    def set_aside(self) -> list[Piece]:
        """Remove the pieces that came from the mailbox, and return them. Nobody can take messages until `resume`."""
        self.paused = self._guarded = True
        self.flowing.clear()
        aside = [piece for piece in self._pieces if piece.entry is not None]
        self._pieces = deque(piece for piece in self._pieces if piece.entry is None)
        self.size -= sum(piece.high - piece.low for piece in aside)
        return aside

    def resume(self, aside: list[Piece]) -> None:
        """Put back pieces that `set_aside` has removed, and let messages be taken again."""
        self._pieces.extendleft(reversed(aside))
        self.size += sum(piece.high - piece.low for piece in aside)
        self.paused, self._guarded = False, self._withheld is not None
        self.flowing.set()
        self._emptied.set()
        if self._pieces:
            self._arrived.set()

    def keep(self) -> None:
        """Keep the pieces that are taken from now on, so that `put_back` can put them back."""
        self._kept = []

    def discard_kept(self) -> None:
        """Forget the frames that were taken since `keep`, so that they cannot be put back, and keep no further ones."""
        self._kept = None

    def put_back(self) -> None:
        """Put back all frames that were taken since `keep`, in their order.

        The inbox may exceed its limit for a while.
        """
        kept, self._kept = self._kept or [], None
        for piece in reversed(kept):
            self.size += piece.high - piece.low
            self.foreign_bytes += piece.nbytes if piece.entry is None else 0
            first = self._pieces[0] if self._pieces else None
            if first is not None and first.batch is piece.batch and first.low == piece.high and first.batch is not None:
                first.low = piece.low  # the first piece is the rest of the same frame
            else:
                self._pieces.appendleft(piece)
        if self._pieces:
            self._arrived.set()
