"""Checks of received messages: each is one of the traffic's, arrives once, in order, unchanged."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ray_messaging.replay.plan import Reference, digests


class Note(msgspec.Struct, gc=False):
    """Payload of a replayed message: its index in the traffic, its time and its text."""

    n: int
    time: float
    text: str = ""


_read_notes = msgspec.json.Decoder(list[Note]).decode
_read_note = msgspec.json.Decoder(Note).decode


@dataclass(slots=True, eq=False)
class Tally:
    """Counts of one group's received messages.

    `seen`: uint32 (n,), arrivals of each message; `by_agent`: int64, arrivals for each agent; `out_of_order`: messages
    that arrived after a later one of their ordered pair; `misdirected`: wrong ids, or another group's agent; `changed`:
    another text or time; `unexpected`: not of this traffic; `latencies`: float32, s.
    """

    seen: NDArray[np.uint32]
    by_agent: NDArray[np.int64]
    received: int = 0
    out_of_order: int = 0
    misdirected: int = 0
    changed: int = 0
    unexpected: int = 0
    last_at: float = 0.0
    latencies: NDArray[np.float32] | None = None


class Checker:
    """Checker of one group's received messages, batch by batch."""

    def __init__(self, reference: Reference, group: int) -> None:
        self._reference = reference
        self._group = group
        self._latest = np.full(int(reference.pairs.max(initial=-1)) + 1, -1, np.int64)  # by pair
        self._latencies: list[NDArray[np.float32]] = []
        self._tally = Tally(np.zeros(len(reference), np.uint32), np.zeros(len(reference.agents), np.int64))

    @property
    def received(self) -> int:
        """Return the number of messages received."""
        return self._tally.received

    @property
    def tally(self) -> Tally:
        """Return the counts."""
        self._tally.latencies = np.concatenate([np.zeros(0, np.float32), *self._latencies])
        return self._tally

    def take(
        self,
        lines: Sequence[bytes],
        from_ids: NDArray[Any],
        to_ids: NDArray[Any],
        sent_at: NDArray[np.float64],
        now: float,
    ) -> None:
        """Check one batch in order of arrival; times in unix s."""
        tally = self._tally
        tally.received += len(lines)
        tally.last_at = now
        self._latencies.append((now - sent_at).astype(np.float32))
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
        reference, tally = self._reference, self._tally
        receivers = reference.receivers[rows]
        right = from_ids == reference.agents[reference.senders[rows]]
        right &= to_ids == reference.agents[receivers]
        right &= reference.group_of[receivers] == self._group
        tally.misdirected += len(rows) - int(right.sum())
        np.add.at(tally.by_agent, receivers[right.astype(bool)], 1)

    def _check_order(self, rows: NDArray[np.int64]) -> None:
        """Count rows below their predecessor of the same pair. Equal rows are duplicates, counted elsewhere."""
        if not len(rows):
            return
        pairs = self._reference.pairs[rows]
        order = np.argsort(pairs, kind="stable")
        pairs, rows = pairs[order], rows[order]
        starts = np.append(True, pairs[1:] != pairs[:-1])
        before = np.append(-1, rows[:-1])
        before[starts] = self._latest[pairs[starts]]
        self._tally.out_of_order += int((rows < before).sum())
        ends = np.append(starts[1:], True)
        self._latest[pairs[ends]] = rows[ends]

    def _check_contents(self, rows: NDArray[np.int64], notes: list[Note]) -> None:
        reference = self._reference
        changed = np.fromiter((note.time for note in notes), np.float64, len(notes)) != reference.times[rows]
        if reference.digests is not None:
            changed |= digests(note.text for note in notes) != reference.digests[rows]
        self._tally.changed += int(changed.sum())


def _parse(lines: Sequence[bytes]) -> tuple[list[Note], NDArray[np.intp]]:
    """Decode payloads in one pass, or one by one if some are invalid. Return the valid ones and their rows."""
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
