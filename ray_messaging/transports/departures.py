"""Departures: in one call, agents leave a mailbox together with all messages that wait for them."""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ray_messaging.addressing.channels import Keys
from ray_messaging.addressing.directory import MailboxRecord, encode_record
from ray_messaging.transports.cursors import Cursor, SelectiveAcks, keep_of
from ray_messaging.transports.dead_letter_store import Returned
from ray_messaging.transports.transport_values import fenced, lost

if TYPE_CHECKING:
    from ray_messaging.transports.connection.link import RedisLink

# The sender of a frame without messages, which says that agents have come to the mailbox. The frame's only topic is the
# mailbox that they left.
ARRIVAL = ":agents"


class Release(msgspec.Struct):
    """One attempt to let agents leave a mailbox. Attempts are numbered from 1 under the epoch of the mailbox's reader.

    All entries from the first one that was not fetched up to `last` are acknowledged. Their messages for other agents,
    `stay`, are written into the mailbox again. Those for the agents that leave, `go`, are written into the mailbox of
    `target`, or if it is None into the dead letters. `cursor`, `messages`, `nbytes` and `acks` are as in a transport's
    `commit`. The attempt is refused if the directory is no longer at `version`, from which the records were made.
    """

    record: MailboxRecord
    epoch: int
    number: int
    version: int
    last: str
    cursor: Cursor
    messages: int
    nbytes: int
    acks: SelectiveAcks
    stay: Sequence[Returned]
    go: Sequence[Returned]
    target: MailboxRecord | None
    reason: str


class Released(IntEnum):
    """Outcome of an attempt. Unless it is DONE, nothing has changed, except as said at BEHIND."""

    DONE = 0
    STALE_DIRECTORY = 1
    BEHIND = 2  # the mailbox has later entries; it accepts no more until further attempts have ended or are given up
    FULL = 3  # the target is full
    TOO_LARGE = 4  # a frame would exceed the target's limit even if the target were empty
    LOG_FULL = 5
    GONE = 6  # the target's mailbox does not exist
    OVER = 7  # the attempt was given up
    NOT_YET = 8  # with steps: the target is a member only from a later step than the next one


class Rehosted(NamedTuple):
    """Outcome of an attempt with steps, and the step from which it applies (NOT_YET: when the target is a member)."""

    outcome: Released
    since: int


_ENTRIES = 64  # the most entries in one reply


class RedisDepartures:
    """Departures of agents from the mailboxes of one experiment. Any call may be repeated; its effect happens once.

    Args: `born` maps each mailbox that is read here to its incarnation: a new mailbox of the same name has another.
    """

    def __init__(self, link: "RedisLink", keys: Keys, born: Mapping[str, str], dead_bytes: int) -> None:
        self._link = link
        self._keys = keys
        self._born = born
        self._dead_bytes = dead_bytes

    async def entries(self, mailbox: str, first: str, last: str) -> list[tuple[str, bytes]]:
        """Return the first entries, at most 64, from entry `first` to entry `last`."""
        stream = self._keys.stream(f"{mailbox}:{self._born[mailbox]}")
        found = await self._link.command("XRANGE", stream, first, last, "COUNT", _ENTRIES)
        return [(entry.decode(), fields[1] if len(fields) > 1 else b"") for entry, fields in found]

    async def release(self, attempt: Release) -> Released:
        """Let agents leave a mailbox, in one script call."""
        keys, name, target = self._keys, attempt.record.mailbox, attempt.target
        asked = [keys.meta, keys.records, keys.changes, keys.dead, keys.state(name)]
        if target is not None:
            asked += [keys.state(target.mailbox), keys.lease(target.mailbox)]
        args: list[Any] = [attempt.epoch, attempt.number, attempt.version, attempt.last, keys.prefix, name]
        args.append(encode_record(attempt.record))
        args += ["", ""] if target is None else [target.mailbox, encode_record(target)]
        args += [*attempt.cursor, keep_of(attempt.cursor), attempt.messages, attempt.nbytes, *attempt.acks]
        args += [attempt.reason, self._dead_bytes, len(attempt.stay)]
        for frame in (*attempt.stay, *attempt.go):
            args += frame.rows, frame.frame
        return Released(self._checked(await self._link.script("release_agents", asked, args), attempt.epoch, name))

    async def give_up(self, mailbox: str, epoch: int, number: int) -> bool:
        """Refuse an attempt and earlier ones from now on; return whether it was done before.

        Raises: Fenced if the mailbox has a newer reader.
        """
        reply = await self._link.script("give_up_release", [self._keys.state(mailbox)], [epoch, number])
        return self._checked(reply, epoch, mailbox) == Released.DONE

    async def rehost(self, record: MailboxRecord, target: MailboxRecord | None, version: int) -> Rehosted:
        """Change the group of agents from the first step on that no group has opened. Any process may do so.

        With `target` None they are removed. The records state the directory's version after `version` for this change.
        Messages for these agents stay in the boxes where they are, and their new group reads them there. A repeated
        call may find that its own first attempt has changed the directory.
        """
        keys, name = self._keys, record.mailbox
        asked = [keys.meta, keys.records, keys.changes, keys.steps(), keys.step(name)]
        args: list[Any] = [keys.prefix, version, name, encode_record(record)]
        if target is None:
            args += ["", ""]
        else:
            asked += [keys.state(target.mailbox), keys.lease(target.mailbox), keys.step(target.mailbox)]
            args += [target.mailbox, encode_record(target)]
        outcome, since = await self._link.script("rehost_agents", asked, args)
        return Rehosted(Released(outcome), since)

    async def state_before(self, group: str, step: int) -> bytes | None:
        """Return a group's state after its last step before `step`, the step from which on agents have left the group.

        Return None if the group had no state.
        """
        key = self._keys.step(group)
        # The state is read first, because it is replaced when the group closes `step`.
        now, left = await self._link.commands(("HGET", key, "state"), ("HGET", f"{key}:left", step))
        found: bytes | None = now
        if left:
            found = left[1:] if left[:1] == b"+" else None
        return found

    def _checked(self, reply: Any, epoch: int, mailbox: str) -> int:  # noqa: ANN401 - a reply
        if reply < 0:
            raise (fenced if reply == -1 else lost)(mailbox, epoch)
        return int(reply)
