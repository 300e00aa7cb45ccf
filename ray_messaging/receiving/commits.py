"""Which of the messages that were taken from one mailbox are acknowledged, and which are committed.

A message is committed when the server's cursor is after the message, or when the server has an acknowledged range with
the message. After a crash, uncommitted messages are delivered again.
"""

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Sequence
from copy import copy
from typing import TYPE_CHECKING

import msgspec

from ray_messaging.errors import CommitFailed
from ray_messaging.messages import Slice
from ray_messaging.receiving.ack_ranges import Span
from ray_messaging.transports.cursors import (
    AckRange,
    Cursor,
    SelectiveAcks,
    begins,
    decode_ranges,
    encode_ranges,
    ends,
    place,
)
from ray_messaging.transports.transport_values import Conclusion

if TYPE_CHECKING:
    from ray_messaging.transports.transport import RedisTransport

# The limit on the number of acknowledged ranges after the cursor. It exists because each commit contains all of them.
MOST_RANGES = 10_000
_TRIMMED = 64  # items of `_parts` before the cursor are deleted only when there are more than this many


class EntryRows(msgspec.Struct, gc=False):
    """The rows from `low` to before `high` of one entry.

    All rows of a mailbox are numbered in the order in which they were taken. Row `low` has the number `first`.
    """

    first: int
    entry: str
    low: int
    high: int
    whole: bool  # whether the entry's last row is included
    nbytes: int  # the size of the frame, if all of its rows were taken; otherwise 0

    @property
    def end(self) -> Cursor:
        """Return the position in the mailbox after these rows, as a cursor."""
        return Cursor(self.entry, 0 if self.whole else self.high)


