"""Values of a transport's calls: a directory, mailboxes of frames, and their durable cursors."""

import secrets
import time
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

import msgspec

from ray_messaging.addressing.directory import NO_DATES, NO_SCHEMAS, HostDates, Record
from ray_messaging.audiences.records import NO_AUDIENCES, AudienceTexts
from ray_messaging.errors import Fenced
from ray_messaging.transports.cursors import Cursor, SelectiveAcks


class FrameFate(IntEnum):
    """Outcome of one frame write in a call of `send`."""

    WRITTEN = 0
    DUPLICATE = 1  # an earlier call had written it
    FULL = 2  # the mailbox is full, or an earlier frame of this sender was refused
    GONE = 3  # the mailbox's lease has expired
    TOO_LARGE = 5  # the mailbox would not hold it if it were empty
    GAP = 4  # the server does not have what this sender wrote before: it lost writes
    LOG_FULL = 6  # the event log is behind: unwritten frames fill a mailbox, or its own stream
    HELD_BACK = 7  # another frame of its transaction was refused


class SendStatus(IntEnum):
    """Outcome of a call of `send`; if it is not OK, only duplicates are written."""

    OK = 0
    STALE_DIRECTORY = 1
    STALE_VERDICTS = 2
    FENCED = 3
    UNJUDGED = 4  # without verdicts, although the experiment has an interceptor
    READER_FENCED = 5  # of a transaction: a newer reader has the mailbox, or it was removed
    BEHIND = 6  # of a transaction: the server lost one that it had confirmed
    LOST = 7  # the server has no data of the sender any more
    RESTORED = 8  # the server is as it was before the sender took its epoch
    STEP_OVER = 9  # of a step: it is closed, or another attempt has its group


def fenced(name: str, epoch: int) -> Fenced:
    """Build the error for a reader or sender that has a successor."""
    return Fenced(
        f"a newer messager has taken over {name!r} (our epoch is {epoch}): close this messager, its messages go to its "
        "successor",
        name=name,
        epoch=epoch,
    )


def lost(name: str, epoch: int) -> Fenced:
    """Build the error for a reader or sender of which the server knows nothing any more, or not its epoch."""
    return Fenced(
        f"the server knows nothing of {name!r} under our epoch {epoch} any more: it was flushed, restored from older "
        f"data or replaced, or {name!r} was removed or stood still for too long. Close this messager and open a new "
        "one; what waited is gone, or among the dead letters",
        name=name,
        epoch=epoch,
    )


class Published(NamedTuple):
    """Data to publish on a channel."""

    channel: str
    data: bytes


LOG = ":log"  # the log stream's name among the mailboxes; users' mailboxes have no colon
LOG_STREAM = LOG + ":0"  # and as one of the streams that the event log reads


class LoggedFrame(NamedTuple):
    """Frame for the event log, and a note on it (see `wire.notes`), in the same call."""

    frame: bytes
    note: bytes
    rows: int


class FrameWrite(msgspec.Struct):
    """One frame for one mailbox, or publications for channels without a mailbox (mailbox "").

    `noted` goes to the log stream together with the rest; for the mailbox LOG it is the only content. It is dropped
    while no log is registered. A call has at most one write for "", because one list of subscriber counts is kept.
    """

    mailbox: str
    seq: int
    rows: int
    frame: bytes = b""
    publish: Sequence[Published] = ()
    noted: LoggedFrame | None = None


class Conclusion(msgspec.Struct):
    """Changes of a transaction beside its messages: the cursor (None: it stays) and the state of its own mailbox.

    `messages`, `nbytes` and `acks` are as in `commit`. With `state_changed` the state becomes `state` (None: there is
    none). Transactions of one sender are numbered from 1: one that comes again has its effect once.
    """

    mailbox: str
    epoch: int  # the reader's
    cursor: Cursor | None
    messages: int
    nbytes: int
    state: bytes | None = None
    state_changed: bool = False
    number: int = 0
    acks: SelectiveAcks | None = None


class SendRequest(msgspec.Struct):
    """A call of `send`: everything under one sender's epoch, one directory version and one interceptor's epoch.

    With a `conclusion` it is a transaction: all of it is written, or nothing.
    """

    sender: str
    epoch: int
    directory_version: int
    interceptor_epoch: int  # or the number of standing verdicts; -1: of a user's own interceptor; -2: there are none
    writes: Sequence[FrameWrite]
    conclusion: Conclusion | None = None


class SendReply(msgspec.Struct):
    """Outcomes of a call of `send`, frame by frame; `takers`: subscribers that got each publication without a mailbox.

    `repeated` says that an earlier attempt may still be on its way to the server: it can write refused frames until the
    sender takes a higher epoch.
    """

    status: SendStatus
    fates: list[FrameFate] = []
    takers: list[int] = []
    repeated: bool = False


