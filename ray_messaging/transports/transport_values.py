"""Arguments, results and errors of a transport's calls."""

import secrets
import time
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec

from ray_messaging.addressing.directory import NO_DATES, NO_SCHEMAS, HostDates, MailboxRecord
from ray_messaging.audiences.audience_kinds import NO_AUDIENCES, AudienceTexts
from ray_messaging.errors import Fenced
from ray_messaging.model.batch import Batch
from ray_messaging.transports.cursors import Cursor, SelectiveAcks


class FrameFate(IntEnum):
    """Outcome for one frame in a call of `send`."""

    WRITTEN = 0
    DUPLICATE = 1  # an earlier call has written the frame
    FULL = 2  # the mailbox is full, or an earlier frame of this sender was refused
    GONE = 3  # the mailbox's lease has expired
    TOO_LARGE = 5  # the frame would exceed the mailbox's limit even if the mailbox were empty
    GAP = 4  # the server has lost earlier frames of this sender
    # The event log is behind: a mailbox, or the log stream, is full of frames that the log does not have yet.
    LOG_FULL = 6
    HELD_BACK = 7  # another frame of its transaction was refused


WRITTEN = (FrameFate.WRITTEN, FrameFate.DUPLICATE)  # the server has the frame


class SendStatus(IntEnum):
    """Outcome of a call of `send` or `commit`. Unless it is OK, the call has written nothing."""

    OK = 0
    STALE_DIRECTORY = 1
    STALE_VERDICTS = 2  # another interceptor has taken over, so the verdicts are too old
    FENCED = 3
    UNJUDGED = 4  # the call has no verdicts, although the experiment has an interceptor
    READER_FENCED = 5  # a newer reader owns the mailbox whose messages the call would commit
    BEHIND = 6  # the call is a transaction, and the server has lost an earlier transaction that it had confirmed
    LOST = 7  # the server has no data of the sender any more
    RESTORED = 8  # the server has fallen back to data from before the sender claimed its epoch
    STEP_OVER = 9  # the call writes frames of a step that is closed already, or whose group has another driver now
    OTHER_RULES = 10  # the interceptor is the same, but the rules by which the batch was judged have changed
    READER_LOST = 11  # the mailbox is gone, or has fallen back to data from before the reader claimed its epoch


DIRECTORY_CHANGES = (
    "the list of mailboxes on the server changed at each attempt: look for another program that writes this "
    "experiment's keys, or for code that makes and removes groups all the time"
)


def fenced(name: str, epoch: int) -> Fenced:
    """Build the error for a reader or sender whose name a newer reader or sender has taken over."""
    return Fenced(
        f"a newer messager has taken over the name {name!r}, and gets the messages of this name: close this messager",
        name=name,
        epoch=epoch,
    )


def lost(name: str, epoch: int) -> Fenced:
    """Build the error for a reader or sender whose data, or whose epoch, the server has lost."""
    return Fenced(
        f"the server no longer knows the messager {name!r}, because the server was flushed, restored from older data "
        f"or replaced, or {name!r} was removed or stood still for too long: close this messager, and open a new one. "
        "Messages that waited are lost, or are among the dead letters",
        name=name,
        epoch=epoch,
    )


class Published(NamedTuple):
    """Data to publish on a channel with PUBLISH."""

    channel: str
    data: bytes


LOG = ":log"  # stands for the log stream where a mailbox's name is expected; users' mailboxes have no colon
LOG_STREAM = LOG + ":0"  # the key of the log stream (see `LogStreams`)


class LoggedFrame(NamedTuple):
    """A frame for the event log, and a note about it (see `wire.notes`). Both are written in the same call."""

    frame: bytes
    note: bytes
    rows: int


class FrameWrite(msgspec.Struct):
    """One frame for one mailbox, or publications for channels without a mailbox (then `mailbox` is "").

    `noted` is written to the log stream in the same call, or dropped if no event log is registered. If `mailbox` is
    LOG, which stands for the log stream, there is only `noted`. A call has at most one write for "", because only one
    list of subscriber counts is kept. For steps that are kept in this process, `batch` has the messages, and `frame` is
    empty.
    """

    mailbox: str
    seq: int
    rows: int
    frame: bytes = b""
    publish: Sequence[Published] = ()
    noted: LoggedFrame | None = None
    batch: Batch | None = None

    def arguments(self) -> list[Any]:
        """Return the arguments by which scripts such as `send` get this frame."""
        args = [self.mailbox, self.seq, self.rows, self.frame, -1 if self.noted is None else self.noted.rows]
        args.append(len(self.publish))
        for published in self.publish:
            args += published
        if self.noted is not None:
            args += [self.noted.frame, self.noted.note]
        return args


