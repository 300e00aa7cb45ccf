"""Port of the event log: every stream up to its end, and no entry trimmed before it was read."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from ray_messaging.errors import Fenced
from ray_messaging.transports.transport import LOG, Limits, Transport


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


class LogStore(Protocol):
    """Streams that the event log reads: those of the mailboxes, and the log stream."""

    async def register(self, limits: Limits) -> int:
        """Register the event log: from now on nothing is trimmed before it has it. Returns the writer's epoch.

        Earlier writers are fenced, and totals begin anew. Args: limits are those of the log stream, which
        takes any note while it holds none; messages that the log lacks count against their mailbox's own limits.
        """

    async def note_resumed(self, epoch: int, taken: Mapping[str, tuple[int, int]]) -> None:
        """Record the messages and bytes of each stream that the log has from earlier writers; raises Fenced.

        One that died may have kept more than it told by `note_written`. Called once, before that, with all streams.
        """

    async def streams(self) -> LogStreams:
        """Return the streams to read; the log stream is the first of the live ones."""

    async def ends(self, streams: Sequence[str]) -> dict[str, str]:
        """Return the last entry that each stream has; "0-0" where it has none. What was trimmed the log had."""

    async def read(self, cursors: Mapping[str, str], count: int, block_s: float) -> list[LogItem]:
        """Return up to `count` entries of each stream after its cursor; wait for the first up to `block_s`."""

    async def note_written(self, epoch: int, written: Mapping[str, LogMark], dropped: Sequence[str]) -> None:
        """Record the log's position in each stream, and trim entries that are not needed; raises Fenced.

        Args: dropped are streams that ended and were read to their end.
        """

    async def writer_epoch(self) -> int:
        """Return the epoch of the last writer; 0 if there was none, or the server lost its data."""

    async def unregister(self, epoch: int) -> None:
        """Take the event log out; mailboxes are trimmed by their readers alone from then on. Raises Fenced.

        Unread entries of ended streams, and of the log stream, are dropped.
        """


def mailbox_of(stream: str) -> str:
    """Return the mailbox of a stream, LOG for the log stream."""
    return stream.rpartition(":")[0]


class LoggedTransport(Transport, Protocol):
    """Transport with mailboxes that the event log can read."""

    @property
    def log(self) -> LogStore:
        """Return the streams that the event log reads."""


def log_fenced(epoch: int) -> Fenced:
    """Build the error for a writer of the event log that has a successor, or after the log was removed."""
    return Fenced(
        f"a newer writer has the event log, or it was closed, or the server lost its data (our epoch is {epoch}): "
        "stop this writer, and open the log anew if none is to be there",
        name=LOG,
        epoch=epoch,
    )
