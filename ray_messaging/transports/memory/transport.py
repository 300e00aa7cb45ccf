"""Transport over a MemoryServer."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from math import inf

from ray_messaging.addressing.directory import Record, decode_record, encode_record
from ray_messaging.audiences.records import StoredVersion, needed
from ray_messaging.common.limits import DEAD_BYTES
from ray_messaging.common.task_health import TaskHealth
from ray_messaging.errors import Closed
from ray_messaging.observability.observer import Observer
from ray_messaging.transports.cursors import START, Cursor, SelectiveAcks, decode_ranges, encode_rows, rows_of
from ray_messaging.transports.dead_letter_store import DeadFrame, kept_of
from ray_messaging.transports.memory.departures import MemoryDepartures
from ray_messaging.transports.memory.log import MemoryLog
from ray_messaging.transports.memory.send_call import SendCall
from ray_messaging.transports.memory.server import Backlog, Mailbox, MemoryServer, Sender, number
from ray_messaging.transports.memory.steps import MemorySteps
from ray_messaging.transports.memory.surveys import MemorySurveys
from ray_messaging.transports.transport import (
    LOG,
    DirectoryDelta,
    FrameFate,
    Held,
    Ingress,
    Limits,
    Listening,
    MailboxEnd,
    Published,
    SenderState,
    SendReply,
    SendRequest,
    SendStatus,
    fenced,
    lost,
)


class MemoryTransport:
    """Mailboxes of one experiment in a MemoryServer."""

    forgets = True

    def __init__(self, server: MemoryServer, exp_id: str, *, dead_bytes: int = DEAD_BYTES) -> None:
        self.server, self.exp_id = server, exp_id
        self.exp = server.experiments[exp_id]
        self.log = MemoryLog(self.exp)
        self.steps = MemorySteps(self.exp, exp_id, self._publish)
        self.surveys = MemorySurveys(self.exp)
        self.departures = MemoryDepartures(self.exp, dead_bytes)
        self._dead_bytes = dead_bytes
        self._sink: Callable[[Ingress], None] | None = None

    def observe(self, observer: Observer) -> None:
        """Do nothing: there are no connections."""

    def ask_when_cut(self, ended: Callable[[], Awaitable[Closed | None]]) -> None:
        """Do nothing: no server of ours ends with an experiment."""

    async def connect(self) -> None:
        """Reach the server: it is always there."""

    async def close(self) -> None:
        """Let go of the server."""
        await self.unsubscribe()

    async def load_directory(self, since: int) -> DirectoryDelta:
        """Return the changes since a version, after removing mailboxes with an expired lease."""
        exp = self.exp
        for name, box in list(exp.mailboxes.items()):
            if box.limits.leased and box.alive_until < time.monotonic():
                self._bury_mailbox(name, "the lease of its messager has expired")
        changed = [decode_record(box.record) for box in exp.mailboxes.values() if box.changed > since]
        logged = exp.log.limits is not None
        schemas, audiences = dict(exp.schemas), dict(exp.audiences)
        return DirectoryDelta(exp.directory, changed, list(exp.mailboxes), logged, schemas, audiences, exp.dates)

    async def set_schema(self, subtopic: str, schema: bytes | None) -> None:
        """Keep the JSON Schema of a subtopic's payloads in the directory (None: remove it)."""
        exp = self.exp
        if exp.schemas.get(subtopic) != schema:
            exp.schemas[subtopic] = schema or b""
            exp.schemas = {name: text for name, text in exp.schemas.items() if text}
            exp.directory += 1

    async def set_audience(self, name: str, version: int, facts: str, since: int | None = None) -> int | None:
        """Keep a version of an audience in the directory ("": it is removed); return the step since which it counts.

        None: the last version is not the one before this one.
        """
        exp = self.exp
        versions = exp.audiences.get(name, ())
        last = versions[-1] if versions else StoredVersion(0, 0, "")
        if (last.version, last.facts) == (version, facts):
            return last.since
        if version != last.version + 1:
            return None
        added = StoredVersion(version, exp.steps.latest + 1 if since is None else since, facts)
        exp.audiences[name] = needed((*versions, added), exp.steps.sealed)
        exp.directory += 1
        return added.since

    async def take_sender_epoch(
        self,
        sender: str,
        *,
        keep_s: float,  # noqa: ARG002 - a Transport's
        held: int | None = None,
    ) -> SenderState:
        """Raise a sender's epoch, which fences earlier senders under this name; raise Fenced if it is not `held`."""
        if held is not None and sender not in self.exp.senders:
            raise lost(sender, held)
        state = self.exp.senders.setdefault(sender, Sender())
        if held is not None and state.epoch > held:
            raise fenced(sender, held)
        state.epoch = max(state.epoch, held or 0) + 1
        return SenderState(state.epoch, dict(state.last), state.takers, state.transactions)

    async def forget(self, sender: str, epoch: int, mailboxes: Sequence[str]) -> None:
        """Forget a sender's sequence numbers for removed mailboxes, unless a newer sender has its name."""
        state = self.exp.senders.get(sender)
        if state is not None and state.epoch == epoch:
            for mailbox in mailboxes:
                state.last.pop(mailbox, None)

    async def leave(self, sender: str, epoch: int, *, keep_s: float) -> None:
        """Forget a sender that sends no more; one that is to be kept stays as long as this server does."""
        state = self.exp.senders.get(sender)
        if state is not None and state.epoch == epoch and keep_s == 0:
            del self.exp.senders[sender]

    async def listen(
        self,
        record: Record,
        version: int,
        limits: Limits,
        *,
        owner: str,
        epoch: int | None,
        over: str = "",
    ) -> Listening | Held | None:
        """Enter a record in the directory if it is still at `version`, and take the mailbox; None: it is not."""
        exp, now = self.exp, time.monotonic()
        if exp.directory != max(version, 0):
            return None
        box = exp.mailboxes.get(record.mailbox)
        if epoch is not None and (box is None or box.epoch != epoch):
            raise (lost if box is None or box.epoch < epoch else fenced)(record.mailbox, epoch)
        if box is not None and owner and box.owner not in {"", owner} and box.alive_until >= now:
            lease = f"{box.alive_until}:{int(box.limits.lease_s * 1000)}"
            if over != lease:
                return Held(box.owner, lease, overdue=False)
        stepped = box is not None and record.mailbox in exp.steps.members
        box = box or self._make(record.mailbox, limits, owner)
        box.limits, box.owner, box.alive_until = limits, owner, now + limits.lease_s
        if epoch is None:
            box.epoch += 1
            box.handled, box.failures = (0, 0), 0
            box.held = False
        if box.record != encode_record(record):
            exp.directory += 1
            box.record, box.changed = encode_record(record), exp.directory
            if stepped:
                exp.date_change()
        return Listening(exp.directory, box.epoch, box.cursor, box.state, box.acked.ranges)

    def _make(self, name: str, limits: Limits, owner: str) -> Mailbox:
        exp = self.exp
        exp.born += 1
        box = exp.mailboxes[name] = Mailbox(limits, owner, time.monotonic(), exp.born, since=exp.entry + 1)
        if exp.log.limits is not None:
            box.backlog = Backlog()
            exp.append_to_log()
        return box

    async def send(self, request: SendRequest) -> SendReply:
        """Write frames and publish, atomically."""
        sender = self.exp.senders.get(request.sender)
        if sender is None:
            return SendReply(SendStatus.LOST)
        return SendCall(self.exp, request, sender, self._publish).run()

    def _publish(self, publication: Published) -> int:
        return self.server.publish(publication.channel, publication.data, by=self.exp_id)

    async def still_full(self, mailbox: str, rows: int, nbytes: int) -> FrameFate | None:  # noqa: ARG002 - a Transport's
        """Return None, so that `send` decides: no network is in between."""
        return None

    async def end_of(self, mailbox: str) -> MailboxEnd:
        """Return the current end of a mailbox."""
        box = self.exp.mailboxes.get(mailbox)
        return MailboxEnd(START.entry, 0, 0) if box is None else MailboxEnd(f"{box.last}-0", box.messages, box.nbytes)

    async def commit(
        self,
        mailbox: str,
        epoch: int,
        cursor: Cursor,
        *,
        messages: int,
        nbytes: int,
        acks: SelectiveAcks | None = None,
    ) -> None:
        """Move the durable cursor and trim the entries before it."""
        box = self.exp.mailboxes.get(mailbox)
        if box is None or box.epoch != epoch:
            raise (lost if box is None or box.epoch < epoch else fenced)(mailbox, epoch)
        box.commit(cursor, messages, nbytes, acks)

    async def read(self, mailbox: str, after: str, count: int, block_s: float) -> list[tuple[str, bytes]]:
        """Return up to `count` frames after an entry; wait for the first up to `block_s`."""
        deadline = asyncio.get_running_loop().time() + block_s
        last = number(after)
        while True:
            box = self.exp.mailboxes.get(mailbox)
            found = [(f"{entry}-0", frame) for entry, frame in (box.entries if box else []) if entry > last][:count]
            if found or not await self.exp.arrival(deadline):
                return found

    async def renew(self, sender: str, mailbox: str | None, epoch: int, *, lease_s: float, keep_s: float) -> bool:  # noqa: ARG002 - a Transport's
        """Renew a mailbox's lease; raise Fenced if a newer reader holds it; False if it has been removed."""
        if mailbox is None:
            return True
        box = self.exp.mailboxes.get(mailbox)
        if box is None:
            return False
        if box.epoch != epoch:
            raise (lost if box.epoch < epoch else fenced)(mailbox, epoch)
        box.alive_until = time.monotonic() + lease_s
        return True

    async def leases(self, mailboxes: Collection[str]) -> dict[str, str]:  # noqa: ARG002 - a Transport's
        """Return nothing: all messagers are in this process, and go by its clock."""
        return {}

    async def end_leases(self, over: Mapping[str, str]) -> None:
        """Do nothing, as above."""

    async def remove(self, mailbox: str, epoch: int | None) -> int:
        """Remove a mailbox; its unread frames become dead letters. Returns how many frames."""
        box = self.exp.mailboxes.get(mailbox)
        if box is None:
            return 0
        if epoch is not None and box.epoch != epoch:
            raise fenced(mailbox, epoch)
        return self._bury_mailbox(mailbox, "the mailbox was removed")

    def _bury_mailbox(self, name: str, reason: str) -> int:
        box = self.exp.mailboxes.pop(name)
        self.exp.directory += 1
        ranges, exclusive = decode_ranges(box.acked.ranges), decode_record(box.record).exclusive
        acked = {entry: rows_of(ranges, f"{entry}-0") for entry, _ in box.unread()}
        unread = [
            (entry, frame)
            for entry, frame in box.unread()
            if entry not in box.rejected and (0, inf) not in acked[entry]
        ]
        for entry, frame in unread:
            row = box.cursor.row if f"{entry}-0" == box.cursor.entry else 0
            rows = encode_rows(acked[entry])
            self._lay(name, entry, row, reason, frame, born=self.exp.born, exclusive=exclusive, acked=rows)
        if self.exp.log.limits is not None:
            self.exp.log.ended[f"{name}:{box.born}"] = box
            self.exp.append_to_log()
        return len(unread)

    async def bury(self, mailbox: str, entry: str, frame: bytes, reason: str, *, row: int | None = None) -> None:
        """Keep a frame that cannot be read among the dead letters, or (row) a message whose handler has failed."""
        frame, reason = kept_of(frame, reason)
        box = self.exp.mailboxes.get(mailbox)
        if row is not None:
            if box is not None:
                exclusive = decode_record(box.record).exclusive
                self._lay(mailbox, number(entry), 0, reason, frame, born=self.exp.born, exclusive=exclusive)
                box.failures += 1
            return
        if mailbox == LOG and not any((one.mailbox, one.entry) == (mailbox, entry) for one in self.exp.dead):
            self._lay(mailbox, number(entry), 0, reason, frame)
        elif box is not None and number(entry) not in box.rejected:
            box.rejected = {one for one in box.rejected if one > number(box.cursor.entry)} | {number(entry)}
            self._lay(mailbox, number(entry), 0, reason, frame)

    async def set_service(self, mailbox: str, epoch: int, note: bytes) -> None:
        """Keep a note on the service of a mailbox (b"": none), unless a newer reader than that epoch's has it."""
        box = self.exp.mailboxes.get(mailbox)
        if box is not None and box.epoch == epoch:
            box.service = (epoch, note)

    async def services(self, mailboxes: Collection[str]) -> dict[str, bytes]:
        """Return the notes on the services of mailboxes, of those that have one by their present reader."""
        boxes = ((name, self.exp.mailboxes.get(name)) for name in mailboxes)
        return {name: box.service[1] for name, box in boxes if box and box.service[1] and box.service[0] == box.epoch}

    def _lay(
        self,
        mailbox: str,
        entry: int,
        row: int,
        reason: str,
        frame: bytes,
        *,
        born: int | None = None,
        exclusive: bool = False,
        acked: str = "",
    ) -> None:
        letter = DeadFrame("", mailbox, f"{entry}-0", row, reason, frame, time.time(), born, exclusive, acked)
        self.exp.dead.lay(letter, self._dead_bytes)

    async def subscribe(self, channels: Collection[str], globs: Sequence[str], sink: Callable[[Ingress], None]) -> None:
        """Pass publications of foreign clients to `sink`; never those of our own senders."""
        self._sink = sink
        self.server.subscribe(channels, globs, sink, exp_id=self.exp_id)

    async def unsubscribe(self, channels: Collection[str] | None = None) -> None:
        """Stop listening to foreign clients, on some channels or (None) on all."""
        if self._sink is not None and channels is not None:
            self.server.unsubscribe_from(self._sink, channels)
        elif self._sink is not None:
            self.server.unsubscribe(self._sink)
            self._sink = None

    def loops(self) -> list[TaskHealth]:
        """Return nothing: no task runs here."""
        return []

    async def waiting(self) -> dict[str, int]:
        """Return the number of unacknowledged messages in each mailbox."""
        return {name: box.messages - box.acked.messages for name, box in self.exp.mailboxes.items()}
