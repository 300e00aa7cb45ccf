"""Worker of one group.

It sends the group's messages, and checks that the messages for the group arrive once, in order, unchanged.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId
from ray_messaging.errors import MessagingError
from ray_messaging.messager import Messager
from ray_messaging.replay.replay_plan import Reference, WorkerShare, digests

CHUNK_ROWS = 16_384  # the number of messages in a call; it is small, so that progress is visible
TICK_S = 0.2  # the timeout of a fetch in seconds; after the expected messages, one fetch looks for unexpected ones
PATIENCE_S = 20.0  # if no message comes for this many seconds, a receiver no longer waits for missing messages


class Note(msgspec.Struct, gc=False):
    """Payload of a replayed message: its index in the traffic, its time and its text."""

    n: int
    time: float
    text: str = ""


_read_notes = msgspec.json.Decoder(list[Note]).decode
_read_note = msgspec.json.Decoder(Note).decode


@dataclass(slots=True, eq=False)
class ReceivedTally:
    """Counts of one group's received messages.

    `seen` says how often each message has arrived, uint32 (n,), and `by_agent` how many messages have arrived for each
    agent, int64. `out_of_order` counts messages that arrived directly after a later message from the same sender to the
    same receiver. `misdirected` counts messages with wrong ids, or for an agent of another group. `changed` counts
    messages with another text or time. `unexpected` counts messages that do not belong to this traffic. `latencies`
    has, for each batch, the latencies of its messages in seconds, as an array of float32.
    """

    seen: NDArray[np.uint32]
    by_agent: NDArray[np.int64]
    received: int = 0
    out_of_order: int = 0
    misdirected: int = 0
    changed: int = 0
    unexpected: int = 0
    last_at: float = 0.0
    latencies: list[NDArray[np.float32]] = field(default_factory=list)


class Checker:
    """Checker of the messages that one group receives, batch by batch. `tally` has the counts so far."""

    def __init__(self, reference: Reference, group: int) -> None:
        self._reference = reference
        self._group = group
        # For each pair of sender and receiver, the last row that was received.
        self._latest = np.full(int(reference.pairs.max(initial=-1)) + 1, -1, np.int64)
        self.tally = ReceivedTally(np.zeros(len(reference), np.uint32), np.zeros(len(reference.agents), np.int64))

    def take(
        self,
        lines: Sequence[bytes],
        from_ids: NDArray[Any],
        to_ids: NDArray[Any],
        sent_at: NDArray[np.float64],
        now: float,
    ) -> None:
        """Check one batch, whose messages are in the order of arrival. Times are in unix seconds."""
        tally = self.tally
        tally.received += len(lines)
        tally.last_at = now
        tally.latencies.append((now - sent_at).astype(np.float32))
        notes, kept = _parse(lines)
        rows = np.fromiter((note.n for note in notes), np.int64, len(notes))
        known = (rows >= 0) & (rows < len(self._reference))
        tally.unexpected += len(lines) - int(known.sum())
        if not known.all():
            notes = [note for note, fits in zip(notes, known.tolist(), strict=True) if fits]
            kept, rows = kept[known], rows[known]
        np.add.at(tally.seen, rows, 1)
        self._check_addresses(rows, from_ids[kept], to_ids[kept])
        self._check_order(rows)
        self._check_contents(rows, notes)

    def _check_addresses(self, rows: NDArray[np.int64], from_ids: NDArray[Any], to_ids: NDArray[Any]) -> None:
        reference, tally = self._reference, self.tally
        receivers = reference.receivers[rows]
        right = from_ids == reference.agents[reference.senders[rows]]
        right &= to_ids == reference.agents[receivers]
        right &= reference.group_of[receivers] == self._group
        tally.misdirected += len(rows) - int(right.sum())
        np.add.at(tally.by_agent, receivers[right.astype(bool)], 1)

    def _check_order(self, rows: NDArray[np.int64]) -> None:
        """Count messages that are out of order: the previous arrival of the same pair has a higher row.

        If the previous arrival has the same row, the message is a duplicate, and not out of order.
        """
        if not len(rows):
            return
        pairs = self._reference.pairs[rows]
        order = np.argsort(pairs, kind="stable")
        pairs, rows = pairs[order], rows[order]
        starts = np.append(True, pairs[1:] != pairs[:-1])
        before = np.append(-1, rows[:-1])
        before[starts] = self._latest[pairs[starts]]
        self.tally.out_of_order += int((rows < before).sum())
        ends = np.append(starts[1:], True)
        self._latest[pairs[ends]] = rows[ends]

    def _check_contents(self, rows: NDArray[np.int64], notes: list[Note]) -> None:
        reference = self._reference
        changed = np.fromiter((note.time for note in notes), np.float64, len(notes)) != reference.times[rows]
        if reference.digests is not None:
            changed |= digests(note.text for note in notes) != reference.digests[rows]
        self.tally.changed += int(changed.sum())


def _parse(lines: Sequence[bytes]) -> tuple[list[Note], NDArray[np.intp]]:
    """Decode payloads in one pass, or one by one if some are not valid; return the valid payloads and their rows."""
    try:
        return _read_notes(b"[%b]" % b",".join(lines)), np.arange(len(lines))
    except msgspec.MsgspecError:
        pass
    notes: list[Note] = []
    kept: list[int] = []
    for row, line in enumerate(lines):
        try:
            notes.append(_read_note(line))
        except msgspec.MsgspecError:
            continue
        kept.append(row)
    return notes, np.array(kept, np.intp)


class ReplaySent(NamedTuple):
    """The result of sending a group's messages: the fate of each (uint8), and the beginning and end in unix seconds.

    `blocked_by` has the number of messages that each rule blocked.
    """

    codes: NDArray[np.uint8]
    blocked_by: Counter[str]
    began_at: float
    ended_at: float


class Worker:
    """Sender and receiver of one group.

    This is a plain object in an actor, because Ray would wrap the methods of the actor itself.
    """

    def __init__(self, messager: Messager, reference: Reference, share: WorkerShare) -> None:
        self._messager = messager
        self._reference = reference
        self._share = share
        self._checker = Checker(reference, share.group)
        self._expected: int | None = None
        self._sent = 0

    @property
    def progress(self) -> tuple[int, int]:
        """Return the numbers of messages sent and received."""
        return self._sent, self._checker.tally.received

    async def send(self) -> ReplaySent:
        """Send the group's messages in order, each at its due time, or at once if there are no due times."""
        codes = np.zeros(len(self._share.rows), np.uint8)
        blocked_by: Counter[str] = Counter()
        began_at = time.time()
        start = time.monotonic()
        for low, high, early in self._chunks(start):
            if early > 0:
                await asyncio.sleep(early)
            receipts = await self._messager.send_columns(*self._columns(low, high))
            codes[low:high] = receipts.codes
            blocked_by += receipts.blocked_by()
            self._sent += high - low
        return ReplaySent(codes, blocked_by, began_at, time.time())

    def _chunks(self, start: float) -> Iterator[tuple[int, int, float]]:
        """Yield chunks of messages.

        A chunk is given as its first row, the row after its last one, and the seconds to wait before it is sent.

        Args: `start` is the time, by the monotonic clock, at which the worker began to send.
        """
        due, rows, low = self._share.due, len(self._share.rows), 0
        while low < rows:
            high, early = min(rows, low + CHUNK_ROWS), 0.0
            if due is not None:
                elapsed = time.monotonic() - start
                ready = int(np.searchsorted(due, elapsed, side="right"))
                high = min(high, max(ready, low + 1))
                early = float(due[low]) - elapsed
            yield low, high, early
            low = high

    def _columns(self, low: int, high: int) -> tuple[Any, Any, list[dict[str, Any]]]:
        reference, share = self._reference, self._share
        rows = share.rows[low:high]
        payloads: list[dict[str, Any]] = [
            {"n": n, "time": at} for n, at in zip(rows.tolist(), reference.times[rows].tolist(), strict=True)
        ]
        if share.texts is not None:
            for payload, text in zip(payloads, share.texts[low:high], strict=True):
                payload["text"] = text
        return reference.agents[reference.senders[rows]], reference.agents[reference.receivers[rows]], payloads

    def expect(self, messages: int) -> None:
        """Set the number of messages that were delivered to this group, which is known when all receipts have come."""
        self._expected = messages

    async def receive(self) -> ReceivedTally:
        """Receive and check messages.

        The receiver stops only after `expect` has set the number of messages. It stops when all of them have come and a
        fetch is empty, or when no message has come for `PATIENCE_S` seconds.
        """
        checker, last = self._checker, time.monotonic()
        while True:
            messages = await self._messager.fetch_messages(timeout=TICK_S)
            if len(messages):
                last = time.monotonic()
                checker.take(messages.data, messages.from_ids, messages.to_ids, messages.sent_at, time.time())
            elif self._expected is None:
                last = time.monotonic()
            elif checker.tally.received >= self._expected or time.monotonic() - last > PATIENCE_S:
                return checker.tally

    async def exchange(self, own: AgentId, other: AgentId, rounds: int, *, first: bool) -> list[float]:
        """Send and receive messages one by one, in turn with another worker; return the latencies in seconds.

        Only one message is in flight at any time.

        Args: `first` says which worker sends the first message: this one (True) or the other one (False).
        Raises: MessagingError if a message is blocked or does not arrive.
        """
        channel, found = self._messager.get_agent_chat_channel(other), []
        for number in range(2 * rounds):
            if first == (number % 2 == 0):
                receipt = await self._messager.send_message(channel, {"round": number}, own, other)
                if not receipt:
                    why = "" if receipt.rule is None else f" by the rule {receipt.rule!r} ({receipt.reason})"
                    raise MessagingError(
                        f"the message from agent {own!r} to agent {other!r} that measures the latency is "
                        f"{receipt.fate}{why}: use rules that let this message pass"
                    )
                continue
            messages = await self._messager.fetch_messages(timeout=PATIENCE_S)
            now = time.time()
            if not len(messages):
                raise MessagingError(
                    f"the message from agent {other!r} to agent {own!r} that measures the latency did not arrive "
                    f"within {PATIENCE_S:g} s: look for an error of the other worker, then start again"
                )
            found.append(now - messages[0].sent_at)
        return found
