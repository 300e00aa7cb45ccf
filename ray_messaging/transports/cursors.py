"""Cursors of mailboxes, and the ranges of messages after them that were acknowledged out of order.

The server stores each range as text, `entry row entry row count`. The first two values are the cursor after which the
range begins. The next two are the cursor at which it ends. `count` is the number of its messages.
"""

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

# Ranges of rows: the first row, and the row after the last one, which is inf if the range ends with the entry.
Rows = list[tuple[int, float]]


class Cursor(NamedTuple):
    """The position up to which a mailbox was handled: the first `row` rows of `entry`, or all rows if `row` is 0."""

    entry: str
    row: int


START = Cursor("0-0", 0)


class AckRange(NamedTuple):
    """Acknowledged messages of a mailbox: all messages after the cursor `after`, up to the cursor `end`.

    `rows` is their number. Some messages before the range are not acknowledged.
    """

    after: Cursor
    end: Cursor
    rows: int


class SelectiveAcks(NamedTuple):
    """The acknowledged messages after the cursor: their number, and their encoded ranges (b"" if there are none)."""

    ranges: bytes
    messages: int


def encode_ranges(ranges: Iterable[AckRange]) -> bytes:
    """Encode ranges, which are given in ascending order. Adjacent ranges are joined."""
    merged: list[AckRange] = []
    for found in ranges:
        if merged and merged[-1].end == found.after:
            merged[-1] = AckRange(merged[-1].after, found.end, merged[-1].rows + found.rows)
        else:
            merged.append(found)
    return ";".join(f"{after.entry} {after.row} {end.entry} {end.row} {rows}" for after, end, rows in merged).encode()


def decode_ranges(data: bytes) -> list[AckRange]:
    """Decode ranges that `encode_ranges` has encoded."""
    found = []
    for text in data.decode().split(";") if data else ():
        after, after_row, end, end_row, rows = text.split(" ")
        found.append(AckRange(Cursor(after, int(after_row)), Cursor(end, int(end_row)), int(rows)))
    return found


def order(entry: str) -> tuple[int, int]:
    """Return a tuple by which ids of a stream's entries can be sorted."""
    milliseconds, _, number = entry.partition("-")
    return int(milliseconds), int(number)


def place(cursor: Cursor) -> tuple[int, int, float]:
    """Return a tuple by which cursors can be sorted: a cursor further on in the mailbox has a greater tuple."""
    return *order(cursor.entry), cursor.row or inf


def before(entry: str) -> str:
    """Return the largest possible entry id below the id `entry`."""
    milliseconds, _, number = entry.partition("-")
    if int(number):
        return f"{milliseconds}-{int(number) - 1}"
    return f"{int(milliseconds) - 1}-{2**64 - 1}"


def following(entry: str) -> str:
    """Return the smallest possible entry id above the id `entry`."""
    milliseconds, _, number = entry.partition("-")
    return f"{milliseconds}-{int(number) + 1}"


def keep_of(cursor: Cursor) -> str:
    """Return the lowest entry id that a reader at this cursor may still need."""
    return following(cursor.entry) if cursor.row == 0 else cursor.entry


def begins(found: AckRange, entry: str) -> float:
    """Return the first row of an entry that is not before a range, or inf if the whole entry is before the range."""
    at, after = order(entry), order(found.after.entry)
    return 0 if after < at else inf if after > at else found.after.row or inf


def ends(found: AckRange, entry: str) -> float:
    """Return the first row of an entry that is after a range.

    Return 0 if the whole entry is after the range, or inf if no row is.
    """
    at, end = order(entry), order(found.end.entry)
    return inf if end > at else 0 if end < at else found.end.row or inf


def decode_rows(text: str) -> Rows:
    """Decode the handled rows of a dead letter, such as `3-7,9-`.

    Other clients may have written the text, so invalid ranges in it are ignored.
    """
    found: Rows = []
    for run in text.split(",") if text else ():
        low, _, high = run.partition("-")
        if low.isdigit() and (not high or high.isdigit()):
            found.append((int(low), int(high) if high else inf))
    return found
