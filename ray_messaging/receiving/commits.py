"""Commits: messages handed out are committed at the next fetch, so that whoever dies with some gets them again."""

import asyncio
from collections.abc import Iterable

from ray_messaging.errors import CommitFailed
from ray_messaging.receiving.ack_ranges import Span
from ray_messaging.receiving.in_flight import InFlight
from ray_messaging.transports.base import Conclusion, Cursor, SelectiveAcks, Transport
from ray_messaging.transports.ranges import decode_ranges

MOST_RANGES = 10_000  # behind the cursor: each commit tells all of them


class Commits:
    """Move a mailbox's durable cursor behind what was handled; one write at a time, later ones gather meanwhile."""

    def __init__(self, transport: Transport, mailbox: str, epoch: int, cursor: Cursor, acked: bytes) -> None:
        self.in_flight = InFlight(cursor, decode_ranges(acked))
        self._transport = transport
        self._mailbox = mailbox
        self._epoch = epoch
        self._handed: list[tuple[int, int]] = []  # the numbers of what the next fetch commits
        self._written = 0  # the changes that the store has
        self._apart = bool(acked)  # it may have ranges behind the cursor
        self._writing = asyncio.Lock()
        self._background: asyncio.Task[None] | None = None

    def hand(self, low: int, high: int) -> None:
        """Note what is handed out, to be committed at the next fetch."""
        if low < high:
            self._handed.append((low, high))

    def acknowledge(self) -> None:
        """Note that all is handled that the next fetch commits."""
        for low, high in self._handed:
            self.in_flight.ack(low, high)
        self._handed.clear()

    def acknowledge_all(self) -> None:
        """Note that all is handled that was taken."""
        self._handed.clear()
        self.in_flight.ack(self.in_flight.front, self.in_flight.taken)

    def acknowledge_some(self, spans: Iterable[Span]) -> int:
        """Note that some rows are handled; return how many were not. Raises CommitFailed, having noted nothing."""
        flight = self.in_flight
        runs = flight.runs((span.entry, span.low, span.high) for span in spans)
        if flight.ranges + len(runs) > MOST_RANGES:
            copy = flight.copy()
            for low, high in runs:
                copy.ack(low, high)
            if copy.ranges > MOST_RANGES:
                raise too_many(self._mailbox, sum(high - low for low, high in runs))
        return sum(flight.ack(low, high) for low, high in runs)

    @property
    def open(self) -> bool:
        """Tell whether something was handled that the store does not know of."""
        return self.in_flight.changes != self._written

    def _acks(self) -> SelectiveAcks | None:
        """Return what is acknowledged behind the cursor; None: nothing is, nor has the store any."""
        if not self.in_flight.ranges and not self._apart:
            return None
        self._apart = True  # until it is known to have none
        return self.in_flight.acks()

    def conclusion(self, state: bytes | None, *, fetched: bool, changed: bool) -> Conclusion:
        """Return what a transaction, which has handled all that it fetched, tells the store."""
        flight = self.in_flight
        cursor = flight.cursor if fetched else None
        acks = self._acks() if fetched else None
        return Conclusion(
            self._mailbox, self._epoch, cursor, flight.front, flight.nbytes, state, state_changed=changed, acks=acks
        )

    def concluded(self, conclusion: Conclusion) -> None:
        """Note that the store was told by a transaction."""
        if conclusion.cursor is not None:
            self._told(self.in_flight.changes, conclusion.acks)

    def _told(self, changes: int, acks: SelectiveAcks | None) -> None:
        self._written = changes
        self._apart = acks is not None and acks.ranges != b""

    async def write(self) -> None:
        """Write the cursor, unless the store has it; raise Fenced where a newer reader holds the mailbox."""
        async with self._writing:
            if self.open:
                # Totals: a write that is repeated, or takes the next one along, counts nothing twice.
                flight, changes, acks = self.in_flight, self.in_flight.changes, self._acks()
                await self._transport.commit(
                    self._mailbox, self._epoch, flight.cursor, messages=flight.front, nbytes=flight.nbytes, acks=acks
                )
                self._told(changes, acks)

    def write_soon(self) -> None:
        """Write the cursor in the background, unless that is under way."""
        if self._background is None or self._background.done():
            if self._background is not None:
                self._background.result()  # what went wrong before
            self._background = asyncio.create_task(self.write(), name="ray_messaging commit")

    async def close(self) -> None:
        """Wait for a write in the background."""
        if self._background is not None:
            await self._background


def too_many(mailbox: str, messages: int) -> CommitFailed:
    """Build the error for what is acknowledged in too many places."""
    return CommitFailed(
        f"{messages:,} messages of {mailbox!r} are not acknowledged: with them, more than {MOST_RANGES:,} ranges would "
        "lie behind messages that are still out. Acknowledge older messages first, or fetch fewer at a time",
        group=mailbox,
        messages=messages,
    )
