"""Values of the event log's side: every stream up to its end, and no entry trimmed before it was read."""

from typing import NamedTuple

from ray_messaging.errors import Fenced
from ray_messaging.transports.transport import LOG


class LogStreams(NamedTuple):
    """The streams that the event log must read, each by its key: `mailbox:born`.

    `born` tells apart the mailboxes that had one name after the other. `ended` are streams of mailboxes that were
    removed: nothing comes any more, and `note_written` drops them when they were read to their end.
    """

    live: list[str]
    ended: list[str]


class LogMark(NamedTuple):
    """Position of the log in a stream: an entry, and the totals that it took under its epoch.

    `messages` are rows of frames and `nbytes` bytes of frames; in the log stream, of notes, too.
    """

    entry: str
    messages: int
    nbytes: int


class LogItem(NamedTuple):
    """One entry of a stream that the event log reads: a frame, and in the log stream a note on it.

    `takers` counts, for a frame of published messages, the subscribers of each row. An entry of the log
    stream without a frame says that mailboxes came or went: read the list of streams again. `step` is the one that
    messages from outside were given, in an experiment with steps.
    """

    stream: str
    entry: str
    frame: bytes
    note: bytes | None = None
    takers: list[int] | None = None
    step: int | None = None


def mailbox_of(stream: str) -> str:
    """Return the mailbox of a stream, LOG for the log stream."""
    return stream.rpartition(":")[0]


def log_fenced(epoch: int) -> Fenced:
    """Build the error for a writer of the event log that has a successor, or after the log was removed."""
    return Fenced(
        f"a newer writer has the event log, or it was closed, or the server lost its data (our epoch is {epoch}): "
        "stop this writer, and open the log anew if none is to be there",
        name=LOG,
        epoch=epoch,
    )
