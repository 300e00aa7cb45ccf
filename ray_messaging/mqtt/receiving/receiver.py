"""The receiver of one mailbox: directory entry, session, mailbox, cursor."""

import asyncio
import logging
import math
from collections.abc import Sequence

from ray_messaging.addressing.directory import Record, decode_record
from ray_messaging.config import MqttConfig
from ray_messaging.errors import Fenced, MessagingError
from ray_messaging.mqtt.connection.control_link import ControlLink
from ray_messaging.mqtt.directory.directory import MqttDirectory
from ray_messaging.mqtt.directory.registration import Registration
from ray_messaging.mqtt.receiving.cursors import CursorStore
from ray_messaging.mqtt.receiving.mailbox import Mailbox, MailboxEntry
from ray_messaging.mqtt.receiving.session import MailboxSession, end_session
from ray_messaging.mqtt.receiving.subscriptions import Subscriptions
from ray_messaging.mqtt.wire.messages import DirectoryEntry
from ray_messaging.transports.transport import Limits, fenced

logger = logging.getLogger(__name__)

_BURIED_AT_ONCE = 20


class MailboxReceiver:
    """Holder of one mailbox, from `take` to `remove` or `close`."""

    def __init__(self, config: MqttConfig, exp_id: str, control: ControlLink, directory: MqttDirectory) -> None:
        self.mailbox: Mailbox | None = None
        self.registration = Registration(control, directory)
        self.cursors = CursorStore(control)
        self._config = config
        self._exp_id = exp_id
        self._control = control
        self._directory = directory
        self._leased = True
        self.session: MailboxSession | None = None
        self._removing = False
        self._leaving: asyncio.Task[None] | None = None
        self._publishing: asyncio.Task[None] | None = None
        self._needs_stamp = False  # the session was lost, so senders must send again

    def owned(self, name: str, epoch: int) -> Mailbox:
        """Return our mailbox; raise Fenced if this one is not, or not any more."""
        if self.mailbox is None or (self.mailbox.name, self.mailbox.epoch) != (name, epoch):
            raise fenced(name, epoch)
        return self.mailbox

    # -- taking a mailbox -----------------------------------------------------------------------------------------

    async def take(self, record: Record, limits: Limits, owner: str) -> Mailbox:
        """Take a mailbox over; raise AlreadyExists if another live owner has it or one of its agents."""
        name, registration = record.mailbox, self.registration
        registration.check_owner(name, limits, owner)
        owner = "" if limits.leased else owner
        known, epoch = self._directory.entries.get(name), registration.next_epoch(name)
        entry = registration.make(record, epoch, owner, limits, stamp="" if known is None else known.entry.stamp)
        self._leased = limits.leased
        # A mailbox that continues needs no claim: nobody else can have claimed its agents.
        continues = known is not None and not (record.exclusive and record.agents() - known.record.agents())
        try:
            if not continues and (record.exclusive or not limits.leased):
                await registration.claim(record, entry)
            if known is not None:  # this fences the last reader, which then does not connect again
                await registration.publish(name, entry, owner)
            mailbox, session = await self._open(record, epoch, limits)
            if known is None or not session.present:
                stamp = entry.stamp if session.present else ""
                await registration.publish(name, registration.make(record, epoch, owner, limits, stamp=stamp), owner)
        except BaseException:
            registration.entry = None
            await self.close()
            self.mailbox = None
            raise
        return mailbox

    async def widen(self, record: Record, limits: Limits, epoch: int) -> Mailbox:
        """Listen on more; raise AlreadyExists if another mailbox has some of it, Fenced if ours is taken."""
        mailbox, entry = self.owned(record.mailbox, epoch), self.registration.entry
        if entry is None:
            raise fenced(mailbox.name, epoch)
        if mailbox.error is not None:
            raise mailbox.error
        wider = self.registration.make(record, entry.epoch, entry.owner, limits, stamp=entry.stamp)
        if record.exclusive and record.agents() - decode_record(entry.record).agents():
            await self.registration.claim(record, wider)
        mailbox.subscriptions = Subscriptions(self._exp_id, record)
        await self.registration.publish(mailbox.name, wider, self.registration.owner)
        return mailbox

    async def _open(self, record: Record, epoch: int, limits: Limits) -> tuple[Mailbox, MailboxSession]:
        name, leased = record.mailbox, limits.leased
        mailbox = self.mailbox = Mailbox(
            self._exp_id,
            self._control,
            record,
            epoch,
            limits.lease_s,
            positions={} if leased else await self.cursors.load(name, epoch),
            cursors=None if leased else self.cursors,
        )
        session = self.session = MailboxSession(
            self._config, self._control, mailbox, self._client_id(name), limits, self._on_emptied
        )
        await session.open()
        return mailbox, session

    def _client_id(self, mailbox: str) -> str:
        return f"rm-{self._exp_id}-{mailbox}"

    # -- our directory entry --------------------------------------------------------------------------------------

    def on_entry(self, name: str, entry: DirectoryEntry | None) -> None:
        """Check whether our mailbox is still ours."""
        mailbox, registration = self.mailbox, self.registration
        if mailbox is None or name != mailbox.name or registration.entry is None:
            return
        if entry is None:
            registration.entry = None  # it was removed, or we were away for longer than our lease
        elif entry.reader != registration.reader and not entry.pending and entry.epoch >= mailbox.epoch:
            self._fence(mailbox)

    def _fence(self, mailbox: Mailbox) -> None:
        """Leave the mailbox and its session to a newer reader."""
        mailbox.stop(fenced(mailbox.name, mailbox.epoch))
        if self.session is not None and self._leaving is None:
            self._leaving = asyncio.create_task(self.session.link.close(), name="ray_messaging mqtt fenced")

    def reconnected(self) -> None:
        """Publish again after a reconnect: our entry if the broker lost it, and confirmations."""
        mailbox, entry = self.mailbox, self.registration.entry
        if mailbox is None or entry is None or mailbox.error is not None or self._removing:
            return
        known = self._directory.entries.get(mailbox.name)
        missing = known is None or not known.seen or known.entry.reader != entry.reader
        rival = self._directory.rival(mailbox.name, decode_record(entry.record)) if missing else None
        if rival is not None:
            logger.error("while we were away, agent %r of %s was taken over by %s", rival[0], mailbox.name, rival[1])
            self.registration.entry = None
            return
        if missing or self._needs_stamp:
            self._publish_soon()
        for sender in mailbox.arrivals.positions():
            mailbox.acks.confirm(sender)

    def _on_emptied(self) -> None:
        if self.registration.entry is not None and not self._removing:
            self._needs_stamp = True
            self._publish_soon()

    def _publish_soon(self) -> None:
        if self._publishing is None or self._publishing.done():
            self._publishing = asyncio.create_task(self._publish_again(), name="ray_messaging mqtt directory entry")

    async def _publish_again(self) -> None:
        mailbox, session, registration = self.mailbox, self.session, self.registration
        try:
            while mailbox is not None and session is not None:
                # Senders publish as soon as they see the entry, so the session must be connected first.
                await session.link.wait_connected(math.inf)
                entry = registration.entry
                if entry is None:
                    return
                if self._needs_stamp:
                    self._needs_stamp = False
                    entry = registration.renewed(entry)
                await registration.publish(mailbox.name, entry, registration.owner)
                if not self._needs_stamp:
                    return
        except MessagingError as error:
            if isinstance(error, Fenced) and mailbox is not None:
                self._fence(mailbox)
            logger.warning("our entry is not in the directory: %s", error)

    def check(self) -> None:
        """Request missing frames, unless they may lie unread in the socket."""
        if self.mailbox is not None and not self.mailbox.full:
            self.mailbox.acks.check()

    # -- leaving --------------------------------------------------------------------------------------------------

    async def remove(self) -> int:
        """Remove our mailbox; its unhandled frames become dead letters. Return their number."""
        mailbox, session = self.mailbox, self.session
        if mailbox is None or session is None:
            return 0
        self._removing = mailbox.ignores_users = True
        if not self._leased:
            await self.cursors.clear(mailbox.name)
        await self.registration.withdraw(mailbox.name)
        await session.stop()
        left = [entry for entry in mailbox.unhandled() if entry.sender]
        await self._bury_all(mailbox, left)
        await session.link.close(end_session=True)
        self.session = None
        return len(left)

    async def _bury_all(self, mailbox: Mailbox, left: Sequence[MailboxEntry]) -> None:
        name, reason, buried = mailbox.name, "the mailbox was removed", 0
        try:
            while buried < len(left):
                some = left[buried : buried + _BURIED_AT_ONCE]
                letters = [
                    self._control.bury(name, f"{mailbox.epoch}-{entry.number}", entry.frame, reason, row=entry.done)
                    for entry in some
                ]
                await asyncio.gather(*letters)
                buried += len(some)
        finally:
            if buried < len(left):
                logger.error(
                    "mailbox %s was removed with %d unhandled frames: up to %d of them are lost, there was no time to "
                    "make dead letters of them",
                    name,
                    len(left),
                    len(left) - buried,
                )

    async def remove_other(self, name: str) -> None:
        """Remove a mailbox that is not ours, and end its session; its reader gets an error."""
        await self.cursors.clear(name)  # before the name can be used again
        await Registration(self._control, self._directory).withdraw(name)
        await end_session(self._config, self._client_id(name))

    async def close(self) -> None:
        """Disconnect; a mailbox that was not left stays for its lease, as if our process had died."""
        if self._publishing is not None:
            self._publishing.cancel()
            await asyncio.gather(self._publishing, return_exceptions=True)
        if self._leaving is not None:
            await self._leaving
        session, self.session = self.session, None
        if session is None:
            return
        if self.registration.owner or (self._leased and self.registration.entry is not None):
            await session.link.abort()  # with its will
        else:
            await session.link.close()
