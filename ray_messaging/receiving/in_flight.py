"""What is in flight: taken out of the inbox, in the mailbox's order, until the cursor has passed it."""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Sequence
from copy import copy

import msgspec

from ray_messaging.message import Slice
from ray_messaging.transports.base import AckRange, Cursor, SelectiveAcks, place
from ray_messaging.transports.ranges import begins, encode_ranges, ends

_TRIMMED = 64  # parts that are done with are dropped together


class Part(msgspec.Struct, gc=False):
    """Rows of one entry, `low` to `high`; the first of them has the number `first`."""

    first: int
    entry: str
    low: int
    high: int
    whole: bool  # it holds the entry's last row
    nbytes: int  # of a whole frame

    @property
    def end(self) -> Cursor:
        """Return the cursor behind it."""
        return Cursor(self.entry, 0 if self.whole else self.high)


class InFlight:
    """Number the rows of a mailbox as they are taken; know which are acknowledged, and how far the cursor may go.

    `front` rows lie before the cursor, `taken` ones were taken. What was acknowledged further on is kept as intervals
    of numbers, so that what adjoins is one, in whichever entries it lies. `ahead` are ranges that a reader before us
    has left, or that its callers still acknowledge: whoever takes passes them over.
    """

    def __init__(self, cursor: Cursor, acked: Iterable[AckRange] = ()) -> None:
        self.cursor = cursor
        self.front = self.taken = 0
        self.nbytes = 0  # of whole frames before the cursor
        self.changes = 0  # rises with whatever a commit tells
        self.ahead = deque(acked)
        self._known = [AckRange(Cursor("0-0", 0), cursor, 0), *self.ahead]  # what was never handed out here
        self._parts: list[Part] = []
        self._head = 0  # the first part that is not done with
        self._nbytes = 0  # of whole frames that were taken
        # Made when somebody asks: of most parts nobody does.
        self._firsts: list[int] = []
        self._of: dict[str, Part] = {}
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._apart = 0  # rows in these intervals

    def copy(self) -> "InFlight":
        """Return what can take this one's place, so that what came meanwhile was never taken."""
        made = copy(self)
        made.ahead, made._known = deque(self.ahead), [*self._known]
        made._parts = [copy(part) for part in self._parts[self._head :]]
        made._firsts, made._of, made._head = [], {}, 0
        made._starts, made._ends = [*self._starts], [*self._ends]
        return made

    # -- taking ---------------------------------------------------------------------------------------------------

    @property
    def at(self) -> Cursor:
        """Return the cursor behind all that was taken."""
        return self._parts[-1].end if self._head < len(self._parts) else self.cursor

    @property
    def waiting(self) -> int:
        """Return how many rows that were taken lie behind the cursor."""
        return self.taken - self.front

    @property
    def waiting_bytes(self) -> int:
        """Return the bytes of the frames that were taken whole and lie behind the cursor."""
        return sum(part.nbytes for part in self._parts[self._head :])

    def take(self, entry: str, low: int, high: int, whole: bool, nbytes: int) -> None:  # noqa: FBT001 - for each frame
        """Enter rows that are taken; a frame that has none moves the cursor."""
        parts = self._parts
        if not whole:
            nbytes = 0
        self._nbytes += nbytes
        part = parts[-1] if parts else None
        if part is not None and (part.entry == entry or part.low == part.high == low == high):
            # Nobody acknowledges frames without rows: behind something that is kept, a flood of them is one part.
            part.entry, part.high, part.whole, part.nbytes = entry, high, whole, part.nbytes + nbytes
        else:
            parts.append(Part(self.taken, entry, low, high, whole, nbytes))
        self.taken += high - low
        if low == high and self.front == self.taken:
            self._pass()

    def acked_before(self, entry: str, low: int, high: int) -> tuple[bool, int]:
        """Tell whether rows from `low` on were acknowledged before they were taken, and up to which that holds."""
        while self.ahead:
            start, stop = begins(self.ahead[0], entry), ends(self.ahead[0], entry)
            if stop > low:
                return start <= low, int(min(high, stop if start <= low else start))
            self.ahead.popleft()
        return False, high

    def pass_over(self, entry: str, low: int, high: int, whole: bool, nbytes: int) -> None:  # noqa: FBT001 - as take
        """Enter rows that were acknowledged before."""
        number, found = self.taken, self.ahead.popleft()
        self.take(entry, low, high, whole, nbytes)
        end = Cursor(entry, 0 if whole else high)
        if place(end) < place(found.end):
            self.ahead.appendleft(AckRange(end, found.end, max(0, found.rows - (high - low))))
        self.ack(number, self.taken)

    # -- acknowledging --------------------------------------------------------------------------------------------

    def numbers(self, entry: str, low: int, high: int) -> tuple[int, int]:
        """Return the numbers of an entry's rows; without those that the cursor has passed."""
        if len(self._firsts) < len(self._parts):
            self._index()
        part = self._of.get(entry)
        if part is None:
            return 0, 0
        offset = part.first - part.low
        return offset + max(low, part.low), offset + min(high, part.high)

    def _index(self) -> None:
        for at, part in enumerate(self._parts[len(self._firsts) :], len(self._firsts)):
            self._firsts.append(part.first)
            if at >= self._head and part.low < part.high:
                self._of[part.entry] = part

    def runs(self, rows: Iterable[tuple[str, int, int]]) -> list[tuple[int, int]]:
        """Return the numbers of rows (entry, low, high), those that adjoin as one; without what the cursor passed."""
        runs: list[tuple[int, int]] = []
        for entry, first, last in rows:
            low, high = self.numbers(entry, first, last)
            if low < high and runs and runs[-1][1] == low:
                runs[-1] = runs[-1][0], high
            elif low < high:
                runs.append((low, high))
        return runs

    def ack(self, low: int, high: int) -> int:
        """Note that rows are acknowledged, by their numbers; return how many of them were not."""
        low = max(low, self.front)
        if low >= high:
            return 0
        starts, stops = self._starts, self._ends
        if not starts and low == self.front:
            self.front = high
            self._pass()
            return high - low
        self.changes += 1
        i, j = bisect_left(stops, low), bisect_right(starts, high)
        fresh = high - low - sum(max(0, min(stops[k], high) - max(starts[k], low)) for k in range(i, j))
        if i < j:
            low, high = min(low, starts[i]), max(high, stops[j - 1])
        starts[i:j], stops[i:j] = [low], [high]
        self._apart += fresh
        if starts[0] == self.front:
            self._apart -= stops[0] - self.front
            self.front = stops[0]
            del starts[0], stops[0]
            self._pass()
        return fresh

    def unacked(self, slices: Sequence[Slice]) -> list[Slice]:
        """Return what of slices is not acknowledged; what foreign clients published cannot be."""
        left: list[Slice] = []
        for part in slices:
            if part.batch.origin is None:
                left.append(part)
                continue
            low, high = self.numbers(part.batch.origin.entry, part.low, part.high)
            offset = part.high - high  # rows that the cursor has passed lie at the beginning
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
        """Note that rows which were not taken yet are acknowledged; False: they were handed out."""
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

    def _pass(self) -> None:
        """Move the cursor behind all that is acknowledged without a gap."""
        self.changes += 1
        parts = self._parts
        if self.front == self.taken:  # nothing is out
            if parts:
                self.cursor, self.nbytes, self._head = parts[-1].end, self._nbytes, 0
                parts.clear()
                self._firsts.clear()
                self._of.clear()
            return
        begin = self._head
        while (part := parts[self._head]).first + part.high - part.low <= self.front:
            self.nbytes += part.nbytes
            self._of.pop(part.entry, None)
            self._head += 1
        if self._head > begin:
            self.cursor = parts[self._head - 1].end
        if part.first < self.front:
            part.low, part.first = part.low + self.front - part.first, self.front
            self.cursor = Cursor(part.entry, part.low)
            if self._head < len(self._firsts):
                self._firsts[self._head] = self.front
        if self._head > _TRIMMED and 2 * self._head > len(parts):
            del parts[: self._head], self._firsts[: self._head]
            self._head = 0

    # -- telling --------------------------------------------------------------------------------------------------

    @property
    def ranges(self) -> int:
        """Return how many ranges are acknowledged behind the cursor."""
        return len(self._starts) + len(self.ahead)

    def acks(self) -> SelectiveAcks:
        """Return all that is acknowledged behind the cursor."""
        found, at = [*self.spans(zip(self._starts, self._ends, strict=True)), *self.ahead], self._apart
        return SelectiveAcks(encode_ranges(found), at + sum(one.rows for one in self.ahead))

    def spans_of(self, slices: Iterable[Slice]) -> tuple[AckRange, ...]:
        """Return slices as ranges of the mailbox."""
        found = ((part.batch.origin.entry, part.low, part.high) for part in slices if part.batch.origin is not None)
        return tuple(self.spans(self.runs(found)))

    def spans(self, runs: Iterable[tuple[int, int]]) -> Iterable[AckRange]:
        """Return runs of numbers as ranges of the mailbox."""
        parts, firsts = self._parts, self._firsts
        if len(firsts) < len(parts):
            self._index()
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
