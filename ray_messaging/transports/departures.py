"""Departures: agents leave a mailbox in one call, with all that waits for them."""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ray_messaging.addressing.channels import Keys
from ray_messaging.addressing.directory import Record, encode_record
from ray_messaging.transports.cursors import Cursor, SelectiveAcks, keep_of
from ray_messaging.transports.values import fenced, lost

if TYPE_CHECKING:
    from ray_messaging.transports.connection.link import RedisLink

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


_ENTRIES = 64  # in one reply


class RedisDepartures:
    """Departures of agents from the mailboxes of one experiment. Any call may be repeated, and has its effect once.

    Args: `born` has the incarnation of each mailbox that is read here.
    """

    def __init__(self, link: "RedisLink", keys: Keys, born: Mapping[str, str], dead_bytes: int) -> None:
        self._link = link
        self._keys = keys
        self._born = born
        self._dead_bytes = dead_bytes

    async def entries(self, mailbox: str, first: str, last: str) -> list[tuple[str, bytes]]:
        """Return the first entries from one to another, some at a time."""
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
        for parcel in (*attempt.stay, *attempt.go):
            args += parcel
        return Released(self._checked(await self._link.script("release_agents", asked, args), attempt.epoch, name))

    async def give_up(self, mailbox: str, epoch: int, number: int) -> bool:
        """Refuse an attempt and those before it from now on; return whether it is done. Raises Fenced."""
        reply = await self._link.script("give_up_release", [self._keys.state(mailbox)], [epoch, number])
        return self._checked(reply, epoch, mailbox) == Released.DONE

    async def rehost(self, attempt: Rehosting) -> Rehosted:
        """Change the hosts of agents from the first step on that nobody has opened; any process may do so.

        Messages for them stay in the boxes where they are: their new group reads them there. A repetition may find the
        directory changed, by itself.
        """
        keys, name, target = self._keys, attempt.record.mailbox, attempt.target
        asked = [keys.meta, keys.records, keys.changes, keys.steps(), keys.step(name)]
        args: list[Any] = [keys.prefix, attempt.version, name, encode_record(attempt.record)]
        if target is None:
            args += ["", ""]
        else:
            asked += [keys.state(target.mailbox), keys.lease(target.mailbox), keys.step(target.mailbox)]
            args += [target.mailbox, encode_record(target)]
        outcome, since = await self._link.script("rehost_agents", asked, args)
        return Rehosted(Released(outcome), since)

    async def state_before(self, group: str, step: int) -> bytes | None:
        """Return the state that a group's last step before another one left, from which agents have left the group."""
        key = self._keys.step(group)
        # In this order: the state is kept when the group closes that step.
        now, left = await self._link.commands(("HGET", key, "state"), ("HGET", f"{key}:left", step))
        found: bytes | None = now
        if left:
            found = left[1:] if left[:1] == b"+" else None
        return found

    def _checked(self, reply: Any, epoch: int, mailbox: str) -> int:  # noqa: ANN401 - a reply
        if reply < 0:
            raise (fenced if reply == -1 else lost)(mailbox, epoch)
        return int(reply)
