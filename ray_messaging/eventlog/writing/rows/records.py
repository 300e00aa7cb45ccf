"""From an entry of a stream to what of it belongs in the event log."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import INT64_MAX, INT64_MIN
from ray_messaging.errors import FrameError
from ray_messaging.eventlog.writing.rows.columns import Part
from ray_messaging.model.batch import Batch
from ray_messaging.receipt import DELIVERED, PUBLISHED, UNDELIVERABLE
from ray_messaging.transports.log_store import LogItem
from ray_messaging.wire.frames import decode
from ray_messaging.wire.log_notes import LogNote, decode_log_note


class Taken(NamedTuple):
    """One entry, decoded: what of it belongs in the log (None: nothing), and how many messages the entry holds."""

    part: Part | None
    messages: int


NOTHING = Taken(None, 0)


def take(item: LogItem) -> Taken:
    """Decode an entry that has a frame; raise FrameError.

    A mailbox's rows of which a note tells in the log stream are left to that note.
    """
    batch = decode(item.frame)
    if batch.lines is None:
        raise FrameError("this is no valid frame: it has no payloads")
    if isinstance(batch.step, int) and not INT64_MIN <= batch.step <= INT64_MAX:
        raise FrameError(f"this is no valid frame: its step {batch.step} does not fit 64 bits")
    if item.note is None:
        return Taken(_delivered(item, batch), len(batch))
    note = decode_log_note(item.note, len(batch))
    fates = _fates(note, item.takers, len(batch))
    part = Part(batch, None, item.entry, note.mailbox or None, fates, note) if len(batch) else None
    return Taken(part, len(batch))


def _delivered(item: LogItem, batch: Batch) -> Part | None:
    mailbox = item.stream.rpartition(":")[0]
    if batch.noted is None or not len(batch.noted):
        return Part(batch, None, item.entry, mailbox, DELIVERED) if len(batch) else None
    kept = np.ones(len(batch), np.bool_)
    kept[batch.noted] = False
    rows = np.flatnonzero(kept)
    return Part(batch.take(rows), rows.astype(np.int32), item.entry, mailbox, DELIVERED) if len(rows) else None


def _fates(note: LogNote, takers: list[int] | None, rows: int) -> int | NDArray[np.uint8]:
    if note.fate != PUBLISHED or note.counted:
        return note.fate
    if takers is None or len(takers) != rows:
        raise FrameError(f"a note for the event log counts the takers of {len(takers or ())} messages, not of {rows}")
    return np.where(np.asarray(takers, np.int64) > 0, PUBLISHED, UNDELIVERABLE).astype(np.uint8)
