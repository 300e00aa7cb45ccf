"""Mailboxes over an MQTT 5 broker: a pipe with memory, with a small reliable protocol on top."""

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
from ray_messaging.mqtt.directory.control import Control
from ray_messaging.mqtt.directory.registry import Registry
from ray_messaging.mqtt.log_store import SeparateLog
from ray_messaging.mqtt.receiving.listener import Listener
from ray_messaging.mqtt.receiving.mailbox import fenced
from ray_messaging.mqtt.sending.frame_writer import FrameWriter
from ray_messaging.mqtt.sending.senders import LOOK_S, Senders
from ray_messaging.mqtt.wire.signals import Card
from ray_messaging.mqtt.wire.topics import Filters, Topics
from ray_messaging.transports.base import (
    LOG,
    START,
    Cursor,
    DirectoryDelta,
    FrameFate,
    Ingress,
    Limits,
    Listening,
    MailboxEnd,
    SelectiveAcks,
    SenderState,
    SendReply,
    SendRequest,
    SendStatus,
    Transport,
)

logger = logging.getLogger(__name__)

_ENVELOPE_BYTES = 1024  # what comes round a frame: topic, head, envelope
_LEAVE_S = 2.0  # what a closing sender gives to receivers that do not answer
_EPOCH_STEP = 1
_CLOCKS_APART_US = 86_400 * 10**6  # at most


