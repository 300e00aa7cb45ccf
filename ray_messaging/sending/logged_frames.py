"""Notes for the event log about messages that are not in any mailbox's stream, or not with all their facts."""

from collections import defaultdict

import numpy as np

from ray_messaging.model.batch import Batch
from ray_messaging.receipt import BLOCKED, DELIVERED, PUBLISHED
from ray_messaging.sending.in_flight_batch import InFlightBatch, Rows
from ray_messaging.transports.values import LoggedFrame
from ray_messaging.wire.frames import encode
from ray_messaging.wire.notes import Before, LogNote, Why, encode_log_note


def blocked(in_flight: InFlightBatch, rows: Rows) -> LoggedFrame:
    """Build the note about blocked rows, with their payloads."""
    reasons: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for at, row in enumerate(rows.tolist()):
        reasons[in_flight.stopped[row]].append(at)
    why = tuple(Why(rule, reason, _bytes(found)) for (rule, reason), found in reasons.items())
    return _logged(in_flight.outgoing.take(rows), LogNote(BLOCKED, why=why))


def published(in_flight: InFlightBatch, batch: Batch, rows: Rows | None) -> LoggedFrame:
    """Build the note about rows (None: all) without a mailbox. Only the server knows how many subscribers got them."""
    places = range(len(in_flight.batch)) if rows is None else rows.tolist()
    return _logged(batch, _note(in_flight, PUBLISHED, "", list(places)))


def rewritten(
    in_flight: InFlightBatch, batch: Batch, rows: Rows | None, mailbox: str
) -> tuple[LoggedFrame | None, Batch]:
    """Build the note about the rewritten rows of a frame, or None if there are none; return also the frame's batch.

    In that batch the rewritten rows are marked.
    """
    places = list(range(len(in_flight.batch)) if rows is None else rows.tolist())
    marked = np.array([at for at, row in enumerate(places) if row in in_flight.rewritten], np.intp)
    if not len(marked):
        return None, batch
    note = _note(in_flight, DELIVERED, mailbox, [places[at] for at in marked.tolist()])
    logged = _logged(batch.take(marked), note)
    frame = batch.with_payloads({})
    frame.noted = marked.astype(np.uint32)
    return logged, frame


def _note(in_flight: InFlightBatch, fate: int, mailbox: str, places: list[int]) -> LogNote:
    """Build a note about rows, with the original payloads of rewritten ones."""
    rules: defaultdict[str, list[int]] = defaultdict(list)
    originals: defaultdict[bytes, list[int]] = defaultdict(list)
    lines = in_flight.batch.lines
    for at, row in enumerate(places if in_flight.rewritten and lines is not None else ()):
        if row in in_flight.rewritten and lines is not None:
            rules[in_flight.rewritten[row][0]].append(at)
            originals[lines.row(row)].append(at)
    why = tuple(Why(rule, "", _bytes(found)) for rule, found in rules.items())
    return LogNote(fate, mailbox, why, tuple(Before(_bytes(found), line) for line, found in originals.items()))


def _logged(batch: Batch, note: LogNote) -> LoggedFrame:
    return LoggedFrame(encode(batch), encode_log_note(note), len(batch))


def _bytes(rows: list[int]) -> bytes:
    return np.array(rows, "<u4").tobytes()
