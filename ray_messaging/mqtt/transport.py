"""The transport over an MQTT 5 broker: mailboxes with a reliable protocol of windows and acks on top."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from ray_messaging.addressing.directory import Record
from ray_messaging.addressing.patterns import Patterns
from ray_messaging.common.task_health import TaskHealth
from ray_messaging.config import MessagingConfig, MqttConfig
from ray_messaging.errors import Closed, ConfigError, MessagingError
from ray_messaging.mqtt.connection import reasons
from ray_messaging.mqtt.connection.control_link import ControlLink
from ray_messaging.mqtt.connection.packets import ENVELOPE_BYTES
from ray_messaging.mqtt.directory.directory import MqttDirectory
from ray_messaging.mqtt.receiving.receiver import MailboxReceiver
from ray_messaging.mqtt.sending.frame_writer import FrameWriter
from ray_messaging.mqtt.sending.mailbox_senders import CHECK_S, MailboxSenders
from ray_messaging.mqtt.sending.separate_log import SeparateLog
from ray_messaging.mqtt.wire.messages import DirectoryEntry
from ray_messaging.mqtt.wire.topics import Filters, Topics
from ray_messaging.observability.observer import Observer
from ray_messaging.transports.cursors import START, Cursor, SelectiveAcks
from ray_messaging.transports.transport import (
    LOG,
    DirectoryDelta,
    FrameFate,
    Ingress,
    Limits,
    Listening,
    MailboxEnd,
    SenderState,
    SendReply,
    SendRequest,
    SendStatus,
    Transport,
    fenced,
)

logger = logging.getLogger(__name__)

_LEAVE_TIMEOUT_S = 2.0  # for receivers that do not answer a sender that closes
_MAX_CLOCK_SKEW_US = 86_400 * 10**6


class MqttTransport:
    """Transport of one experiment on an MQTT 5 broker; `log` is the transport that keeps its event log, if any."""

    transacts = False
    acks_apart = False
    checks_verdicts = False
    forgets = False
    steps = None
    surveys = None
    departures = None
    outbox = None

    def __init__(
        self, config: MqttConfig, exp_id: str, settings: MessagingConfig, *, log: Transport | None = None
    ) -> None:
        self.exp_id = exp_id
        self._config = config
        self.patterns: Patterns = Filters(exp_id)
        self.logs_apart = log is not None
        self._settings = settings
        self._topics = Topics(exp_id)
        self._control = ControlLink(config, self._topics, exp_id, settings.send_timeout_s, self)
        self._directory = MqttDirectory(settings.lease_s, time.monotonic, self._on_entry)
        self._log = None if log is None else SeparateLog(log)
        max_bytes = settings.outbox_bytes + settings.mailbox_bytes
        self._senders = MailboxSenders(self._control, self._directory, max_bytes)
        self._writer = FrameWriter(exp_id, self._control, self._directory, self._senders, self._log)
        self._receiver = MailboxReceiver(config, exp_id, self._control, self._directory)
        self._checking: asyncio.Task[None] | None = None
        self._newest: dict[str, int] = {}  # the newest epoch per sender's name

    # -- the connection -------------------------------------------------------------------------------------------

    @property
    def error(self) -> Exception | None:
        """Return the error that ended the connection for good, or None."""
        return self._control.link.error

    @property
    def largest_frame(self) -> int | None:
        """Return the broker's limit on the bytes of a frame, if it is known."""
        refused = self._senders.sizes.refused
        return self._control.link.maximum_packet if refused is None else refused - 1

    def observe(self, observer: Observer) -> None:
        """Report connections and retries to an observer from now on."""
        self._control.link.observer = observer

    def ask_when_cut(self, ended: Callable[[], Awaitable[Closed | None]]) -> None:
        """Do nothing: no server of ours ends with an experiment."""

    async def connect(self) -> None:
        """Connect and load the retained messages; raise ConnectionFailed, or ServerRefused at once.

        ConnectionFailed comes within 5 s, or within the config's timeout if the broker falls silent afterwards.
        """
        await self._control.link.connect()
        if self._log is not None:
            await self._log.connect()
        if self._checking is None:
            self._checking = asyncio.create_task(self._check(), name="ray_messaging mqtt checks")

    async def close(self) -> None:
        """Disconnect; closing twice does no harm."""
        checking, self._checking = self._checking, None
        if checking is not None:
            checking.cancel()
            await asyncio.gather(checking, return_exceptions=True)
        if self._control.link.connected:
            await self._senders.leave(_LEAVE_TIMEOUT_S)
        await self._receiver.close()
        await self._control.close()
        if self._log is not None:
            await self._log.close()

    async def ping(self) -> None:
        """Publish to nobody and await the broker's answer; raise ConnectionFailed at once without a connection."""
        await self._control.ping()

    def on_connecting(self) -> None:
        """Stop sending until all retained messages have come."""
        self._senders.disconnected()
        self._directory.start_loading()

    async def on_connected(self, *, kept: bool) -> None:
        """Continue after a connect."""
        self._directory.end_loading(kept=kept)
        limit = self._control.link.maximum_packet
        if limit is not None:
            self._directory.limit_frames(max(ENVELOPE_BYTES, limit - ENVELOPE_BYTES))
        self._directory.prove()
        self._receiver.reconnected()
        self._senders.reconnected()

    def on_lost(self, error: MessagingError) -> None:
        """Fail everything: the connection has ended for good."""
        self._senders.fail(error)
        if self._receiver.mailbox is not None:
            self._receiver.mailbox.stop(error)

    def on_message(self, kind: str, name: str, payload: bytes) -> None:
        """Handle a message on one of our own topics."""
        match kind:
            case "sender":
                self._senders.on_signal(payload)
            case "directory":
                self._directory.put(name, payload)
            case "owner":
                self._directory.put_owner(name, payload)
            case "cursor":
                self._receiver.cursors.on_page(name, payload)
            case "epoch":
                self._on_epoch(name, payload)

    async def _check(self) -> None:
        """Run the periodic checks for changes without an event."""
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                self._directory.expire()
                self._senders.check()
                self._receiver.check()
                if self._directory.unproven:
                    await self._control.place_marker()
                    self._directory.prove()
            except MessagingError as error:
                logger.debug("the MQTT broker is away: %s", error)
            except Exception:
                logger.exception("the MQTT transport's checks failed: please report this")

    # -- the directory --------------------------------------------------------------------------------------------

    def _on_entry(self, mailbox: str, entry: DirectoryEntry | None) -> None:
        self._senders.on_entry(mailbox, entry)
        self._receiver.on_entry(mailbox, entry)

    async def set_schema(self, subtopic: str, schema: bytes | None) -> None:  # noqa: ARG002 - a Transport's
        """Raise ConfigError: retained entries of the directory are those of mailboxes."""
        raise ConfigError(f"subtopic {subtopic!r} cannot have a schema on MQTT: experiments with schemas need Redis")

    async def set_audience(
        self,
        name: str,
        version: int,  # noqa: ARG002 - a Transport's
        facts: str,  # noqa: ARG002 - a Transport's
        since: int | None = None,  # noqa: ARG002 - a Transport's
    ) -> int | None:
        """Raise ConfigError: retained entries of the directory are those of mailboxes."""
        raise ConfigError(f"audience {name!r} cannot be made on MQTT: experiments with audiences need Redis")

    async def load_directory(self, since: int) -> DirectoryDelta:
        """Return the changes since a version; mailboxes with an expired lease are removed first."""
        await self._control.retry(self._control.barrier)
        directory = self._directory
        directory.expire()
        changed, mailboxes = directory.changed(since), list(directory.entries)
        return DirectoryDelta(directory.version, changed, mailboxes, logged=self.logs_apart)

    async def listen(
        self,
        record: Record,
        version: int,
        limits: Limits,
        *,
        owner: str,
        epoch: int | None,
        over: str = "",  # noqa: ARG002 - a Transport's
    ) -> Listening | None:
        """Take a mailbox or widen its record, if the directory is still at `version`; None: it is not."""
        await self._control.wait_connected()
        if self._directory.version != max(version, 0):
            return None
        if epoch is None:
            mailbox = await self._receiver.take(record, limits, owner)
        else:
            mailbox = await self._receiver.widen(record, limits, epoch)
        return Listening(self._directory.version, mailbox.epoch, START)

    async def renew(self, sender: str, mailbox: str | None, epoch: int, *, lease_s: float, keep_s: float) -> bool:  # noqa: ARG002 - a Transport's
        """Return whether the mailbox is still ours; raise Fenced if a newer reader holds it.

        The connection itself is the lease: after a cut of that length the broker ends the session and publishes our
        will.
        """
        if mailbox is None:
            return True
        ours = self._receiver.owned(mailbox, epoch)
        if ours.error is not None:
            raise ours.error
        if self._receiver.registration.entry is None:
            return False
        if lease_s < self._settings.lease_s:  # a reader that leaves shortens its lease
            await self._receiver.registration.release(mailbox)
        elif not self._control.link.connected:
            raise reasons.cut(self._config, f"{mailbox!r} stays for its lease")
        return True

    async def leases(self, mailboxes: Collection[str]) -> dict[str, str]:  # noqa: ARG002 - a Transport's
        """Return nothing: the broker ends the sessions of dead readers."""
        return {}

    async def end_leases(self, over: Mapping[str, str]) -> None:
        """Do nothing, as above."""

    async def remove(self, mailbox: str, epoch: int | None) -> int:
        """Remove a mailbox; unread frames of our own become dead letters. Return the number of these frames."""
        ours = self._receiver.mailbox
        if ours is not None and ours.name == mailbox:
            if epoch is not None and ours.epoch != epoch:
                raise fenced(mailbox, epoch)
            if ours.error is not None and epoch is not None:
                raise ours.error
            return await self._receiver.remove()
        await self._control.wait_connected()
        if epoch is not None and mailbox in self._directory.entries:
            raise fenced(mailbox, epoch)
        await self._receiver.remove_other(mailbox)
        return 0

    # -- sending --------------------------------------------------------------------------------------------------

    async def take_sender_epoch(self, sender: str, *, keep_s: float, held: int | None = None) -> SenderState:  # noqa: ARG002 - an MQTT broker ends a taken session
        """Take a new epoch of a sender's name, which fences older senders.

        A transport takes one epoch. A second call drops the frames that the broker has not confirmed.
        """
        if not self._senders.epoch:
            await self._begin(sender, named=keep_s == 0)
        self._senders.abandon()
        last = dict(self._senders.written)
        if self._log is not None:
            last[LOG] = (await self._log.begin(sender, keep_s=keep_s)).get(LOG, 0)
        return SenderState(self._senders.epoch, last, self._writer.takers)

    async def forget(self, sender: str, epoch: int, mailboxes: Sequence[str]) -> None:
        """Do nothing: a broker keeps only a sender's epoch."""

    async def leave(self, sender: str, epoch: int, *, keep_s: float) -> None:
        """Do nothing, as above."""

    async def _begin(self, sender: str, *, named: bool) -> None:
        topic = self._topics.epoch(sender)
        self._senders.sender = sender
        await self._control.subscribe([self._topics.sender(sender), topic])
        await self._control.retry(self._control.barrier)
        epoch = max(time.time_ns() // 1000, self._newest.get(sender, 0) + 1)
        if named:
            await self._control.retain((topic, b"%d" % epoch))
        self._senders.epoch = epoch

    def _on_epoch(self, sender: str, payload: bytes) -> None:
        # An epoch is the time of its start. One in the far future would leave no room for a later epoch.
        if payload.isdigit() and len(payload) < 20 and int(payload) < time.time_ns() // 1000 + _MAX_CLOCK_SKEW_US:
            self._newest[sender] = max(self._newest.get(sender, 0), int(payload))
        elif payload:
            logger.warning("the epoch of sender %s is ignored: %r", sender, payload[:40])

    async def send(self, request: SendRequest) -> SendReply:
        """Publish frames and await the broker's confirmation."""
        await self._control.wait_connected()
        if request.epoch != self._senders.epoch or self._is_fenced(request):
            return SendReply(SendStatus.FENCED)
        try:
            reply = await self._writer.send(request)
        except Closed as error:
            raise reasons.cut(self._config, str(error)) from error
        if self._is_fenced(request):  # receivers may have ignored frames that the broker took
            return SendReply(SendStatus.FENCED, repeated=True)
        return reply

    def _is_fenced(self, request: SendRequest) -> bool:
        return self._newest.get(request.sender, 0) > request.epoch

    async def waiting(self) -> dict[str, int]:
        """Return the number of our unconfirmed messages per mailbox."""
        return self._senders.waiting

    async def still_full(self, mailbox: str, rows: int, nbytes: int) -> FrameFate | None:  # noqa: ARG002 - see below
        """Return None: only `send` can tell."""
        return None

    # -- receiving ------------------------------------------------------------------------------------------------

    async def read(self, mailbox: str, after: str, count: int, block_s: float) -> list[tuple[str, bytes]]:
        """Return up to `count` frames after an entry; wait for the first up to `block_s`."""
        ours = self._receiver.mailbox
        if ours is None or ours.name != mailbox:
            raise fenced(mailbox, 0)  # only its reader can read a mailbox
        return await ours.read(after, count, block_s)

    async def end_of(self, mailbox: str) -> MailboxEnd:
        """Raise ConfigError: a broker does not tell how much waits in a mailbox."""
        raise ConfigError(
            f"an MQTT broker does not tell how much waits in {mailbox!r}: complete=True needs Redis or Valkey. Fetch "
            "with a timeout until all expected messages have come"
        )

    async def commit(
        self,
        mailbox: str,
        epoch: int,
        cursor: Cursor,
        *,
        messages: int,  # noqa: ARG002 - a Transport's
        nbytes: int,  # noqa: ARG002 - a Transport's
        acks: SelectiveAcks | None = None,  # noqa: ARG002 - never any, see `acks_apart`
    ) -> None:
        """Mark all frames up to a cursor as handled, and confirm them to their senders."""
        await self._receiver.owned(mailbox, epoch).commit(cursor)

    async def bury(self, mailbox: str, entry: str, frame: bytes, reason: str, *, row: int | None = None) -> None:  # noqa: ARG002 - a Transport's
        """Publish an unreadable frame, or a message whose handler has failed, as a dead letter."""
        await self._control.bury(mailbox, entry, frame, reason)

    async def set_service(self, mailbox: str, epoch: int, note: bytes) -> None:
        """Do nothing: a broker keeps no notes on services."""

    async def services(self, mailboxes: Collection[str]) -> dict[str, bytes]:  # noqa: ARG002 - a Transport's
        """Return nothing, as above."""
        return {}

    async def subscribe(self, channels: Collection[str], globs: Sequence[str], sink: Callable[[Ingress], None]) -> None:  # noqa: ARG002 - a Transport's
        """Subscribe to the topics of users; their messages wait in our mailbox as all others do."""
        if self._receiver.session is not None:
            await self._receiver.session.subscribe()

    async def unsubscribe(self, channels: Collection[str] | None = None) -> None:  # noqa: ARG002 - a Transport's
        """Stop listening to foreign clients: on all channels, as no agent leaves its mailbox here."""
        if self._receiver.mailbox is not None:
            self._receiver.mailbox.ignores_users = True

    def loops(self) -> list[TaskHealth]:
        """Return nothing: no task of its own is watched."""
        return []
