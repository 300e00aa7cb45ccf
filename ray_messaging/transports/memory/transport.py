"""Keep frames in a MemoryServer, as the Redis transport keeps them in streams."""

import asyncio
import time
from collections.abc import Callable, Sequence

from ray_messaging.directory import Record, decode_record, encode_record
from ray_messaging.errors import AlreadyExists, Fenced
from ray_messaging.patterns import GLOBS, Patterns
from ray_messaging.transports.base import (
    LOG,
    Cursor,
    DirectoryDelta,
    FrameFate,
    Ingress,
    Limits,
    Listening,
    SenderState,
    SendReply,
    SendRequest,
    SendStatus,
    Shipment,
)
from ray_messaging.transports.memory.log import MemoryLog
from ray_messaging.transports.memory.server import Backlog, Mailbox, MemoryServer, Sender, number


class MemoryTransport(MemoryLog):
    """Keep the mailboxes of one experiment in a MemoryServer."""

    patterns: Patterns = GLOBS
    logs_apart = False
    largest_frame: int | None = None

    def __init__(self, server: MemoryServer, exp_id: str) -> None:
        super().__init__(server, exp_id)
        self._sink: Callable[[Ingress], None] | None = None

    async def connect(self) -> None:
        """Reach the server: it is always there."""

    async def close(self) -> None:
        """Let go of the server."""
        await self.unsubscribe()

    async def load_directory(self, since: int) -> DirectoryDelta:
        """Return what changed since a version; mailboxes whose lease has expired are taken out first."""
        exp = self._exp
        for name, box in list(exp.mailboxes.items()):
            if box.limits.leased and box.alive_until < time.monotonic():
                self._bury_mailbox(name, "the lease of its messager has expired")
        changed = [decode_record(box.record) for box in exp.mailboxes.values() if box.changed > since]
        return DirectoryDelta(exp.directory, changed, list(exp.mailboxes), logged=exp.log.limits is not None)

    async def take_sender_epoch(self, sender: str, *, keep_s: float) -> SenderState:  # noqa: ARG002 - a Transport's
        """Raise a sender's epoch, which fences whoever sent under this name before."""
        state = self._exp.senders.setdefault(sender, Sender())
        state.epoch += 1
        return SenderState(state.epoch, dict(state.last), state.takers)

    async def listen(
        self, record: Record, version: int, limits: Limits, *, owner: str, epoch: int | None
    ) -> Listening | None:
        """Enter a record in the directory if it is still at `version`, and take the mailbox; None: it is not."""
        exp, now = self._exp, time.monotonic()
        if exp.directory != max(version, 0):
            return None
        box = exp.mailboxes.get(record.mailbox)
        if epoch is not None and (box is None or box.epoch != epoch):
            raise _fenced(record.mailbox, epoch)
        if box is not None and owner and box.owner not in {"", owner} and box.alive_until >= now:
            raise AlreadyExists(
                f"mailbox {record.mailbox!r} is held by {box.owner!r}, which is alive: choose another name",
                kind="group",
                value=record.mailbox,
                owner=box.owner,
            )
        box = box or self._make(record.mailbox, limits, owner)
        box.limits, box.owner, box.alive_until = limits, owner, now + limits.lease_s
        if epoch is None:
            box.epoch += 1
            box.handled = (0, 0)
        if box.record != encode_record(record):
            exp.directory += 1
            box.record, box.changed = encode_record(record), exp.directory
        return Listening(exp.directory, box.epoch, box.cursor)

    def _make(self, name: str, limits: Limits, owner: str) -> Mailbox:
        exp = self._exp
        exp.born += 1
        box = exp.mailboxes[name] = Mailbox(limits, owner, time.monotonic(), exp.born)
        if exp.log.limits is not None:
            box.backlog = Backlog()
            self._mark()
        return box

    async def send(self, request: SendRequest) -> SendReply:
        """Write frames and publish, atomically: nothing here awaits."""
        exp = self._exp
        sender = exp.senders.get(request.sender)
        if sender is None or sender.epoch != request.epoch:
            return SendReply(SendStatus.FENCED)
        reply = SendReply(SendStatus.OK)
        if any(part.seq > sender.last.get(part.mailbox, 0) for part in request.shipments):
            if request.directory_version != exp.directory:
                reply.status = SendStatus.STALE_DIRECTORY
            elif request.interceptor_epoch == -2:
                reply.status = SendStatus.UNJUDGED if exp.interceptor else SendStatus.OK
            elif request.interceptor_epoch not in {-1, exp.interceptor}:
                reply.status = SendStatus.STALE_VERDICTS
        refused: set[str] = set()
        for part in request.shipments:
            fate = self._take(part, sender, reply, behind=part.mailbox in refused)
            reply.fates.append(fate)
            if fate > FrameFate.DUPLICATE:
                refused.add(part.mailbox)
        exp.wake()
        return reply

    def _take(self, part: Shipment, sender: Sender, reply: SendReply, *, behind: bool) -> FrameFate:
        last = sender.last.get(part.mailbox, 0)
        if part.seq <= last:
            if not part.mailbox:
                reply.takers = sender.takers
            return FrameFate.DUPLICATE
        if reply.status is not SendStatus.OK or behind:
            return FrameFate.FULL
        if part.seq != last + 1:
            return FrameFate.GAP
        takers: list[int] | None = None
        if part.mailbox not in {"", LOG}:
            fate = self._write(part)
            if fate is not FrameFate.WRITTEN:
                return fate
            self._publish(part)
        elif self._crowded(part.noted):
            return FrameFate.LOG_FULL
        elif not part.mailbox:
            sender.takers = reply.takers = takers = self._publish(part)
        self._note(part.noted, takers)
        sender.last[part.mailbox] = part.seq
        return FrameFate.WRITTEN

    def _write(self, part: Shipment) -> FrameFate:
        exp = self._exp
        box = exp.mailboxes.get(part.mailbox)
        if box is None or (box.limits.leased and box.alive_until < time.monotonic()):
            return FrameFate.GONE
        if len(part.frame) > box.limits.nbytes:
            return FrameFate.TOO_LARGE
        if box.messages + part.rows > box.limits.messages or box.nbytes + len(part.frame) > box.limits.nbytes:
            return FrameFate.FULL
        if box.backlog is not None and box.backlog.passes(box.limits, part.rows, len(part.frame)):
            return FrameFate.LOG_FULL
        if self._crowded(part.noted):
            return FrameFate.LOG_FULL
        exp.entry += 1
        box.entries.append((exp.entry, part.frame))
        box.last = exp.entry
        box.messages += part.rows
        box.nbytes += len(part.frame)
        if box.backlog is not None:
            box.backlog.add(part.rows, len(part.frame))
        return FrameFate.WRITTEN

    def _publish(self, part: Shipment) -> list[int]:
        return [self.server.publish(channel, data, by=self.exp_id) for channel, data in part.publish]

    async def read(self, mailbox: str, after: str, count: int, block_s: float) -> list[tuple[str, bytes]]:
        """Return up to `count` frames after an entry; wait for the first up to `block_s`."""
        deadline = asyncio.get_running_loop().time() + block_s
        last = number(after)
        while True:
            written = self._exp.written
            box = self._exp.mailboxes.get(mailbox)
            found = [(f"{entry}-0", frame) for entry, frame in (box.entries if box else []) if entry > last][:count]
            if found or not await self._arrival(written, deadline):
                return found

    async def commit(self, mailbox: str, epoch: int, cursor: Cursor, *, messages: int, nbytes: int) -> None:
        """Move the durable cursor and trim what lies behind."""
        box = self._exp.mailboxes.get(mailbox)
        if box is None or box.epoch != epoch:
            raise _fenced(mailbox, epoch)
        box.cursor = cursor
        box.messages -= messages - box.handled[0]
        box.nbytes -= nbytes - box.handled[1]
        box.handled = (messages, nbytes)
        box.trim()

    async def renew(self, sender: str, mailbox: str | None, epoch: int, *, lease_s: float, keep_s: float) -> bool:  # noqa: ARG002 - a Transport's
        """Renew a mailbox's lease; raise Fenced if a newer reader holds it; False if it has been removed."""
        if mailbox is None:
            return True
        box = self._exp.mailboxes.get(mailbox)
        if box is None:
            return False
        if box.epoch != epoch:
            raise _fenced(mailbox, epoch)
        box.alive_until = time.monotonic() + lease_s
        return True

    async def remove(self, mailbox: str, epoch: int | None) -> int:
        """Take a mailbox out of the directory; what is unread becomes dead letters. Returns their frames."""
        box = self._exp.mailboxes.get(mailbox)
        if box is None:
            return 0
        if epoch is not None and box.epoch != epoch:
            raise _fenced(mailbox, epoch)
        return self._bury_mailbox(mailbox, "the mailbox was removed")

    def _bury_mailbox(self, name: str, reason: str) -> int:
        box = self._exp.mailboxes.pop(name)
        self._exp.directory += 1
        unread = box.unread()
        for entry, frame in unread:
            row = box.cursor.row if f"{entry}-0" == box.cursor.entry else 0
            self._exp.dead.append((name, f"{entry}-0", row, reason, frame))
        if self._exp.log.limits is not None:
            self._exp.log.ended[f"{name}:{box.born}"] = box
            self._mark()
        return len(unread)

    async def bury(self, mailbox: str, entry: str, frame: bytes, reason: str) -> None:
        """Keep a frame that cannot be read among the dead letters."""
        self._exp.dead.append((mailbox, entry, 0, reason, frame))

    async def subscribe(self, channels: Sequence[str], globs: Sequence[str], sink: Callable[[Ingress], None]) -> None:
        """Hand what foreign clients publish to `sink`; never what our own senders publish."""
        self._sink = sink
        self.server.subscribe(channels, globs, sink, exp_id=self.exp_id)

    async def unsubscribe(self) -> None:
        """Stop listening to foreign clients."""
        if self._sink is not None:
            self.server.unsubscribe(self._sink)
            self._sink = None

    async def waiting(self) -> dict[str, int]:
        """Return the messages that wait in each mailbox."""
        return {name: box.messages for name, box in self._exp.mailboxes.items()}


def _fenced(name: str, epoch: int) -> Fenced:
    return Fenced(f"somebody newer has taken over {name!r}: close this messager", name=name, epoch=epoch)
