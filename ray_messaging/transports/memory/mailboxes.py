"""Senders' and readers' side of the memory transport, as send.lua and commit.lua on Redis."""

import time
from dataclasses import dataclass, field

from ray_messaging.errors import Fenced
from ray_messaging.transports.base import (
    LOG,
    START,
    Conclusion,
    Cursor,
    FrameFate,
    FrameWrite,
    MailboxEnd,
    SelectiveAcks,
    SendReply,
    SendRequest,
    SendStatus,
    lost,
    place,
)
from ray_messaging.transports.memory.log import MemoryLog
from ray_messaging.transports.memory.server import Experiment, Mailbox, MemoryServer, Sender, number


@dataclass
class _Plan:
    """Planned writes of one call, with the capacity that its earlier frames use: rows and bytes by mailbox."""

    request: SendRequest
    sender: Sender
    status: SendStatus
    over: bool = False  # an earlier call has concluded this transaction
    seqs: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    nbytes: dict[str, int] = field(default_factory=dict)
    noted: tuple[int, int] = (0, 0)


class MailboxWriter:
    """Writes of senders to the mailboxes of one experiment, and commits of readers."""

    def __init__(self, server: MemoryServer, exp_id: str, log: MemoryLog) -> None:
        self._server = server
        self._exp_id = exp_id
        self._log = log

    @property
    def _exp(self) -> Experiment:
        return self._server.experiments[self._exp_id]

    def send(self, request: SendRequest) -> SendReply:
        """Write frames and publish, atomically: nothing here awaits."""
        exp, done = self._exp, request.conclusion
        sender = exp.senders.get(request.sender)
        if sender is None or sender.epoch != request.epoch:
            return SendReply(_whose(sender, request.epoch))
        over = done is not None and done.number <= sender.transactions
        if done is not None and not over:
            if done.number > sender.transactions + 1:
                return SendReply(SendStatus.BEHIND)
            box = exp.mailboxes.get(done.mailbox)
            if box is None or box.epoch != done.epoch:
                return SendReply(SendStatus.READER_FENCED)
        plan = _Plan(request, sender, _status(request, exp, sender), over)
        reply = SendReply(plan.status)
        refused: set[str] = set()
        for part in request.writes:
            fate = self._decide(plan, part, behind=part.mailbox in refused)
            reply.fates.append(fate)
            if fate > FrameFate.DUPLICATE:
                refused.add(part.mailbox)
        if any(fate is FrameFate.DUPLICATE and not part.mailbox for fate, part in _pairs(reply, request)):
            reply.takers = sender.takers
        if done is not None and refused:
            reply.fates = [fate if fate > FrameFate.DUPLICATE else FrameFate.HELD_BACK for fate in reply.fates]
        elif done is not None and not over:
            self._conclude(done, sender)
        self._write(reply, request, sender)
        exp.wake()
        return reply

    def _decide(self, plan: _Plan, part: FrameWrite, *, behind: bool) -> FrameFate:
        last = plan.sender.last.get(part.mailbox, 0)
        if plan.over or (part.seq <= last and plan.request.conclusion is None):
            return FrameFate.DUPLICATE
        if plan.status is not SendStatus.OK or behind:
            return FrameFate.FULL
        if part.seq != plan.seqs.get(part.mailbox, last) + 1:
            return FrameFate.GAP
        if part.mailbox not in {"", LOG}:
            fate = self._fits(plan, part)
            if fate is not FrameFate.WRITTEN:
                return fate
        if self._log.is_crowded(part.noted, plan.noted):
            return FrameFate.LOG_FULL
        if part.noted is not None:
            rows, nbytes = plan.noted
            plan.noted = rows + part.noted.rows, nbytes + len(part.noted.frame) + len(part.noted.note)
        name = part.mailbox
        plan.seqs[name] = part.seq
        plan.rows[name] = plan.rows.get(name, 0) + part.rows
        plan.nbytes[name] = plan.nbytes.get(name, 0) + len(part.frame)
        return FrameFate.WRITTEN

    def _fits(self, plan: _Plan, part: FrameWrite) -> FrameFate:
        name, done = part.mailbox, plan.request.conclusion
        box = self._exp.mailboxes.get(name)
        if box is None or (box.limits.leased and box.alive_until < time.monotonic()):
            return FrameFate.GONE
        rows, nbytes = plan.rows.get(name, 0) + part.rows, plan.nbytes.get(name, 0) + len(part.frame)
        unlogged = (0, 0) if box.backlog is None else (box.backlog.messages + rows, box.backlog.nbytes + nbytes)
        held = box.messages, box.nbytes
        if done is not None and done.mailbox == name and done.cursor is not None:
            # What the transaction handled makes room for what it sends.
            held = _behind(box, done.cursor, done.messages, done.nbytes)
        return box.limits.fate(len(part.frame), held[0] + rows, held[1] + nbytes, unlogged)

    def _conclude(self, done: Conclusion, sender: Sender) -> None:
        sender.transactions = done.number
        box = self._exp.mailboxes[done.mailbox]
        if done.cursor is not None:
            _move(box, done.cursor, done.messages, done.nbytes, done.acks)
        if done.state_changed:
            box.state = done.state

    def _write(self, reply: SendReply, request: SendRequest, sender: Sender) -> None:
        """Write the accepted frames."""
        exp, takers = self._exp, list[int]()
        for fate, part in _pairs(reply, request):
            if fate is not FrameFate.WRITTEN:
                continue
            taken = self._publish(part)
            box = None if part.mailbox in {"", LOG} else exp.mailboxes[part.mailbox]
            if box is not None:
                exp.entry += 1
                box.entries.append((exp.entry, part.frame))
                box.last = exp.entry
                box.messages += part.rows
                box.nbytes += len(part.frame)
                if box.backlog is not None:
                    box.backlog.add(part.rows, len(part.frame))
            elif not part.mailbox:
                takers += taken
                sender.takers = reply.takers = takers
            self._log.note(part.noted, None if part.mailbox else taken)
            sender.last[part.mailbox] = part.seq

    def _publish(self, part: FrameWrite) -> list[int]:
        return [self._server.publish(channel, data, by=self._exp_id) for channel, data in part.publish]

    def end_of(self, mailbox: str) -> MailboxEnd:
        """Return up to where a mailbox goes now."""
        box = self._exp.mailboxes.get(mailbox)
        return MailboxEnd(START.entry, 0, 0) if box is None else MailboxEnd(f"{box.last}-0", box.messages, box.nbytes)

    def commit(
        self,
        mailbox: str,
        epoch: int,
        cursor: Cursor,
        messages: int,
        nbytes: int,
        acks: SelectiveAcks | None,
    ) -> None:
        """Move the durable cursor and trim the entries before it."""
        box = self._exp.mailboxes.get(mailbox)
        if box is None or box.epoch != epoch:
            raise (lost if box is None or box.epoch < epoch else fenced)(mailbox, epoch)
        _move(box, cursor, messages, nbytes, acks)