class InFlight:
    """The rows that were taken from a mailbox and that its cursor has not passed yet.

    All rows are numbered in the order of taking. `taken` is the number of rows taken so far, and `front` is how many of
    them the cursor has passed. Acknowledged rows after the cursor are kept as intervals of their numbers, so that
    adjacent rows are one interval, even if they belong to different entries. `ahead` has ranges that were not taken
    yet, but were acknowledged earlier, by an earlier reader or by handles of an earlier process. The reader skips these
    ranges.
    """

    def __init__(self, cursor: Cursor, acked: Iterable[AckRange] = ()) -> None:
        self.cursor = cursor
        self.front = self.taken = 0
        self.nbytes = 0  # the bytes of frames that are entirely before the cursor
        self.changes = 0  # a number that rises with each change that must be committed
        self.ahead = deque(acked)
        # Ranges of rows that this reader skips, because they were acknowledged before this reader could take them.
        self._known = [AckRange(Cursor("0-0", 0), cursor, 0), *self.ahead]
        self._parts: list[EntryRows] = []
        self._head = 0  # the index of the first item of `_parts` that is not entirely before the cursor
        self._nbytes = 0  # the bytes of frames that were taken entirely
        # Two ways to find an item of `_parts`: by the number of its first row, and by its entry.
        self._firsts: list[int] = []
        self._by_entry: dict[str, EntryRows] = {}
        self._starts: list[int] = []
        self._ends: list[int] = []
        # The number of rows that were taken, are after the cursor, and are acknowledged. `_starts` and `_ends` have
        # their intervals.
        self.apart = 0

    def copy(self) -> "InFlight":
        """Return a copy.

        If the copy later replaces this object, rows that were taken after the copy was made count as not taken.
        """
        made = copy(self)
        made.ahead, made._known = deque(self.ahead), [*self._known]
        made._parts = [copy(part) for part in self._parts[self._head :]]
        made._firsts, made._head = [part.first for part in made._parts], 0
        made._by_entry = {part.entry: part for part in made._parts if part.low < part.high}
        made._starts, made._ends = [*self._starts], [*self._ends]
        return made

    # -- taking ---------------------------------------------------------------------------------------------------

    @property
    def at(self) -> Cursor:
        """Return the cursor after all rows that were taken."""
        return self._parts[-1].end if self._head < len(self._parts) else self.cursor

    @property
    def waiting(self) -> int:
        """Return how many taken rows are after the cursor."""
        return self.taken - self.front

    @property
    def waiting_bytes(self) -> int:
        """Return the size, in bytes, of all frames whose rows were all taken, but are not all before the cursor."""
        return sum(part.nbytes for part in self._parts[self._head :])

    def take(self, entry: str, low: int, high: int, whole: bool, nbytes: int) -> None:  # noqa: FBT001 - a hot path
        """Record that rows from `low` to before `high` of an entry were taken.

        A frame without rows only moves the cursor.

        Args: `whole` is True if the entry's last row is among the rows. Then `nbytes` is the size of the frame.
        """
        if not whole:
            nbytes = 0
        self._nbytes += nbytes
        # The last item, which these rows may continue; None if they are the first rows of an entry.
        part = self._parts[-1] if (low or not high) and self._parts else None
        # Frames without rows need no acknowledgement. If many of them follow an unacknowledged row, they become one
        # item.
        if part is not None and (part.entry == entry or part.low == part.high == low == high):
            part.entry, part.high, part.whole, part.nbytes = entry, high, whole, part.nbytes + nbytes
        else:
            self._parts.append(part := EntryRows(self.taken, entry, low, high, whole, nbytes))
            self._firsts.append(self.taken)
            if low < high:
                self._by_entry[entry] = part
        if low < high:
            self.taken += high - low
        elif self.front == self.taken:
            self._advance()

    def acked_before(self, entry: str, low: int, high: int) -> tuple[bool, int]:
        """Return whether row `low` of an entry was acknowledged before it was taken, and up to which row this holds.

        The second value is the first row after `low` for which the first value would be different, at most `high`.
        """
        while self.ahead:
            start, stop = begins(self.ahead[0], entry), ends(self.ahead[0], entry)
            if stop > low:
                return start <= low, int(min(high, stop if start <= low else start))
            self.ahead.popleft()
        return False, high

    def skip(self, entry: str, low: int, high: int, whole: bool, nbytes: int) -> None:  # noqa: FBT001 - a hot path
        """Record rows that were acknowledged before they were taken. The arguments are those of `take`."""
        number, found = self.taken, self.ahead.popleft()
        self.take(entry, low, high, whole, nbytes)
        end = Cursor(entry, 0 if whole else high)
        if place(end) < place(found.end):
            self.ahead.appendleft(AckRange(end, found.end, max(0, found.rows - (high - low))))
        self.ack(number, self.taken)

    # -- acknowledging --------------------------------------------------------------------------------------------

    def numbers(self, entry: str, low: int, high: int) -> tuple[int, int]:
        """Return which numbers an entry's rows have: the first number, and the last + 1.

        Rows are numbered in the order in which they were taken. Rows before the cursor are left out.
        """
        part = self._by_entry.get(entry)
        if part is None:
            return 0, 0
        offset = part.first - part.low
        return offset + max(low, part.low), offset + min(high, part.high)

    def runs(self, rows: Iterable[tuple[str, int, int]]) -> list[tuple[int, int]]:
        """Return which numbers some rows have, as intervals (first, last + 1). Rows before the cursor are left out.

        Rows are numbered in the order in which they were taken.

        Args: `rows` has triples (entry, low, high): the rows from `low` to before `high` of a stream entry.
        """
        runs: list[tuple[int, int]] = []
        for entry, first, last in rows:
            low, high = self.numbers(entry, first, last)
            if low < high and runs and runs[-1][1] == low:
                runs[-1] = runs[-1][0], high
            elif low < high:
                runs.append((low, high))
        return runs

    def ack(self, low: int, high: int) -> int:
        """Acknowledge the rows numbered from `low` to before `high`; return how many were not acknowledged before."""
        if low < self.front:
            low = self.front
        if low >= high:
            return 0
        starts, stops = self._starts, self._ends
        if not starts and low == self.front:
            self.front = high
            self._advance()
            return high - low
        self.changes += 1
        i, j = bisect_left(stops, low), bisect_right(starts, high)
        fresh = high - low - sum(max(0, min(stops[k], high) - max(starts[k], low)) for k in range(i, j))
        if i < j:
            low, high = min(low, starts[i]), max(high, stops[j - 1])
        starts[i:j], stops[i:j] = [low], [high]
        self.apart += fresh
        if starts[0] == self.front:
            self.apart -= stops[0] - self.front
            self.front = stops[0]
            del starts[0], stops[0]
            self._advance()
        return fresh

    def unacked(self, slices: Sequence[Slice]) -> list[Slice]:
        """Return, as slices, those rows of the given slices that are not acknowledged.

        Messages of foreign clients always count as not acknowledged.
        """
        left: list[Slice] = []
        for part in slices:
            if part.batch.origin is None:
                left.append(part)
                continue
            low, high = self.numbers(part.batch.origin.entry, part.low, part.high)
            # A row's index in the frame is its number + `offset`. Only the frame's first rows can be before the cursor,
            # and so have no number.
            offset = part.high - high
            k = bisect_right(self._ends, low)
            while low < high:
                start = self._starts[k] if k < len(self._starts) else high
                if low < start:
                    left.append(part._replace(low=low + offset, high=min(start, high) + offset))
                if k == len(self._starts):
                    break
                low, k = max(low, self._ends[k]), k + 1
        return left

    def ack_ahead(self, found: AckRange) -> bool:
        """Acknowledge a range of rows that were not taken yet; return whether the range is acknowledged now.

        Return False, and do nothing, if some of these rows were taken already, unless they were skipped because the
        range had been acknowledged before.
        """
        low, high = place(found.after), place(found.end)
        if low >= high or any(place(one.after) <= low and high <= place(one.end) for one in self._known):
            return True
        if low < place(self.at):
            return False
        self.ahead = deque(one for one in self.ahead if place(one.after) < low or place(one.end) > high)
        insort(self.ahead, found, key=lambda one: place(one.after))
        self._known.append(found)
        self.changes += 1
        return True

    def _advance(self) -> None:
        """Move the cursor forward over all rows that are acknowledged without a gap."""
        self.changes += 1
        parts = self._parts
        if self.front == self.taken:  # all rows that were taken are acknowledged
            if parts:
                last = parts[-1]
                # This is `EntryRows.end` without a function call, because each acknowledgement runs this line.
                self.cursor = Cursor(last.entry, 0 if last.whole else last.high)
                self.nbytes, self._head = self._nbytes, 0
                parts.clear()
                self._firsts.clear()
                self._by_entry.clear()
            return
        begin = self._head
        while (part := parts[self._head]).first + part.high - part.low <= self.front:
            self.nbytes += part.nbytes
            self._by_entry.pop(part.entry, None)
            self._head += 1
        if self._head > begin:
            self.cursor = parts[self._head - 1].end
        if part.first < self.front:
            part.low, part.first = part.low + self.front - part.first, self.front
            self.cursor = Cursor(part.entry, part.low)
            self._firsts[self._head] = self.front
        if self._head > _TRIMMED and 2 * self._head > len(parts):
            del parts[: self._head], self._firsts[: self._head]
            self._head = 0

    # -- results --------------------------------------------------------------------------------------------------

    @property
    def ranges(self) -> int:
        """Return the number of acknowledged ranges after the cursor."""
        return len(self._starts) + len(self.ahead)

    def acks(self) -> SelectiveAcks:
        """Return the acknowledged rows after the cursor, as they are written to the server."""
        found = [*self.spans(zip(self._starts, self._ends, strict=True)), *self.ahead]
        return SelectiveAcks(encode_ranges(found), self.apart + sum(one.rows for one in self.ahead))

    def spans(self, runs: Iterable[tuple[int, int]]) -> Iterable[AckRange]:
        """Return intervals of row numbers as ranges in the mailbox."""
        parts, firsts = self._parts, self._firsts
        for low, high in runs:
            k = bisect_right(firsts, low, self._head) - 1
            part = parts[k]
            if low > part.first:
                after = Cursor(part.entry, part.low + low - part.first)
            else:
                after = parts[k - 1].end if k > self._head else self.cursor
            k = bisect_right(firsts, high - 1, k) - 1
            part = parts[k]
            row = part.low + high - part.first
            yield AckRange(after, part.end if row == part.high else Cursor(part.entry, row), high - low)


