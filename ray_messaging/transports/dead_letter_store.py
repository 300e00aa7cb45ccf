"""Dead letters of an experiment: frames that will not be delivered as they are."""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.directory import Record
from ray_messaging.transports.cursors import decode_rows

PAGE, PAGE_BYTES = 1000, 16 * 2**20  # of dead letters that are read at once
# Twice a frame of ours: one that is sent back to the server holds its mailbox's reader up.
WHOLE_BYTES, HEAD_BYTES = 32 * 2**20, 1024


class DeadFrame(NamedTuple):
    """Frame that will not be delivered; the first `row` rows were handled, and those of `acked` (see `cursors`).

    `born` counts the mailboxes that there had been when its own went, and `exclusive` says that this one alone listened
    for its agents; born is None where the mailbox's reader could not decode the frame.
    """

    id: str
    mailbox: str
    entry: str
    row: int
    reason: str
    frame: bytes
    at: float  # unix s
    born: int | None
    exclusive: bool
    acked: str = ""


class DeadFacts(NamedTuple):
    """Number of letters and their bytes; `dropped` ones were lost to the limit, the oldest first."""

    letters: int
    nbytes: int
    dropped: int
    dropped_bytes: int


class Listeners(NamedTuple):
    """The directory as of a version: each mailbox's record, and when it came.

    `born` has how many mailboxes there had been then, and the time (as the first part of an entry's id is).
    """

    version: int
    records: Sequence[Record]
    born: Mapping[str, tuple[int, int]]


class Returned(NamedTuple):
    """A frame on its way back into a mailbox."""

    mailbox: str
    rows: int
    frame: bytes


class Requeued(IntEnum):
    """Outcome of one call of `requeue`."""

    MISSING = 0  # there is no such letter, or not any more
    DONE = 1
    STALE_DIRECTORY = 2
    FULL = 3
    TOO_LARGE = 4  # the mailbox would not hold it if it were empty
    LOG_FULL = 5


def order_of(letter: str) -> tuple[int, ...]:
    """Return the place of a letter among all."""
    return tuple(map(int, letter.split("-")))


def unhandled(row: int, acked: str, rows: int) -> NDArray[np.intp]:
    """Return the unhandled rows of a letter: not those before `row`, nor those of `acked`."""
    left = np.ones(rows, bool)
    for low, high in [(0, row), *decode_rows(acked)]:
        left[low : int(min(high, rows))] = False
    return np.flatnonzero(left)


def kept_of(frame: bytes, reason: str) -> tuple[bytes, str]:
    """Return the part of an undecodable frame that is kept (the start of a huge one), and the reason."""
    if len(frame) <= WHOLE_BYTES:
        return frame, reason
    return frame[:HEAD_BYTES], f"{reason} (of its {len(frame)} bytes the first {HEAD_BYTES} are kept)"