class MqttTransport:
    """Keep the mailboxes of one experiment on an MQTT 5 broker; `log` keeps its event log, where there is one."""

    transacts = False
    acks_apart = False
    checks_verdicts = False
    forgets = False

    def __init__(
        self, config: MqttConfig, exp_id: str, settings: MessagingConfig, *, log: Transport | None = None
    ) -> None:
        self.exp_id = exp_id
        self._config = config
        self.patterns: Patterns = Filters(exp_id)
        self.logs_apart = log is not None
        self._settings = settings
        self._topics = Topics(exp_id)
        self._control = Control(config, self._topics, exp_id, settings.send_timeout_s)
        self._registry = Registry(settings.lease_s, time.monotonic, self._on_card)
        self._companion = None if log is None else SeparateLog(log)
        self._senders = Senders(self._control, self._registry, settings.outbox_bytes + settings.mailbox_bytes)
        self._outlet = FrameWriter(exp_id, self._control, self._registry, self._senders, self._companion)
        self._listener = Listener(config, exp_id, self._control, self._registry)
        self._looking: asyncio.Task[None] | None = None
        self._newest: dict[str, int] = {}  # incarnations of our name
        self._wire()

    def _wire(self) -> None:
        control = self._control
        control.began, control.ended, control.lost = self._began, self._connected, self._lost
        control.handlers = {
            "directory": lambda name, payload, _: self._registry.take(name, payload),
            "owner": lambda name, payload, _: self._registry.own(name, payload),
            "sender": self._senders.on_signal,
            "epoch": self._on_epoch,
            "cursor": self._listener.cursors.on_cursor,
        }

    # -- the connection -------------------------------------------------------------------------------------------

    @property
    def error(self) -> Exception | None:
        """Return why the connection has ended for good; None: it has not."""
        return self._control.link.error

    @property
    def largest_frame(self) -> int | None:
        """Return how many bytes of a frame the broker takes, as far as is known."""
        told, refused = self._control.link.maximum_packet, self._senders.proof.refused
        return told if refused is None else refused - 1

    def ask_when_cut(self, ended: Callable[[], Awaitable[Closed | None]]) -> None:
        """Do nothing: no server of ours ends with an experiment."""

    async def connect(self) -> None:
        """Reach the broker; raise ConnectionFailed (within 5 s where none is there), ServerRefused at once."""
        await self._control.connect()
        if self._companion is not None:
            await self._companion.connect()
        if self._looking is None:
            self._looking = asyncio.create_task(self._look(), name="ray_messaging mqtt look-out")

    async def close(self) -> None:
        """Let the connections go; closing twice does no harm."""
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
        if self._control.link.connected:
            await self._senders.take_leave(_LEAVE_S)
        await self._listener.close()
        await self._control.close()
        if self._companion is not None:
            await self._companion.close()

    async def ping(self) -> None:
        """Publish to nobody and wait for the broker's answer; raise ConnectionFailed at once where it is not there."""
        await self._control.ping()

    def _began(self) -> None:
        self._senders.cut()
        self._registry.begin()

    async def _connected(self, kept: bool) -> None:  # noqa: FBT001 - a callback
        self._registry.end(kept=kept)
        limit = self._control.link.maximum_packet
        if limit is not None:
            self._registry.limit(max(_ENVELOPE_BYTES, limit - _ENVELOPE_BYTES))
        self._registry.prove()
        self._listener.reconnected()
        self._senders.reconnected()

    def _lost(self, error: Exception) -> None:
        self._senders.fail(error)
        if self._listener.mailbox is not None:
            self._listener.mailbox.stop(error if isinstance(error, MessagingError) else MessagingError(str(error)))

    async def _look(self) -> None:
        """Look again and again for what nobody else would notice."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                self._registry.expire()
                self._senders.look()
                self._listener.look()
                if self._registry.unproven:
                    await self._control.place_marker()
                    self._registry.prove()
            except MessagingError as error:
                logger.debug("the MQTT broker is away: %s", error)
            except Exception:
                logger.exception("the MQTT transport's look-out failed: please report this")

    # -- the directory --------------------------------------------------------------------------------------------

    def _on_card(self, mailbox: str, card: Card | None) -> None:
        self._senders.on_card(mailbox, card)
        self._listener.on_card(mailbox, card)

    async def load_directory(self, since: int) -> DirectoryDelta:
        """Return what changed since a version; mailboxes whose lease has expired are taken out first."""
        await self._control.insist(self._control.barrier)
        registry = self._registry
        registry.expire()
        return DirectoryDelta(registry.version, registry.changed(since), list(registry.entries), logged=self.logs_apart)

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
        """Enter a record in the directory if it is still at `version`, and take the mailbox; None: it is not."""
        await self._control.ready()
        if self._registry.version != max(version, 0):
            return None
        mailbox = self._listener.mailbox
        if epoch is None:
            mailbox = await self._listener.take(record, limits, owner)
        elif mailbox is None or mailbox.name != record.mailbox or mailbox.epoch != epoch:
            raise fenced(record.mailbox, epoch)
        else:
            await self._listener.widen(record, limits)
        return Listening(self._registry.version, mailbox.epoch, START)

    async def renew(self, sender: str, mailbox: str | None, epoch: int, *, lease_s: float, keep_s: float) -> bool:  # noqa: ARG002 - a Transport's
        """Tell whether the mailbox is still ours; raise Fenced if a newer reader holds it.

        The connection itself is the lease: the broker ends the session, and publishes our will, when it has been cut
        for that long.
        """
        if mailbox is None:
            return True
        ours = self._listener.mailbox
        if ours is None or ours.epoch != epoch:
            raise fenced(mailbox, epoch)
        if ours.error is not None:
            raise ours.error
        if not self._listener.there:
            return False
        if lease_s < self._settings.lease_s:  # who leaves shortens it
            await self._listener.claims.release(mailbox)
        elif not self._control.link.connected:
            raise reasons.cut(self._config, f"{mailbox!r} stays for its lease")
        return True

    async def leases(self, mailboxes: Collection[str]) -> dict[str, str]:  # noqa: ARG002 - a Transport's
        """Return nothing: the broker ends the sessions of those that are gone."""
        return {}

    async def end_leases(self, over: Mapping[str, str]) -> None:
        """Do nothing, as above."""

    async def remove(self, mailbox: str, epoch: int | None) -> int:
        """Take a mailbox out of the directory; what is unread of ours becomes dead letters. Returns their frames."""
        ours = self._listener.mailbox
        if ours is not None and ours.name == mailbox:
            if epoch is not None and ours.epoch != epoch:
                raise fenced(mailbox, epoch)
            if ours.error is not None and epoch is not None:
                raise ours.error
            return await self._listener.remove()
        await self._control.ready()
        if epoch is not None and mailbox in self._registry.entries:
            raise fenced(mailbox, epoch)
        await self._listener.remove_other(mailbox)
        return 0

    # -- sending --------------------------------------------------------------------------------------------------

    async def take_sender_epoch(self, sender: str, *, keep_s: float, held: int | None = None) -> SenderState:  # noqa: ARG002 - the broker ends a session that is taken over
        """Take an incarnation of a sender's name, which fences whoever sent under it before.

        One transport keeps its epoch. What the broker has not confirmed when it is called again is let go of.
        """
        if not self._senders.epoch:
            await self._begin(sender, named=keep_s == 0)
        self._senders.abandon()
        last = dict(self._senders.written)
        if self._companion is not None:
            kept = await self._companion.begin(sender, keep_s=keep_s)
            last[LOG] = kept.get(LOG, 0)
        return SenderState(self._senders.epoch, last, self._outlet.takers)

    async def forget(self, sender: str, epoch: int, mailboxes: Sequence[str]) -> None:
        """Do nothing: a broker keeps a sender's epoch and no more."""

    async def leave(self, sender: str, epoch: int, *, keep_s: float) -> None:
        """Do nothing, as above."""

    async def _begin(self, sender: str, *, named: bool) -> None:
        topic = self._topics.epoch(sender)
        self._senders.sender = sender
        await self._control.listen([self._topics.sender(sender), topic])
        await self._control.insist(self._control.barrier)
        epoch = max(time.time_ns() // 1000, self._newest.get(sender, 0) + _EPOCH_STEP)
        if named:
            await self._control.insist_say((topic, b"%d" % epoch))
        self._senders.begin(sender, epoch)

    def _on_epoch(self, sender: str, payload: bytes, _retained: bool) -> None:  # noqa: FBT001 - a handler
        # An incarnation is the time of its start; above one that no clock can have told there is room for no other.
        if payload.isdigit() and len(payload) < 20 and int(payload) < time.time_ns() // 1000 + _CLOCKS_APART_US:
            self._newest[sender] = max(self._newest.get(sender, 0), int(payload))
        elif payload:
            logger.warning("the epoch of sender %s is passed over: %r", sender, payload[:40])

    async def send(self, request: SendRequest) -> SendReply:
        """Publish frames, and wait until the broker has them."""
        await self._control.ready()
        if request.epoch != self._senders.epoch or self._newest.get(request.sender, 0) > request.epoch:
            return SendReply(SendStatus.FENCED)
        try:
            reply = await self._outlet.send(request)
        except Closed as error:
            raise reasons.cut(self._config, str(error)) from error
        if self._newest.get(request.sender, 0) > request.epoch:  # receivers may have passed over what the broker took
            return SendReply(SendStatus.FENCED, repeated=True)
        return reply

    async def waiting(self) -> dict[str, int]:
        """Return the messages of ours that wait for each mailbox's reader."""
        return self._senders.waiting

    async def still_full(self, mailbox: str, rows: int, nbytes: int) -> FrameFate | None:  # noqa: ARG002 - see below
        """Leave it to `send`: a broker says nothing before."""
        return None

    # -- receiving ------------------------------------------------------------------------------------------------

    async def read(self, mailbox: str, after: str, count: int, block_s: float) -> list[tuple[str, bytes]]:
        """Return up to `count` frames after an entry; wait for the first up to `block_s`."""
        ours = self._listener.mailbox
        if ours is None or ours.name != mailbox:
            raise fenced(mailbox, 0)  # nobody but its reader can look into a mailbox
        return await ours.read(after, count, block_s)

    async def end_of(self, mailbox: str) -> MailboxEnd:
        """Say that a broker does not tell what waits in a mailbox."""
        raise ConfigError(
            f"an MQTT broker does not tell what waits in {mailbox!r}: complete=True needs Redis or Valkey. Fetch with "
            "a timeout until what you expect has come"
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
        """Note that all up to a cursor is handled, and tell its senders."""
        ours = self._listener.mailbox
        if ours is None or ours.name != mailbox or ours.epoch != epoch:
            raise fenced(mailbox, epoch)
        await self._listener.commit(cursor)

    async def bury(self, mailbox: str, entry: str, frame: bytes, reason: str) -> None:
        """Publish a frame that cannot be read as a dead letter."""
        await self._control.bury(mailbox, entry, frame, reason)

    async def subscribe(self, channels: Collection[str], globs: Sequence[str], sink: Callable[[Ingress], None]) -> None:  # noqa: ARG002 - a Transport's
        """Have what foreign clients publish come into our mailbox, where it waits as all else does."""
        await self._listener.subscribe()

    async def unsubscribe(self) -> None:
        """Take nothing more from foreign clients; it waits for our successor, if one may come."""
        if self._listener.mailbox is not None:
            self._listener.mailbox.deaf = True

    def loops(self) -> list[TaskHealth]:
        """Return nothing: no task of its own is watched."""
        return []