class Conclusion(msgspec.Struct):
    """Changes that a reader makes to its mailbox: which messages are acknowledged, and the state after a transaction.

    A commit has only a conclusion. A transaction is a conclusion with frames, which are written as a whole or not at
    all. `cursor` is the new cursor (None: unchanged). `messages` and `nbytes` are how many messages and bytes the
    reader has acknowledged under this epoch up to the cursor. They are totals, so that a call may be repeated. `acks`
    has all messages that are acknowledged after the cursor; None leaves them as they are. With `state_changed` the
    state becomes `state` (None: no state). `number` is the number of the transaction, counted from 1 for each sender,
    so that a repeated transaction has its effect once; 0 means that this is no transaction.
    """

    mailbox: str
    epoch: int  # the reader's epoch
    cursor: Cursor | None
    messages: int
    nbytes: int
    state: bytes | None = None
    state_changed: bool = False
    number: int = 0
    acks: SelectiveAcks | None = None
    changes: int = 0  # the reader's counter `changes` (see receiving/commits.py) when this conclusion was made


class SendRequest(msgspec.Struct):
    """A call of `send`, with the sender's epoch, its version of the directory, and the interceptor's epoch.

    The directory is the list of all mailboxes.

    With a `conclusion` the call is a transaction, which is written as a whole or not at all.
    """

    sender: str
    epoch: int
    directory_version: int
    # The interceptor's epoch, or the number of a rule snapshot; -1: a user's own interceptor; -2: the call has no
    # verdicts.
    interceptor_epoch: int
    writes: Sequence[FrameWrite]
    conclusion: Conclusion | None = None


class SendReply(msgspec.Struct):
    """The outcome of a call of `send` for each frame. `takers` counts the subscribers that received each publication.

    `repeated` is true if the call was made several times, because answers were lost. Then an earlier one of these calls
    may still be on its way to the server, and could write refused frames until the sender claims a higher epoch.
    """

    status: SendStatus
    fates: list[FrameFate] = []
    takers: list[int] = []
    repeated: bool = False

    @property
    def all_written(self) -> bool:
        """Return whether the server has written all frames, in this call or in an earlier one."""
        return self.status is SendStatus.OK and all(fate in WRITTEN for fate in self.fates)


class Listening(NamedTuple):
    """A mailbox that this process reads from now on.

    `version` is the version of the directory, the list of all mailboxes. `epoch` is the reader's epoch. `cursor` is the
    position up to which all messages are acknowledged. If the mailbox was taken over from an earlier reader, `state` is
    the state after the last transaction (None: none), and `acked` has the ranges of messages after the cursor that are
    acknowledged. For a new mailbox, `state` is None and `acked` is b"".
    """

    version: int
    epoch: int
    cursor: Cursor
    state: bytes | None = None
    acked: bytes = b""


class MailboxEnd(NamedTuple):
    """The end of a mailbox: the id of its last entry, or START if it never had one.

    `messages` and `nbytes` are the messages and bytes after the cursor. Some of them may be acknowledged already.
    """

    entry: str
    messages: int
    nbytes: int


class HeldMailbox(NamedTuple):
    """The answer that another owner has a mailbox, with the owner's lease.

    `overdue` is true if the lease may have ended by the server's clock.
    """

    owner: str
    lease: str
    overdue: bool


class SenderState(NamedTuple):
    """The state of a sender after it has claimed a new epoch.

    `last` has the sender's last sequence number for each mailbox. `takers` has, for each of the sender's last
    publications, how many subscribers received it. `transactions` is the number of the sender's committed transactions.
    """

    epoch: int
    last: dict[str, int]
    takers: list[int]
    transactions: int = 0


class Limits(NamedTuple):
    """How many messages and bytes a mailbox may hold, and how many seconds its lease lasts.

    If `leased` is true, the mailbox is removed when its lease has expired.
    """

    messages: int
    nbytes: int
    lease_s: float
    leased: bool


class Ingress(NamedTuple):
    """A message that a foreign client published, and the pattern that it matched (None: it matched a channel)."""

    channel: str
    data: bytes
    pattern: str | None


class DirectoryDelta(NamedTuple):
    """Changes of the directory of mailboxes since an earlier version, up to `version`.

    `changed` has the changed mailboxes, and `mailboxes` the names of all. `logged` says whether there is an event log.
    `schemas` has the JSON Schemas of all subtopics that have one, `audiences` the versions of all audiences, and
    `dates` says in which step each move of agents becomes valid.
    """

    version: int
    changed: list[MailboxRecord]
    mailboxes: list[str]
    logged: bool = False
    schemas: Mapping[str, bytes] = NO_SCHEMAS
    audiences: AudienceTexts = NO_AUDIENCES
    dates: HostDates = NO_DATES


_CHANCE = 10**6  # the last six digits of an epoch are random
_END = 2**62  # a higher number cannot be an epoch, because frames have no room for it


def new_epoch(above: int = 0) -> int:
    """Return a number above `above` that was never an epoch before.

    The number is the time in ms, or a higher number if `above` requires it, followed by six random digits.
    """
    ms = time.time_ns() // 10**6
    return max(ms, above // _CHANCE + 1) * _CHANCE + secrets.randbelow(_CHANCE)


def successor_of(kept: bytes | None) -> int:
    """Return a new epoch that is higher than `kept`, the epoch on the server (None: there is none).

    A `kept` that cannot be an epoch is ignored.
    """
    above = int(kept) if kept is not None and kept.isdigit() and len(kept) < 20 else 0
    return new_epoch(above if above < _END // 2 else 0)
