"""Cursors of mailboxes, and the acknowledged ranges behind them.

A server keeps ranges as text: `entry row entry row count`, behind the first cursor up to the second.
"""

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

Rows = list[tuple[int, float]]  # low to high of each run; inf: to the end of the entry


class Cursor(NamedTuple):
    """Up to where a mailbox was handled: `row` rows of an entry, or with row 0 all of it."""

    entry: str
    row: int


START = Cursor("0-0", 0)


class AckRange(NamedTuple):
    """Range of `rows` acknowledged messages behind `after`, up to `end`; an earlier message is unacknowledged."""

    after: Cursor
    end: Cursor
    rows: int


class SelectiveAcks(NamedTuple):
    """All that is acknowledged behind the cursor: the ranges (see `encode_ranges`; b"": none), and their messages."""

    ranges: bytes
    messages: int


def encode_ranges(ranges: Iterable[AckRange]) -> bytes:
    """Encode ranges in their order; those that adjoin become one."""
    merged: list[AckRange] = []
    for found in ranges:
        if merged and merged[-1].end == found.after:
            merged[-1] = AckRange(merged[-1].after, found.end, merged[-1].rows + found.rows)
        else:
            merged.append(found)
    return ";".join(f"{after.entry} {after.row} {end.entry} {end.row} {rows}" for after, end, rows in merged).encode()


def decode_ranges(data: bytes) -> list[AckRange]:
    """Decode ranges."""
    found = []
    for text in data.decode().split(";") if data else ():
        after, after_row, end, end_row, rows = text.split(" ")
        found.append(AckRange(Cursor(after, int(after_row)), Cursor(end, int(end_row)), int(rows)))
    return found


def order(entry: str) -> tuple[int, int]:
    """Return the sort key of entry ids."""
    milliseconds, _, number = entry.partition("-")
    return int(milliseconds), int(number)


def place(cursor: Cursor) -> tuple[int, int, float]:
    """Return the sort key of cursors."""
    return *order(cursor.entry), cursor.row or inf


def before(entry: str) -> str:
    """Return the largest entry id below one."""
    milliseconds, _, number = entry.partition("-")
    if int(number):
        return f"{milliseconds}-{int(number) - 1}"
    return f"{int(milliseconds) - 1}-{2**64 - 1}"


def following(entry: str) -> str:
    """Return the smallest entry id above one."""
    milliseconds, _, number = entry.partition("-")
    return f"{milliseconds}-{int(number) + 1}"


def keep_of(cursor: Cursor) -> str:
    """Return the oldest entry that a reader at a cursor needs."""
    return following(cursor.entry) if cursor.row == 0 else cursor.entry


def begins(found: AckRange, entry: str) -> float:
    """Return the first row of an entry that a range could hold; inf: it begins behind it."""
    at, after = order(entry), order(found.after.entry)
    return 0 if after < at else inf if after > at else found.after.row or inf


def ends(found: AckRange, entry: str) -> float:
    """Return the row of an entry before which a range ends; inf: it holds the entry to its end."""
    at, end = order(entry), order(found.end.entry)
    return inf if end > at else 0 if end < at else found.end.row or inf


def decode_rows(text: str) -> Rows:
    """Decode rows of a dead letter that were handled, as `3-7,9-`; malformed parts, which others wrote, are ignored."""
    found: Rows = []
    for run in text.split(",") if text else ():
        low, _, high = run.partition("-")
        if low.isdigit() and (not high or high.isdigit()):
            found.append((int(low), int(high) if high else inf))
    return found
