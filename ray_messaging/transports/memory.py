"""Mailboxes in this process's memory: the reference that the other transports are held against, and for tests."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ray_messaging.channels import glob_pattern
from ray_messaging.directory import Record, decode_record, encode_record
from ray_messaging.errors import AlreadyExists, Fenced
from ray_messaging.transports.base import (
    START,
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


@dataclass
class _Mailbox:
    limits: Limits
    owner: str
    alive_until: float
    record: bytes = b""
    changed: int = 0
    epoch: int = 0
    cursor: Cursor = START
    entries: list[tuple[int, bytes]] = field(default_factory=list)
    messages: int = 0
    nbytes: int = 0
    handled: tuple[int, int] = (0, 0)


@dataclass
class _Sender:
    epoch: int = 0
    last: dict[str, int] = field(default_factory=dict)
    takers: list[int] = field(default_factory=list)


@dataclass
class _Experiment:
    directory: int = 0
    interceptor: int = 0
    mailboxes: dict[str, _Mailbox] = field(default_factory=dict)
    senders: dict[str, _Sender] = field(default_factory=dict)
    dead: list[tuple[str, str, int, str, bytes]] = field(default_factory=list)
    entry: int = 0
    written: asyncio.Event = field(default_factory=asyncio.Event)


class _Subscriber(NamedTuple):
    channels: set[str]
    globs: dict[str, None]
    exp_id: str | None


class MemoryServer:
    """Stand in for a Redis server within one event loop; pass it where a RedisConfig goes."""

    def __init__(self) -> None:
        self.experiments: dict[str, _Experiment] = {}
        self._subscribers: dict[Callable[[Ingress], None], _Subscriber] = {}

    def publish(self, channel: str, data: bytes, *, by: str | None = None) -> int:
        """Publish as a foreign client would; return how many took it. What experiment `by` publishes passes it by."""
        taken = 0
        for sink, (channels, globs, exp_id) in list(self._subscribers.items()):
            glob = next((glob for glob in globs if glob_pattern(glob).fullmatch(channel.encode())), None)
            if (channel in channels or glob is not None) and (by is None or exp_id != by):
                sink(Ingress(channel, data, None if channel in channels else glob))
                taken += 1
        return taken

    def subscribe(
        self,
        channels: Sequence[str],
        globs: Sequence[str],
        sink: Callable[[Ingress], None],
        *,
        exp_id: str | None = None,
    ) -> None:
        """Subscribe as a foreign client would; a sink that subscribes again adds to what it has."""
        subscriber = self._subscribers.setdefault(sink, _Subscriber(set(), {}, exp_id))
        subscriber.channels.update(channels)
        subscriber.globs.update(dict.fromkeys(globs))

    def unsubscribe(self, sink: Callable[[Ingress], None]) -> None:
        """Let a subscriber go."""
        self._subscribers.pop(sink, None)


class MemoryTransport:
    """Keep the mailboxes of one experiment in a MemoryServer."""

    def __init__(self, server: MemoryServer, exp_id: str) -> None:
        self.exp_id = exp_id
        self.server = server
        self._sink: Callable[[Ingress], None] | None = None

    @property
    def _exp(self) -> _Experiment:
        return self.server.experiments.setdefault(self.exp_id, _Experiment())

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
        return DirectoryDelta(exp.directory, changed, list(exp.mailboxes))

    async def take_sender_epoch(self, sender: str, *, keep_s: float) -> SenderState:  # noqa: ARG002 - a Transport's
        """Raise a sender's epoch, which fences whoever sent under this name before."""
        state = self._exp.senders.setdefault(sender, _Sender())
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
        box = box or exp.mailboxes.setdefault(record.mailbox, _Mailbox(limits, owner, now))
        box.limits, box.owner, box.alive_until = limits, owner, now + limits.lease_s
        if epoch is None:
            box.epoch += 1
            box.handled = (0, 0)
        if box.record != encode_record(record):
            exp.directory += 1
            box.record, box.changed = encode_record(record), exp.directory
        return Listening(exp.directory, box.epoch, box.cursor)

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
            elif request.interceptor_epoch not in {-1, exp.interceptor}:
                reply.status = SendStatus.STALE_VERDICTS
        refused: set[str] = set()
        for part in request.shipments:
            fate = self._take(part, sender, reply, behind=part.mailbox in refused)
            reply.fates.append(fate)
            if fate > FrameFate.DUPLICATE:
                refused.add(part.mailbox)
        exp.written.set()
        exp.written = asyncio.Event()
        return reply

    def _take(self, part: Shipment, sender: _Sender, reply: SendReply, *, behind: bool) -> FrameFate:
        last = sender.last.get(part.mailbox, 0)
        if part.seq <= last:
            if not part.mailbox:
                reply.takers = sender.takers
            return FrameFate.DUPLICATE
        if reply.status is not SendStatus.OK or behind:
            return FrameFate.FULL
        if part.seq != last + 1:
            return FrameFate.GAP
        if not part.mailbox:
            sender.takers = reply.takers = self._publish(part)
        else:
            box = self._exp.mailboxes.get(part.mailbox)
            if box is None or (box.limits.leased and box.alive_until < time.monotonic()):
                return FrameFate.GONE
            if len(part.frame) > box.limits.nbytes:
                return FrameFate.TOO_LARGE
            if box.messages + part.rows > box.limits.messages or box.nbytes + len(part.frame) > box.limits.nbytes:
                return FrameFate.FULL
            self._exp.entry += 1
            box.entries.append((self._exp.entry, part.frame))
            box.messages += part.rows
            box.nbytes += len(part.frame)
            self._publish(part)
        sender.last[part.mailbox] = part.seq
        return FrameFate.WRITTEN

    def _publish(self, part: Shipment) -> list[int]:
        return [self.server.publish(channel, data, by=self.exp_id) for channel, data in part.publish]

    async def read(self, mailbox: str, after: str, count: int, block_s: float) -> list[tuple[str, bytes]]:
        """Return up to `count` frames after an entry; wait for the first up to `block_s`."""
        deadline = asyncio.get_running_loop().time() + block_s
        last = int(after.partition("-")[0])
        while True:
            written = self._exp.written
            box = self._exp.mailboxes.get(mailbox)
            found = [(f"{entry}-0", frame) for entry, frame in (box.entries if box else []) if entry > last][:count]
            if found:
                return found
            try:
                async with asyncio.timeout_at(deadline):
                    await written.wait()
            except TimeoutError:
                return []

    async def commit(self, mailbox: str, epoch: int, cursor: Cursor, *, messages: int, nbytes: int) -> None:
        """Move the durable cursor and trim what lies behind."""
        box = self._exp.mailboxes.get(mailbox)
        if box is None or box.epoch != epoch:
            raise _fenced(mailbox, epoch)
        box.cursor = cursor
        box.messages -= messages - box.handled[0]
        box.nbytes -= nbytes - box.handled[1]
        box.handled = (messages, nbytes)
        handled = int(cursor.entry.partition("-")[0]) - (cursor.row > 0)
        box.entries = [(entry, frame) for entry, frame in box.entries if entry > handled]

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
        for entry, frame in box.entries:
            row = box.cursor.row if f"{entry}-0" == box.cursor.entry else 0
            self._exp.dead.append((name, f"{entry}-0", row, reason, frame))
        return len(box.entries)

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