class Listening(NamedTuple):
    """Mailbox that is ours now: the reader's epoch, the durable cursor, and the last transaction's state.

    `state`, and the ranges acknowledged behind the cursor, are set only when the mailbox is taken over.
    """

    version: int
    epoch: int
    cursor: Cursor
    state: bytes | None = None
    acked: bytes = b""


class MailboxEnd(NamedTuple):
    """Last entry of a mailbox (START's if it never had one), and the size of the rest behind the cursor."""

    entry: str
    messages: int
    nbytes: int


class Held(NamedTuple):
    """A mailbox of another owner, with its current lease; `overdue`: it may be over, by the server's clock."""

    owner: str
    lease: str
    overdue: bool


class SenderState(NamedTuple):
    """A sender's new epoch, the last written seq per mailbox, the subscriber counts of its last publications.

    `transactions` counts those that were committed.
    """

    epoch: int
    last: dict[str, int]
    takers: list[int]
    transactions: int = 0


class Limits(NamedTuple):
    """A mailbox's limits, and its lease in seconds; `leased`: it goes when its lease ends."""

    messages: int
    nbytes: int
    lease_s: float
    leased: bool

    def fate(self, size: int, messages: int, nbytes: int, unlogged: tuple[int, int] = (0, 0)) -> FrameFate:
        """Return WRITTEN if a frame of `size` bytes fits, else why not; the other numbers include the frame.

        `unlogged` are the messages and bytes that the event log does not have.
        """
        if size > self.nbytes:
            return FrameFate.TOO_LARGE
        if messages > self.messages or nbytes > self.nbytes:
            return FrameFate.FULL
        if unlogged[0] > self.messages or unlogged[1] > self.nbytes:
            return FrameFate.LOG_FULL
        return FrameFate.WRITTEN


class Ingress(NamedTuple):
    """A publication of a foreign client."""

    channel: str
    data: bytes
    pattern: str | None


class DirectoryDelta(NamedTuple):
    """Changes of the directory since a version, all mailboxes, and whether an event log is registered.

    `schemas` are the JSON Schemas of all subtopics that have one, `audiences` the versions of all audiences, `dates`
    the steps from which changes of hosts count.
    """

    version: int
    changed: list[Record]
    mailboxes: list[str]
    logged: bool = False
    schemas: Mapping[str, bytes] = NO_SCHEMAS
    audiences: AudienceTexts = NO_AUDIENCES
    dates: HostDates = NO_DATES


class FramePort(Protocol):
    """The calls that write the frames of one sender; it `forgets` if it keeps what a sender wrote to each mailbox."""

    forgets: bool

    async def load_directory(self, since: int) -> DirectoryDelta:
        """Return the changes since a version (-1: all), after removing mailboxes with an expired lease."""

    async def take_sender_epoch(self, sender: str, *, keep_s: float, held: int | None = None) -> SenderState:
        """Raise a sender's epoch, which fences earlier senders under this name.

        Args: held is the caller's own; with it, raises Fenced where a successor has raised it since, or it is lost.
        """

    async def forget(self, sender: str, epoch: int, mailboxes: Sequence[str]) -> None:
        """Forget a sender's sequence numbers for removed mailboxes, unless a newer sender has its name."""

    async def leave(self, sender: str, epoch: int, *, keep_s: float) -> None:
        """Forget a closed sender `keep_s` seconds from now, unless a newer sender has its name.

        Late writes of an earlier attempt are refused after that.
        """

    async def send(self, request: SendRequest) -> SendReply:
        """Write frames and publish, atomically; a frame with a seq that was written before is DUPLICATE.

        With a conclusion everything is written or nothing; all are DUPLICATE if an earlier call has concluded it.
        """

    async def still_full(self, mailbox: str, rows: int, nbytes: int) -> FrameFate | None:
        """Return why a refused frame still does not fit, FULL or LOG_FULL, without sending it; None: send it."""


_CHANCE = 10**6  # the last six digits are drawn
_END = 2**62  # what is higher is none of ours, and would not fit where numbers travel


def new_epoch(above: int = 0) -> int:
    """Return a number that was never used: the time in ms and six random digits; it is above another one."""
    ms = time.time_ns() // 10**6
    return max(ms, above // _CHANCE + 1) * _CHANCE + secrets.randbelow(_CHANCE)


def successor_of(kept: bytes | None) -> int:
    """Return a new epoch above the one on the server; a value that cannot be an epoch is ignored."""
    above = int(kept) if kept is not None and kept.isdigit() and len(kept) < 20 else 0
    return new_epoch(above if above < _END // 2 else 0)
