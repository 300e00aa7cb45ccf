"""Decoding of the entries of a stream into rows for the event log, in pieces and chunks of limited size.

An entry is split into pieces if its rows have too many bytes: a payload to many recipients is small in a frame, but is
repeated in each row. Several pieces or entries are collected in a chunk, which becomes one batch of rows.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ray_messaging.errors import FrameError
from ray_messaging.eventlog.writing.hearers import Hearers, HearersOf
from ray_messaging.eventlog.writing.log_columns import LoggedPart
from ray_messaging.eventlog.writing.payloads import Kind, kind_of
from ray_messaging.model.batch import Batch
from ray_messaging.model.extension import Extension
from ray_messaging.model.fates import DELIVERED, PUBLISHED, UNDELIVERABLE
from ray_messaging.steps.box_frames import outside_ordinals
from ray_messaging.transports.log_store import LogItem, mailbox_of
from ray_messaging.wire.frames import decode
from ray_messaging.wire.notes import Before, LogNote, RuleNote, decode_log_note

# A batch has about this many rows. Besides the time for its rows, each batch takes 0.4 ms. For a batch of only 8,192
# rows, these 0.4 ms would be a fifth of its whole time. Columns of more than 32,768 rows would not fit the processor's
# cache.
CHUNK_ROWS = 32_768
# A batch has at most about this many bytes of payloads, because a segment can only be closed between batches.
PIECE_BYTES = 16 * 2**20
# A batch has at most about this many cells, the product of its rows and its typed columns. Each row takes space in each
# column, even if the row has no value in the column.
CELLS = 2**23

T = TypeVar("T")


class DecodedEntry(NamedTuple):
    """A decoded entry of a stream: its rows for the log (None: it has none), and its number of messages."""

    part: LoggedPart | None
    messages: int


NOTHING = DecodedEntry(None, 0)


def decode_entry(item: LogItem, hearers_of: HearersOf = lambda _: None) -> DecodedEntry:
    """Decode an entry that contains a frame.

    A frame that a step has sent gives no rows, because the log reads them from the step's boxes (see `step_rows`). A
    frame of a mailbox gives the rows that were delivered. An entry with a note gives the rows that the note describes.

    Args: `hearers_of` is a function that returns the hearers of a batch's rows. It returns None if the rows are not
    broadcasts, or if the hearers are not known.

    Raises: FrameError if the frame or its note is not valid.
    """
    batch = decode(item.frame)
    if batch.lines is None:
        raise FrameError("a frame (a batch of messages) on the server has no payloads: find the program that wrote it")
    if item.note is None and batch.ordinal is not None:
        return DecodedEntry(None, batch.messages)
    if item.note is None:
        mailbox = mailbox_of(item.stream)
        return DecodedEntry(delivered(batch, item.entry, mailbox, hearers_of(batch)), batch.messages)
    note = decode_log_note(item.note, len(batch))
    if item.step is not None:
        before, places = batch.extension or Extension(), np.frombuffer(note.places, "<u4")
        batch.step = item.step
        batch.extension = Extension(
            deliver=item.step,
            ordinal=None if item.first is None or not len(places) else outside_ordinals(item.first, places),
            expects_answer=before.expects_answer,
            caused_by=before.caused_by,
            audience=before.audience,
        )
    return DecodedEntry(noted(batch, item.entry, note, item.takers), len(batch))


def delivered(batch: Batch, entry: str, mailbox: str, hearers: Hearers | None = None) -> LoggedPart | None:
    """Return the rows of a mailbox's frame that were delivered as they were sent; None if there are none.

    The rows that a rule changed are left out, because the log stream has a note about them.
    """
    part = LoggedPart(batch, None, entry, mailbox, DELIVERED, hearers=hearers) if len(batch) else None
    if part is None or batch.noted is None:
        return part
    gone = np.zeros(len(batch), np.bool_)
    gone[batch.noted] = True
    return without(part, gone)


def noted(batch: Batch, entry: str, note: LogNote, takers: list[int] | None) -> LoggedPart | None:
    """Return the rows that a log note describes, or None if there are none.

    A log note records which messages were blocked, rewritten, undeliverable or published.

    Args: `takers` has, for published messages, the number of clients that received each of them.

    Raises: FrameError if `takers` is needed and does not fit the rows.
    """
    fates = _fates(note, takers, len(batch))
    return LoggedPart(batch, None, entry, note.mailbox or None, fates, note) if len(batch) else None


def _fates(note: LogNote, takers: list[int] | None, rows: int) -> int | NDArray[np.uint8]:
    if note.fate != PUBLISHED:
        return note.fate
    if takers is None or len(takers) != rows:
        raise FrameError(
            f"the server has counted the receiving clients of {len(takers or ())} messages for the event log, but the "
            f"frame has {rows} messages: please report this"
        )
    return np.where(np.asarray(takers, np.int64) > 0, PUBLISHED, UNDELIVERABLE).astype(np.uint8)


def payload_bytes(part: LoggedPart) -> int:
    """Return roughly how many bytes of memory the payloads of some log rows take."""
    lines = part.batch.lines
    assert lines is not None
    said = lines.nbytes if lines.index is None else len(part.batch) * (lines.nbytes // max(1, lines.count))
    return said + sum(len(each.rows) // 4 * len(each.line) for each in _before(part))


def pieces(part: LoggedPart, begin: int, limit: int) -> Iterator[tuple[LoggedPart, int]]:
    """Yield the rows for the log from row `begin` on, in pieces with at most `limit` bytes of payloads.

    Each piece comes with the number of the row after the last row of the piece. A row with more than `limit` bytes is a
    piece of its own. A whole frame is one piece, however large it is, if no rows share a payload and none was
    rewritten.
    """
    rows, lines = len(part.batch), part.batch.lines
    assert lines is not None
    rewritten = _before(part)
    if begin == 0 and not rewritten and (lines.index is None or rows * lines.nbytes <= limit):
        yield part, rows
        return
    lengths = lines.weights
    lengths = lengths if lines.index is None else lengths[lines.index]
    for each in rewritten:
        lengths[np.frombuffer(each.rows, "<u4")] += len(each.line)
    ends = np.cumsum(lengths)
    while begin < rows:
        room = limit + (int(ends[begin - 1]) if begin else 0)
        end = max(begin + 1, int(np.searchsorted(ends, room, "right")))
        yield _of_rows(part, np.arange(begin, end)), end
        begin = end


def without(part: LoggedPart, gone: NDArray[np.bool_]) -> LoggedPart | None:
    """Return rows for the log without those for which `gone` is True, or None if no row is left."""
    stay = np.flatnonzero(~gone)
    if len(stay) == len(gone):
        return part
    return _of_rows(part, stay) if len(stay) else None


def _of_rows(part: LoggedPart, rows: NDArray[np.intp]) -> LoggedPart:
    """Return only some of the rows that are to be logged, in the given order."""
    return LoggedPart(
        batch=part.batch.take(rows),
        rows=rows.astype(np.int32) if part.rows is None else part.rows[rows],
        entry=part.entry,
        mailbox=part.mailbox,
        fates=part.fates[rows] if isinstance(part.fates, np.ndarray) else part.fates,
        note=None if part.note is None else _note_of_rows(part.note, rows, len(part.batch)),
        hearers=None if part.hearers is None else part.hearers.take(rows),
    )


def _note_of_rows(note: LogNote, rows: NDArray[np.intp], count: int) -> LogNote:
    """Return what a note says about some rows of a batch, as a note that numbers these rows from 0.

    A note is the log's record of the blocked, rewritten, undeliverable or published rows of a batch.

    Args: `count` is the number of rows of the whole batch.
    """
    places = np.full(count, -1)
    places[rows] = np.arange(len(rows))

    def moved(noted: bytes) -> bytes:
        found = places[np.frombuffer(noted, "<u4")]
        kept: bytes = found[found >= 0].astype("<u4").tobytes()
        return kept

    why = tuple(RuleNote(each.rule, each.reason, moved(each.rows)) for each in note.why)
    before = tuple(Before(noted, each.line) for each in note.before if (noted := moved(each.rows)))
    return LogNote(note.fate, note.mailbox, why, before)


def _before(part: LoggedPart) -> tuple[Before, ...]:
    return () if part.note is None else part.note.before


def chunks_of(parts: Iterable[tuple[LoggedPart | None, T]]) -> Iterator[tuple[list[LoggedPart], list[T]]]:
    """Collect rows for the log in chunks that fit the processor's cache; yield each chunk with its marks.

    A chunk is a list of parts; each part has rows of one stream entry. The caller passes a mark with each part, such as
    the position of the entry, and gets the mark back with the chunk of the part. For an entry without rows, the caller
    passes None and a mark.
    """
    chunk: list[LoggedPart] = []
    marks: list[T] = []
    kinds = set[Kind]()
    rows = nbytes = columns = 0
    for part, mark in parts:
        if part is not None:
            if chunk and (rows >= CHUNK_ROWS or nbytes + payload_bytes(part) > PIECE_BYTES or rows * columns > CELLS):
                yield chunk, marks
                chunk, marks, kinds, rows, nbytes, columns = [], [], set(), 0, 0, 0
            chunk.append(part)
            if (kind := kind_of(part.batch.lines)) not in kinds:
                kinds.add(kind)
                columns += len(kind)
            rows += len(part.batch)
            nbytes += payload_bytes(part)
        marks.append(mark)
    if marks:
        yield chunk, marks