class Commits:
    """The durable cursor of a mailbox: the position on the server up to which all messages are acknowledged.

    There is only one write at a time. Changes that are made during a write go into the next write.
    """

    def __init__(self, transport: "RedisTransport", mailbox: str, epoch: int, cursor: Cursor, acked: bytes) -> None:
        self.in_flight = InFlight(cursor, decode_ranges(acked))
        self._transport = transport
        self._mailbox = mailbox
        self._epoch = epoch
        self.handed_out: list[tuple[int, int]] = []  # rows that the next fetch will commit: intervals of numbers
        self._written = 0  # the value of `in_flight.changes` at the last write
        self._ranges_stored = bool(acked)  # False: the server certainly stores no acknowledged ranges
        self.writing = asyncio.Lock()  # held during a write, and while no write may begin
        self.progress = asyncio.Event()  # set after each write
        self._background: asyncio.Task[None] | None = None

    @property
    def unwritten(self) -> bool:
        """Return whether the server lacks some acknowledgements."""
        return self.in_flight.changes != self._written

    def acknowledge(self, *, everything: bool = False) -> bool:
        """Acknowledge the rows that the next fetch would commit, or with `everything` all taken rows.

        Return whether the server lacks some acknowledgements, so that `write` must be called.
        """
        flight = self.in_flight
        for low, high in [(flight.front, flight.taken)] if everything else self.handed_out:
            flight.ack(low, high)
        self.handed_out.clear()
        return flight.changes != self._written

    def acknowledge_some(self, spans: Iterable[Span]) -> int:
        """Acknowledge some rows; return how many were not acknowledged before.

        Raises: CommitFailed, without any change, if there would be too many ranges.
        """
        return self.acknowledge_runs(self.in_flight.runs((span.entry, span.low, span.high) for span in spans))

    def acknowledge_runs(self, runs: Sequence[tuple[int, int]]) -> int:
        """Acknowledge rows by their numbers; return how many were not acknowledged before.

        Raises: CommitFailed, without any change, if there would be too many ranges.
        """
        flight = self.in_flight
        if flight.ranges + len(runs) > MOST_RANGES:
            copy = flight.copy()
            for low, high in runs:
                copy.ack(low, high)
            if copy.ranges > MOST_RANGES:
                raise too_many(self._mailbox, sum(high - low for low, high in runs))
        return sum(flight.ack(low, high) for low, high in runs)

    def conclusion(
        self, state: bytes | None = None, *, fetched: bool = True, state_changed: bool = False
    ) -> Conclusion:
        """Return what the server shall write about the mailbox: its cursor, acknowledged ranges and new state.

        Args: `fetched` is False for a transaction that has fetched nothing, and so does not move the cursor. With
        `state_changed` the mailbox's state becomes `state`.
        """
        flight = self.in_flight
        done = Conclusion(
            self._mailbox, self._epoch, None, flight.front, flight.nbytes, state, state_changed, changes=flight.changes
        )
        if fetched:
            done.cursor = flight.cursor
            # If the next condition is false, the server has no ranges after the cursor, and there are none to write.
            if self._ranges_stored or flight.apart or flight.ahead:
                done.acks = flight.acks()
                self._ranges_stored = True  # it becomes False only when the server has confirmed a write without ranges
        return done

    def concluded(self, done: Conclusion) -> None:
        """Record that the server has written `done`, which `conclusion` returned."""
        if done.cursor is not None:
            self._written, self._ranges_stored = done.changes, done.acks is not None and done.acks.ranges != b""
            self.progress.set()

    async def write(self) -> None:
        """Write all acknowledgements to the server, unless it has them already.

        Raises: Fenced if a newer reader has the mailbox.
        """
        async with self.writing:
            if self.in_flight.changes != self._written:
                # A write contains totals instead of changes. So a repeated write counts nothing twice, even if the
                # repetition contains later acknowledgements.
                done = self.conclusion()
                await self._transport.commit(done)
                self.concluded(done)

    def note_stored(self, acks: SelectiveAcks) -> None:
        """Record that another call has stored acknowledged ranges on the server, which the next commit must replace."""
        self._ranges_stored = self._ranges_stored or acks.ranges != b""

    def write_soon(self) -> None:
        """Write the cursor in the background, until the server has all acknowledgements.

        If the last write in the background has failed, begin a new one, and raise the error of the failed write.
        """
        before = self._background
        if before is None or before.done():
            self._background = asyncio.create_task(self._write_all(), name="ray_messaging commit")
            if before is not None:
                before.result()

    async def _write_all(self) -> None:
        while self.unwritten:
            await self.write()

    async def close(self) -> None:
        """Wait until the write of the cursor in the background has ended, if there is one.

        The cursor is the position up to which the mailbox's messages are acknowledged.
        """
        if self._background is not None:
            await self._background


def too_many(mailbox: str, messages: int) -> CommitFailed:
    """Build the error for acknowledgements in too many separate ranges."""
    return CommitFailed(
        f"{messages:,} messages of {mailbox!r} are not acknowledged: at most {MOST_RANGES:,} separate ranges of "
        "messages can be acknowledged while older messages are not. Acknowledge the older messages first, or fetch "
        "fewer messages at a time",
        group=mailbox,
        messages=messages,
    )
