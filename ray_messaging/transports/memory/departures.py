"""Departures of agents from mailboxes of a MemoryServer."""

import time

from ray_messaging.addressing.directory import encode_record
from ray_messaging.transports.dead_letter_store import DeadFrame
from ray_messaging.transports.departures import Rehosted, Rehosting, Release, Released
from ray_messaging.transports.memory.server import Experiment, Mailbox, number
from ray_messaging.transports.transport import FrameFate, fenced, lost

_REFUSED = {
    FrameFate.FULL: Released.FULL,
    FrameFate.TOO_LARGE: Released.TOO_LARGE,
    FrameFate.LOG_FULL: Released.LOG_FULL,
    FrameFate.GONE: Released.GONE,
}


class MemoryDepartures:
    """Departures of agents from the mailboxes of one experiment."""

    def __init__(self, exp: Experiment, dead_bytes: int) -> None:
        self._exp = exp
        self._dead_bytes = dead_bytes

    async def entries(self, mailbox: str, first: str, last: str) -> list[tuple[str, bytes]]:
        """Return the entries from one to another."""
        box = self._exp.mailboxes.get(mailbox)
        found = [] if box is None else box.entries
        return [(f"{entry}-0", frame) for entry, frame in found if number(first) <= entry <= number(last)]

    async def release(self, attempt: Release) -> Released:
        """Let agents leave a mailbox."""
        exp, name = self._exp, attempt.record.mailbox
        box = self._mailbox(name, attempt.epoch)
        mine = (attempt.epoch, attempt.number)
        if mine <= box.released:
            return Released.DONE if mine == box.departed else Released.OVER
        if exp.directory != attempt.version:
            return Released.STALE_DIRECTORY
        if f"{box.last}-0" != attempt.last:
            box.held = True
            return Released.BEHIND
        refused = self._refusal(attempt)
        if refused is not None:
            return refused
        box.released = box.departed = mine
        box.held = False
        box.commit(attempt.cursor, attempt.messages, attempt.nbytes, attempt.acks)
        for rows, frame in attempt.stay:
            exp.entry += 1
            box.append(exp.entry, rows, frame)
        self._deliver(attempt)
        exp.directory += 1
        for record in [attempt.record, attempt.target]:
            if record is not None:
                owner = exp.mailboxes[record.mailbox]
                owner.record, owner.changed = encode_record(record), exp.directory
        exp.wake()
        return Released.DONE

    async def give_up(self, mailbox: str, epoch: int, number: int) -> bool:
        """Refuse an attempt and those before it from now on; return whether it is done."""
        box = self._mailbox(mailbox, epoch)
        box.released = max(box.released, (epoch, number))
        box.held = False
        return box.departed == (epoch, number)

    async def rehost(self, attempt: Rehosting) -> Rehosted:
        """Change the hosts of agents from the first step on that nobody has opened."""
        exp, target = self._exp, attempt.target
        if exp.directory != attempt.version:
            return Rehosted(Released.STALE_DIRECTORY, 0)
        if target is not None:
            there = exp.steps.members.get(target.mailbox)
            if there is None or there.until is not None or target.mailbox not in exp.mailboxes:
                return Rehosted(Released.GONE, 0)
            if there.since > exp.steps.latest + 1:
                return Rehosted(Released.NOT_YET, there.since)
        exp.directory += 1
        since = exp.date_change()
        for record in [attempt.record, target]:
            if record is not None:
                owner = exp.mailboxes[record.mailbox]
                owner.record, owner.changed = encode_record(record), exp.directory
        member = exp.steps.members.get(attempt.record.mailbox)
        if member is not None:
            member.left.setdefault(since, None)
        if target is not None:
            exp.steps.widen(attempt.record.mailbox, target.mailbox, since)
        exp.steps.tell()
        return Rehosted(Released.DONE, since)

    async def state_before(self, group: str, step: int) -> bytes | None:
        """Return the state that a group's last step before another one left, from which agents have left the group."""
        member = self._exp.steps.members.get(group)
        return None if member is None else member.state_before(step)

    def _mailbox(self, name: str, epoch: int) -> Mailbox:
        box = self._exp.mailboxes.get(name)
        if box is None or box.epoch != epoch:
            raise (lost if box is None or box.epoch < epoch else fenced)(name, epoch)
        return box

    def _refusal(self, attempt: Release) -> Released | None:
        """Return why the target does not take the agents; None: it does."""
        if attempt.target is None:
            return None
        box, rows, nbytes = self._exp.mailboxes.get(attempt.target.mailbox), 0, 0
        if box is None:
            return Released.GONE
        for parcel in attempt.go:
            rows, nbytes = rows + parcel.rows, nbytes + len(parcel.frame)
            fate = box.fate(len(parcel.frame), rows, nbytes)
            if fate in _REFUSED:
                return _REFUSED[fate]
        return None

    def _deliver(self, attempt: Release) -> None:
        """Write what goes with the agents."""
        exp, name = self._exp, attempt.record.mailbox
        for rows, frame in attempt.go:
            if attempt.target is None:
                letter = DeadFrame("", name, attempt.last, 0, attempt.reason, frame, time.time(), exp.born, True)
                exp.dead.lay(letter, self._dead_bytes)
            else:
                exp.entry += 1
                exp.mailboxes[attempt.target.mailbox].append(exp.entry, rows, frame)
