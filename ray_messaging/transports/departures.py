"""Values of departures: agents leave a mailbox in one call, with all that waits for them."""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import msgspec

from ray_messaging.addressing.directory import Record
from ray_messaging.transports.cursors import Cursor, SelectiveAcks

# The sender of a frame without messages: agents came to the mailbox from the one that is the frame's only topic.
ARRIVAL = ":agents"


class Parcel(NamedTuple):
    """A frame that goes with agents, or stays behind them, and the number of its messages."""

    rows: int
    frame: bytes


class Release(msgspec.Struct):
    """One attempt to let agents leave a mailbox, numbered from 1 under the epoch of its reader.

    All entries from the first one that was not fetched up to `last` are acknowledged. What is in them for other agents,
    `stay`, is written into the mailbox again. `go` is written into the mailbox of `target`, or with None among the dead
    letters. `cursor`, `messages`, `nbytes` and `acks` are as in a transport's `commit`. The attempt counts only under
    the `version` of the directory from which its records were made.
    """

    record: Record
    epoch: int
    number: int
    version: int
    last: str
    cursor: Cursor
    messages: int
    nbytes: int
    acks: SelectiveAcks
    stay: Sequence[Parcel]
    go: Sequence[Parcel]
    target: Record | None
    reason: str


class Released(IntEnum):
    """Outcome of an attempt; if it is not DONE, nothing has changed but for BEHIND."""

    DONE = 0
    STALE_DIRECTORY = 1
    BEHIND = 2  # the mailbox has later entries; it takes no more of them until the next attempts end, or are given up
    FULL = 3  # the target is full
    TOO_LARGE = 4  # the target would not hold a frame if it were empty
    LOG_FULL = 5
    GONE = 6  # the target's mailbox does not exist
    OVER = 7  # it was given up
    NOT_YET = 8  # in steps: the target counts from a later step than the next one


class Rehosting(msgspec.Struct):
    """One attempt to move agents in an experiment with steps, or (`target` None) to remove them.

    The records name the directory's version after `version` as that of the change.
    """

    record: Record
    target: Record | None
    version: int


class Rehosted(NamedTuple):
    """Outcome of an attempt, and the step from which it counts; with NOT_YET that from which the target counts."""

    outcome: Released
    since: int