def _whose(sender: Sender | None, epoch: int) -> SendStatus:
    """Say why a sender's epoch does not count."""
    if sender is None:
        return SendStatus.LOST
    return SendStatus.FENCED if sender.epoch > epoch else SendStatus.RESTORED


def _status(request: SendRequest, exp: Experiment, sender: Sender) -> SendStatus:
    if all(part.seq <= sender.last.get(part.mailbox, 0) for part in request.writes):
        return SendStatus.OK
    if request.directory_version != exp.directory:
        return SendStatus.STALE_DIRECTORY
    if request.interceptor_epoch == -2:
        return SendStatus.UNJUDGED if exp.interceptor else SendStatus.OK
    counts = {-1, exp.interceptor, exp.standing}
    return SendStatus.OK if request.interceptor_epoch in counts else SendStatus.STALE_VERDICTS


def _pairs(reply: SendReply, request: SendRequest) -> list[tuple[FrameFate, FrameWrite]]:
    return list(zip(reply.fates, request.writes, strict=True))


def _behind(box: Mailbox, cursor: Cursor, messages: int, nbytes: int) -> tuple[int, int]:
    """Return the messages and bytes behind a cursor; at the mailbox's end none, even if the counts differ."""
    if cursor.row == 0 and number(cursor.entry) >= box.last:
        return 0, 0
    return box.messages + box.handled[0] - messages, box.nbytes + box.handled[1] - nbytes


def _move(box: Mailbox, cursor: Cursor, messages: int, nbytes: int, acks: SelectiveAcks | None) -> None:
    if place(cursor) < place(box.cursor):
        return  # it comes late
    if acks is not None:
        if messages + acks.messages < box.handled[0] + box.acked.messages:
            return  # so does this: all that is acknowledged only ever grows
        box.acked = acks
    box.messages, box.nbytes = _behind(box, cursor, messages, nbytes)
    box.cursor, box.handled = cursor, (messages, nbytes)
    box.trim()


def fenced(name: str, epoch: int) -> Fenced:
    """Build the error for a reader or sender that has a successor."""
    return Fenced(f"somebody newer has taken over {name!r}: close this messager", name=name, epoch=epoch)
