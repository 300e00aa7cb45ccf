"""One call of `send` on a server in memory, as send.lua on Redis."""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field

from ray_messaging.transports.memory.server import Experiment, Sender
from ray_messaging.transports.transport import (
    LOG,
    Conclusion,
    FrameFate,
    FrameWrite,
    LoggedFrame,
    Published,
    SendReply,
    SendRequest,
    SendStatus,
)

# Calls of which no frame is looked at.
_REFUSED = {SendStatus.FENCED, SendStatus.RESTORED, SendStatus.BEHIND, SendStatus.READER_FENCED}


@dataclass
class SendCall:
    """One call of `send`: its frames are decided one by one, and then written. Nothing in between awaits.

    `accepted` has by mailbox the last sequence number, the rows and the bytes of its frames, `notes` the rows and bytes
    for the log stream.
    """

    exp: Experiment
    request: SendRequest
    sender: Sender
    publish: Callable[[Published], int]
    accepted: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    notes: tuple[int, int] = (0, 0)

    def run(self) -> SendReply:
        """Write the frames that fit, and return their fates."""
        sender, done = self.sender, self.request.conclusion
        over = done is not None and done.number <= sender.transactions  # an earlier call has concluded it
        reply, refused = SendReply(self._status(over=over), []), set[str]()
        if reply.status in _REFUSED:
            return reply
        for write in self.request.writes:
            name = write.mailbox
            if over or (done is None and write.seq <= sender.last.get(name, 0)):
                fate = FrameFate.DUPLICATE
                reply.takers = reply.takers if name else sender.takers
            elif reply.status is not SendStatus.OK or name in refused:
                fate = FrameFate.FULL
            else:
                fate = self._decide(write)
            reply.fates.append(fate)
            if fate > FrameFate.DUPLICATE:
                refused.add(name)
        if done is not None and refused:
            reply.fates = [fate if fate > FrameFate.DUPLICATE else FrameFate.HELD_BACK for fate in reply.fates]
        elif done is not None and not over:
            self._conclude(done)
        for fate, write in zip(reply.fates, self.request.writes, strict=True):
            if fate is FrameFate.WRITTEN:
                self._write(write, reply)
        self.exp.wake()
        return reply

    def _status(self, *, over: bool) -> SendStatus:
        exp, request, sender, done = self.exp, self.request, self.sender, self.request.conclusion
        if sender.epoch != request.epoch:
            return SendStatus.FENCED if sender.epoch > request.epoch else SendStatus.RESTORED
        if done is not None and not over:
            if done.number > sender.transactions + 1:
                return SendStatus.BEHIND
            box = exp.mailboxes.get(done.mailbox)
            if box is None or box.epoch != done.epoch:
                return SendStatus.READER_FENCED
        if all(write.seq <= sender.last.get(write.mailbox, 0) for write in request.writes):
            return SendStatus.OK
        if request.directory_version != exp.directory:
            return SendStatus.STALE_DIRECTORY
        return exp.verdict_status(request.interceptor_epoch)

    def _decide(self, write: FrameWrite) -> FrameFate:
        """Return whether a frame fits behind those that are accepted, and accept it."""
        name, done = write.mailbox, self.request.conclusion
        seq, rows, nbytes = self.accepted.get(name) or (self.sender.last.get(name, 0), 0, 0)
        if write.seq != seq + 1:
            return FrameFate.GAP
        rows, nbytes = rows + write.rows, nbytes + len(write.frame)
        if name not in {"", LOG}:
            box = self.exp.mailboxes.get(name)
            if box is None:
                fate = FrameFate.GONE
            elif name in self.exp.steps.members:
                fate = self._fate_from_outside(name, rows, nbytes)
            else:
                if done is not None and done.mailbox == name and done.cursor is not None:
                    box = copy(box)  # what the transaction handled makes room for what it sends
                    box.commit(done.cursor, done.messages, done.nbytes, done.acks)
                fate = box.fate(len(write.frame), rows, nbytes)
            if fate is not FrameFate.WRITTEN:
                return fate
        if write.noted is not None and not self._takes_note(write.noted):
            return FrameFate.LOG_FULL
        self.accepted[name] = write.seq, rows, nbytes
        return FrameFate.WRITTEN

    def _fate_from_outside(self, name: str, rows: int, nbytes: int) -> FrameFate:
        """Return whether rows and bytes for a stepped mailbox fit into its next box."""
        steps = self.exp.steps
        box = steps.next_box(name)
        if box is None:
            return FrameFate.GONE
        return FrameFate.WRITTEN if steps.takes(steps.size_of(box), rows, nbytes) else FrameFate.TOO_LARGE

    def _takes_note(self, noted: LoggedFrame) -> bool:
        """Return whether the log stream takes a note; an empty one takes any, which would else wait for ever."""
        log, (rows, nbytes) = self.exp.log, self.notes
        waits = log.backlog.messages + rows > 0 or log.backlog.nbytes + nbytes > 0
        rows, nbytes = rows + noted.rows, nbytes + len(noted.frame) + len(noted.note)
        if waits and log.limits is not None:
            messages, size = log.backlog.messages + rows, log.backlog.nbytes + nbytes
            if messages > log.limits.messages or size > log.limits.nbytes:
                return False
        self.notes = rows, nbytes
        return True

    def _conclude(self, done: Conclusion) -> None:
        self.sender.transactions = done.number
        box = self.exp.mailboxes[done.mailbox]
        if done.cursor is not None:
            box.commit(done.cursor, done.messages, done.nbytes, done.acks)
        if done.state_changed:
            box.state = done.state

    def _write(self, write: FrameWrite, reply: SendReply) -> None:
        exp, name, noted = self.exp, write.mailbox, write.noted
        takers = [self.publish(publication) for publication in write.publish]
        if not name:
            self.sender.takers = reply.takers = takers
        elif name in exp.steps.members:
            exp.steps.put_from_outside(name, write.rows, write.frame)
        elif name != LOG:
            exp.entry += 1
            exp.mailboxes[name].append(exp.entry, write.rows, write.frame)
        if noted is not None and exp.log.limits is not None:
            exp.log.backlog.add(noted.rows, len(noted.frame) + len(noted.note))
            step = exp.steps.given_step(name)
            exp.log.last_noted = exp.append_to_log(noted.frame, noted.note, None if name else takers, step)
        self.sender.last[name] = write.seq
