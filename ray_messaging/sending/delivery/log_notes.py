"""What the event log is told of messages of which no mailbox's stream tells, or not all."""

from collections import defaultdict

import numpy as np

from ray_messaging.model.batch import Batch
from ray_messaging.receipt import BLOCKED, DELIVERED, PUBLISHED
from ray_messaging.sending.delivery.in_flight_batch import InFlightBatch, Rows
from ray_messaging.transports.base import LoggedFrame
from ray_messaging.wire.frames import encode
from ray_messaging.wire.log_notes import Before, LogNote, Why, encode_log_note


def blocked(posting: InFlightBatch, rows: Rows) -> LoggedFrame:
    """Tell of rows that a rule blocked, with the payloads that they had."""
    reasons: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for at, row in enumerate(rows.tolist()):
        reasons[posting.stopped[row]].append(at)
    why = tuple(Why(rule, reason, _bytes(found)) for (rule, reason), found in reasons.items())
    return _noted(posting.outgoing.take(rows), LogNote(BLOCKED, why=why))


def published(posting: InFlightBatch, batch: Batch, rows: Rows | None) -> LoggedFrame:
    """Tell of rows (None: all) of a posting that no mailbox owns; who took them only the server knows."""
    places = range(len(posting.batch)) if rows is None else rows.tolist()
    return _noted(batch, _rewriting(posting, PUBLISHED, "", list(places)))


def settled(posting: InFlightBatch, rows: Rows, fate: int, mailbox: str) -> LoggedFrame:
    """Tell of rows, the fate of which is known, where no mailbox's stream tells of any."""
    return _noted(posting.outgoing.take(rows), _rewriting(posting, fate, mailbox, rows.tolist(), counted=True))


def rewritten(
    posting: InFlightBatch, batch: Batch, rows: Rows | None, mailbox: str
) -> tuple[LoggedFrame | None, Batch]:
    """Tell of those rows of a frame that were rewritten; return the frame's batch with them marked."""
    places = list(range(len(posting.batch)) if rows is None else rows.tolist())
    marked = np.array([at for at, row in enumerate(places) if row in posting.rewritten], np.intp)
    if not len(marked):
        return None, batch
    note = _rewriting(posting, DELIVERED, mailbox, [places[at] for at in marked.tolist()])
    noted = _noted(batch.take(marked), note)
    frame = batch.with_payloads({})
    frame.noted = marked.astype(np.uint32)
    return noted, frame


def _rewriting(posting: InFlightBatch, fate: int, mailbox: str, places: list[int], *, counted: bool = False) -> LogNote:
    """Build a note on rows of a posting, with what those that were rewritten said before."""
    rules: defaultdict[str, list[int]] = defaultdict(list)
    said: defaultdict[bytes, list[int]] = defaultdict(list)
    lines = posting.batch.lines
    for at, row in enumerate(places if posting.rewritten and lines is not None else ()):
        if row in posting.rewritten and lines is not None:
            rules[posting.rewritten[row][0]].append(at)
            said[lines.row(row)].append(at)
    why = tuple(Why(rule, "", _bytes(found)) for rule, found in rules.items())
    return LogNote(fate, mailbox, why, tuple(Before(_bytes(found), line) for line, found in said.items()), counted)


def _noted(batch: Batch, note: LogNote) -> LoggedFrame:
    return LoggedFrame(encode(batch), encode_log_note(note), len(batch))


def _bytes(rows: list[int]) -> bytes:
    return np.array(rows, "<u4").tobytes()
