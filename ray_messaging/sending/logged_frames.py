"""Log notes, which tell the event log what it finds in no mailbox: some messages, and facts about messages."""

import numpy as np

from ray_messaging.model.batch import Batch
from ray_messaging.model.fates import BLOCKED, DELIVERED, PUBLISHED
from ray_messaging.sending.in_flight_batch import InFlightBatch, Rows
from ray_messaging.transports.transport_values import LoggedFrame
from ray_messaging.wire.frames import encode
from ray_messaging.wire.notes import Before, LogNote, before_of, encode_log_note, why_of


def blocked(in_flight: InFlightBatch, rows: Rows) -> LoggedFrame:
    """Build the frame and the note that tell the event log about blocked rows.

    The frame has the payloads that the blocking rule has read. If an earlier rule has rewritten a row, the note has the
    row's original payload.
    """
    places = rows.tolist()
    why = why_of(map(in_flight.outcome.blocks.__getitem__, places))
    return logged(in_flight.outgoing.take(rows), LogNote(BLOCKED, why=why, before=_originals(in_flight, places)))


def published(in_flight: InFlightBatch, batch: Batch, rows: Rows | None) -> LoggedFrame:
    """Build the frame and the note that tell the event log about rows (None: all) on channels without a mailbox.

    The note does not say how many subscribers got these rows. Only the server knows this.
    """
    places = range(len(in_flight.batch)) if rows is None else rows.tolist()
    return logged(batch, _note(in_flight, PUBLISHED, "", list(places)))


def rewritten(
    in_flight: InFlightBatch, batch: Batch, rows: Rows | None, mailbox: str, frame: Batch, places: Rows | None
) -> tuple[LoggedFrame | None, Batch]:
    """Return what tells the event log about rewritten rows, and a mailbox's frame in which these rows are marked.

    If no row was rewritten, return None and the frame as it is.

    Args: `rows` are the rows of the batch in flight that go to the mailbox (None: all), and `batch` has these rows.
    `frame` is `batch`, or a folded batch, which has one row for each broadcast. `places` has, for each of `rows`, its
    row in the folded batch. `places` is None if `frame` is `batch`.
    """
    found = list(range(len(in_flight.batch)) if rows is None else rows.tolist())
    marked = np.array([at for at, row in enumerate(found) if row in in_flight.rewritten], np.intp)
    if not len(marked):
        return None, frame
    there = (marked if places is None else places[marked]).astype("<u4")
    note = _note(in_flight, DELIVERED, mailbox, [found[at] for at in marked.tolist()], there.tobytes())
    frame = frame.with_payloads({})
    frame.noted = np.unique(there)
    return logged(batch.take(marked), note), frame


def _note(in_flight: InFlightBatch, fate: int, mailbox: str, rows: list[int], places: bytes = b"") -> LogNote:
    """Build a note about rows. It has the original payloads of rows that rules have rewritten.

    Args: `fate`, `mailbox` and `places` are fields of the `LogNote`.
    """
    changes = in_flight.rewritten
    why = why_of((changes[row][0], "") if row in changes else None for row in rows)
    return LogNote(fate, mailbox, why, _originals(in_flight, rows), places)


def _originals(in_flight: InFlightBatch, places: list[int]) -> tuple[Before, ...]:
    """Return the payloads of rewritten rows, as the senders have sent them."""
    lines, changes = in_flight.batch.lines, in_flight.rewritten
    if lines is None:
        return ()
    return before_of({at: lines.row(row) for at, row in enumerate(places) if row in changes})


def logged(batch: Batch, note: LogNote) -> LoggedFrame:
    """Return a batch, and a note about it, encoded for the event log."""
    return LoggedFrame(encode(batch), encode_log_note(note), batch.rows)
