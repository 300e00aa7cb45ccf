"""Moves of agents: one call to the server changes the directory, and moves the messages that wait for the agents."""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from ray_messaging.addressing.directory import MailboxRecord, encode_record
from ray_messaging.addressing.server_keys import Keys
from ray_messaging.transports.cursors import Cursor, SelectiveAcks, keep_of
from ray_messaging.transports.dead_letter_store import Returned
from ray_messaging.transports.transport_values import fenced, lost

if TYPE_CHECKING:
    from ray_messaging.transports.connection.link import RedisLink

# The sender of a frame that has no messages, but says that agents have come to the mailbox. The frame's only topic is
# the name of the mailbox that the agents left.
ARRIVAL = ":agents"


class UnreadFrames(NamedTuple):
    """What a move of agents does with unfetched messages in the old mailbox, in an experiment without steps.

    All entries that the reader of the old mailbox has not fetched, up to the entry `last`, are marked as acknowledged.
    Their messages are then written again: messages for agents that stay, as the frames `stay`, into the same mailbox;
    messages for agents that leave, as the frames `go`, into the target's mailbox. Without a target, `go` become dead
    letters, with `reason`. `cursor`, `messages`, `nbytes` and `acks` are as in `Conclusion`. `epoch` is the
    epoch of the mailbox's reader. `number` counts the reader's attempts at moves under this epoch, from 1.
    """

    epoch: int
    number: int
    last: str
    cursor: Cursor
    messages: int
    nbytes: int
    acks: SelectiveAcks
    stay: Sequence[Returned]
    go: Sequence[Returned]
    reason: str


class MoveAttempt(NamedTuple):
    """One attempt to move agents from one mailbox to another one, the target, or to none.

    `record` is the new record of the mailbox that the agents leave, and `target` the new record of the target (None: no
    target). Both were made from the directory of mailboxes at `version`. If the directory has changed since, the
    attempt is refused. `unread` says what the move does with unfetched messages. In an experiment with steps it is
    None: the messages stay in the boxes of the old group, and the new group reads them there. A box has the messages
    that one mailbox reads in one step.
    """

    record: MailboxRecord
    target: MailboxRecord | None
    version: int
    unread: UnreadFrames | None = None


class MoveOutcome(IntEnum):
    """Outcome of an attempt to move agents. Only attempts with the outcome DONE or BEHIND have changed anything."""

    DONE = 0
    STALE_DIRECTORY = 1
    # The mailbox that the agents leave has entries after the last one that its reader had read. From now on this
    # mailbox refuses messages, until the move ends or is given up.
    BEHIND = 2
    FULL = 3  # the target is full
    TOO_LARGE = 4  # a frame would exceed the target's limit even if the target were empty
    LOG_FULL = 5
    GONE = 6  # the target's mailbox does not exist, or its group is not in the steps, or is leaving them
    OVER = 7  # the attempt was given up before this call reached the server
    NOT_YET = 8  # in an experiment with steps: the target does not take part in the next step yet


class Attempted(NamedTuple):
    """The outcome of an attempt to move agents to another group, the target.

    In an experiment with steps, `since` is the first step after the move. If the outcome is NOT_YET, nothing has moved,
    and `since` is the first step that the target takes part in.
    """

    outcome: MoveOutcome
    since: int = 0


_ENTRIES = 64  # one reply has at most this many entries


class RedisMoves:
    """Moves of agents between the mailboxes of one experiment.

    Any call may be repeated, and takes effect only once. In an experiment with steps, a repeated `move` may return
    STALE_DIRECTORY, because the first call has changed the directory.

    Args: `born` maps each mailbox that this process reads to a number, which distinguishes the mailbox from earlier and
    later mailboxes of the same name.
    """

    def __init__(self, link: "RedisLink", keys: Keys, born: Mapping[str, str], dead_bytes: int) -> None:
        self._link = link
        self._keys = keys
        self._born = born
        self._dead_bytes = dead_bytes

    async def entries(self, mailbox: str, first: str, last: str) -> list[tuple[str, bytes]]:
        """Return the entries of a mailbox from `first` to `last`, but at most 64 of them, each as (entry id, frame)."""
        stream = self._keys.stream(f"{mailbox}:{self._born[mailbox]}")
        found = await self._link.command("XRANGE", stream, first, last, "COUNT", _ENTRIES)
        return [(entry.decode(), fields[1] if len(fields) > 1 else b"") for entry, fields in found]

    async def move(self, attempt: MoveAttempt) -> Attempted:
        """Move agents in one script call, and return the outcome.

        In an experiment with steps, the move is valid from the first step that no group has opened.

        Raises: Fenced if the mailbox that the agents leave has a newer reader than the reader that made the attempt.
        """
        keys, target, unread, name = self._keys, attempt.target, attempt.unread, attempt.record.mailbox
        asked = [keys.meta, keys.records, keys.changes, keys.dead, keys.state(name), keys.steps(), keys.step(name)]
        args: list[Any] = [keys.prefix, attempt.version, name, encode_record(attempt.record)]
        if target is None:
            args += ["", ""]
        else:
            asked += [keys.state(target.mailbox), keys.lease(target.mailbox), keys.step(target.mailbox)]
            args += [target.mailbox, encode_record(target)]
        if unread is not None:
            args += [unread.epoch, unread.number, unread.last, *unread.cursor, keep_of(unread.cursor)]
            args += [unread.messages, unread.nbytes, *unread.acks, unread.reason, self._dead_bytes, len(unread.stay)]
            for frame in (*unread.stay, *unread.go):
                args += frame.rows, frame.frame
        outcome, since = await self._link.script("move_agents", asked, args)
        return Attempted(_outcome(outcome, name, 0 if unread is None else unread.epoch), since)

    async def give_up(self, mailbox: str, epoch: int, number: int) -> bool:
        """Make the server refuse an attempt at a move, and all earlier attempts, if they arrive from now on.

        Return True if the attempt has moved the agents already, otherwise False.

        Raises: Fenced if the mailbox has a newer reader.
        """
        reply = await self._link.script("give_up_move", [self._keys.state(mailbox)], [epoch, number])
        return _outcome(reply, mailbox, epoch) is MoveOutcome.DONE


def _outcome(reply: int, mailbox: str, epoch: int) -> MoveOutcome:
    if reply < 0:
        raise (fenced if reply == -1 else lost)(mailbox, epoch)
    return MoveOutcome(reply)
