"""Cut what an entry becomes into pieces: one payload to many recipients is short as a frame, and long as rows."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ray_messaging.eventlog.writing.rows.columns import Part
from ray_messaging.wire.log_notes import Before, LogNote, Why


def payload_bytes(part: Part) -> int:
    """Return about how many bytes of payload the rows have in memory."""
    lines = part.batch.lines
    assert lines is not None
    said = lines.nbytes if lines.index is None else len(part.batch) * (lines.nbytes // max(1, lines.count))
    return said + sum(len(each.rows) // 4 * len(each.line) for each in _before(part))


def pieces(part: Part, begin: int, limit: int) -> Iterator[tuple[Part, int]]:
    """Yield a part's rows from `begin` on, at most so many bytes of payload at a time, each with where it ends."""
    rows, lines = len(part.batch), part.batch.lines
    assert lines is not None
    rewritten = _before(part)
    if begin == 0 and not rewritten and (lines.index is None or rows * lines.nbytes <= limit):
        yield part, rows
        return
    lengths = np.fromiter(map(len, lines.list), np.int64, lines.count)
    lengths = lengths if lines.index is None else lengths[lines.index]
    for each in rewritten:
        lengths[np.frombuffer(each.rows, "<u4")] += len(each.line)
    ends = np.cumsum(lengths)
    while begin < rows:
        room = limit + (int(ends[begin - 1]) if begin else 0)
        end = max(begin + 1, int(np.searchsorted(ends, room, "right")))
        yield _cut(part, begin, end), end
        begin = end


def _before(part: Part) -> tuple[Before, ...]:
    return () if part.note is None else part.note.before


def _cut(part: Part, begin: int, end: int) -> Part:
    rows = np.arange(begin, end)
    return Part(
        batch=part.batch.take(rows),
        rows=rows.astype(np.int32) if part.rows is None else part.rows[begin:end],
        entry=part.entry,
        mailbox=part.mailbox,
        fates=part.fates[begin:end] if isinstance(part.fates, np.ndarray) else part.fates,
        note=None if part.note is None else _cut_note(part.note, begin, end),
    )


def _cut_note(note: LogNote, begin: int, end: int) -> LogNote:
    why = tuple(Why(why.rule, why.reason, _within(why.rows, begin, end).tobytes()) for why in note.why)
    said = [(_within(each.rows, begin, end), each.line) for each in note.before]
    before = tuple(Before(rows.tobytes(), line) for rows, line in said if len(rows))
    return LogNote(note.fate, note.mailbox, why, before)


def _within(rows: bytes, begin: int, end: int) -> NDArray[np.uint32]:
    found = np.frombuffer(rows, "<u4")
    return (found[(found >= begin) & (found < end)] - begin).astype("<u4")
