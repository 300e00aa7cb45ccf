"""The senders to all mailboxes under one sender's name and epoch."""

import asyncio
import logging
import math

from ray_messaging.errors import FrameError
from ray_messaging.mqtt.connection import reasons
from ray_messaging.mqtt.connection.control_link import ControlLink
from ray_messaging.mqtt.connection.reasons import Reason
from ray_messaging.mqtt.directory.directory import MqttDirectory
from ray_messaging.mqtt.sending.mailbox_sender import FrameSizes, MailboxSender
from ray_messaging.mqtt.sending.window import Window
from ray_messaging.mqtt.wire.messages import DirectoryEntry, SignalKind, decode_signal, encode_data
from ray_messaging.transports.transport import FrameFate, FrameWrite

logger = logging.getLogger(__name__)

CHECK_S = 2.0
_MAX_DOUBLINGS = 5  # of it
_MIN_FRAME = 1024
_MANY = 100  # frames that a broker's queue may not hold: they keep 1,000 by default
_LEAVE_PROBES = 20
_SHRINK = 4  # each attempt may cost a connection


class MailboxSenders:
    """A `MailboxSender` per mailbox; all windows together hold at most `max_bytes`."""

    def __init__(self, control: ControlLink, directory: MqttDirectory, max_bytes: int) -> None:
        self.sender = ""
        self.epoch = 0
        self.written: dict[str, int] = {}  # the last seq written per mailbox, as the caller counts
        self.sizes = FrameSizes()
        self._control = control
        self._directory = directory
        self._max_bytes = max_bytes
        self._senders: dict[str, MailboxSender] = {}
        self._last: dict[str, int] = {}  # of removed mailboxes: their windows continue to count
        self._held = 0  # bytes in all windows, as of the current call

    @property
    def waiting(self) -> dict[str, int]:
        """Return the messages in each window."""
        return {mailbox: sender.window.messages for mailbox, sender in self._senders.items()}

    # -- sending --------------------------------------------------------------------------------------------------

    def offer(self, part: FrameWrite) -> "FrameFate | asyncio.Future[int]":
        """Publish a frame; return its fate, or a future with the broker's code."""
        known = self._directory.entries.get(part.mailbox)
        if known is None:
            return FrameFate.GONE
        nbytes = len(part.frame)
        if nbytes > known.entry.nbytes or self.sizes.refuses(nbytes):
            return self._too_large(part)
        sender = self._sender(part.mailbox, known.entry)
        if sender.stalled:
            gone = sender.refusal == Reason.NO_MATCHING_SUBSCRIBERS
            return self._absent(part.mailbox) if gone else FrameFate.FULL
        if not sender.window.fits(part.rows, nbytes) or (self._held and self._held + nbytes > self._max_bytes):
            return FrameFate.FULL
        self._held += nbytes
        return sender.offer(part.frame, part.rows)

    def is_written(self, part: FrameWrite) -> bool:
        """Return whether an earlier call has written a frame."""
        return part.seq <= self.written.get(part.mailbox, 0)

    def count_held(self) -> None:
        """Count the bytes in all windows, once per call."""
        self._held = sum(sender.window.nbytes for sender in self._senders.values())

    def _sender(self, mailbox: str, entry: DirectoryEntry) -> MailboxSender:
        sender = self._senders.get(mailbox)
        if sender is None:
            window = Window(self.sender, self.epoch, entry.messages, entry.nbytes, last=self._last.pop(mailbox, 0))
            topic = self._control.topics.mailbox(mailbox)
            sender = self._senders[mailbox] = MailboxSender(window, self._control, topic, self.sizes, entry.stamp)
        return sender

    def fate_of(self, part: FrameWrite, code: int) -> FrameFate:
        """Return a frame's fate by the broker's code; raise ServerRefused if we may not publish."""
        if code == Reason.SUCCESS:
            self.written[part.mailbox] = part.seq
            return FrameFate.WRITTEN
        if code == Reason.NO_MATCHING_SUBSCRIBERS:
            return self._absent(part.mailbox)
        if code == Reason.PACKET_TOO_LARGE:
            self.sizes.refuse(len(part.frame))
            return self._too_large(part)
        if code in reasons.NOT_PERMITTED:
            raise self._control.refused(self._control.topics.mailbox(part.mailbox), code)
        return FrameFate.FULL  # a quota or an unknown reason: it is tried again

    def _too_large(self, part: FrameWrite) -> FrameFate:
        """Have larger frames split, if this one holds more than one message."""
        if part.rows > 1:
            self._directory.limit_frames(max(_MIN_FRAME, self.sizes.accepted, len(part.frame) // _SHRINK))
        return FrameFate.TOO_LARGE

    def _absent(self, mailbox: str) -> FrameFate:
        """Return the fate of a frame for a mailbox without a subscriber: FULL if it may come back."""
        if self._directory.returning(mailbox, self._control.connected_at):
            return FrameFate.FULL
        self._directory.forget(mailbox)  # its window is kept for a lease: it may come back with another entry
        return FrameFate.GONE

    def abandon(self) -> None:
        """Drop the frames that the broker has not confirmed."""
        for sender in self._senders.values():
            sender.abandon()

    # -- events ---------------------------------------------------------------------------------------------------

    def on_entry(self, mailbox: str, entry: DirectoryEntry | None) -> None:
        """Handle a new directory entry, or its removal."""
        sender = self._senders.get(mailbox)
        if sender is None:
            return
        if entry is None:
            self._drop(mailbox)
        elif not entry.pending:
            sender.window.max_messages, sender.window.max_bytes = entry.messages, entry.nbytes
            if sender.stalled or sender.stamp != entry.stamp:
                sender.stamp = entry.stamp
                sender.send_again()

    def _drop(self, mailbox: str) -> None:
        sender = self._senders.pop(mailbox)
        if sender.window.messages and mailbox != self.sender:  # our own mailbox may be closed on purpose
            logger.warning("mailbox %s is gone: it had not handled %d of our messages", mailbox, sender.window.messages)
        self._last[mailbox] = sender.window.last
        sender.end(Reason.NO_MATCHING_SUBSCRIBERS)

    def on_signal(self, payload: bytes) -> None:
        """Handle a receiver's signal."""
        try:
            signal = decode_signal(payload)
        except FrameError as error:
            logger.warning("a signal to %s is ignored: %s", self.sender, error)
            return
        sender = self._senders.get(signal.mailbox)
        if signal.epoch < self.epoch and signal.kind == SignalKind.RESEND:
            self._announce_epoch(signal.mailbox)
        if sender is None or signal.epoch != self.epoch:
            return
        if signal.kind == SignalKind.CONFIRM:
            sender.confirm(signal.seq)
        elif signal.kind == SignalKind.HELD:
            sender.held = max(sender.held, signal.seq)
        else:
            logger.info("mailbox %s lacks our frames from %d on: sent again", signal.mailbox, signal.seq)
            sender.resend(signal.seq)

    def _announce_epoch(self, mailbox: str) -> None:
        """Tell a receiver that our predecessor is gone, with the frames that it lacks of it."""
        sender = self._senders.get(mailbox)
        last = self._last.get(mailbox, 0)
        window = Window(self.sender, self.epoch, 1, 1, last=last) if sender is None else sender.window
        self._control.try_publish(self._control.topics.mailbox(mailbox), encode_data(window.probe()))

    def disconnected(self) -> None:
        """Wait for a new connection."""
        for sender in self._senders.values():
            sender.disconnected()

    def reconnected(self) -> None:
        """Continue over a new connection."""
        for sender in self._senders.values():
            sender.reconnected()

    def check(self) -> None:
        """Probe the receivers that do not move: no later frame reveals that the last one is lost."""
        for mailbox, sender in list(self._senders.items()):
            if mailbox not in self._directory.entries:
                sender.absent_checks += 1
                if sender.absent_checks * CHECK_S > self._directory.lease_s:
                    self._drop(mailbox)
                continue
            sender.absent_checks = 0
            if sender.moved or not len(sender.window):
                sender.moved, sender.idle_checks = False, 0
                continue
            sender.idle_checks += 1
            checks = sender.idle_checks
            if sender.stalled:
                sender.send_again()
            elif checks & (checks - 1) == 0 or checks % 2**_MAX_DOUBLINGS == 0:  # with doubling pauses
                sender.probe(int(CHECK_S * 2**_MAX_DOUBLINGS))

    async def leave(self, timeout_s: float) -> None:
        """Probe the receivers of long windows before we go; log the frames that stay unanswered.

        The broker may have dropped frames above its limits, and nobody will send them again.
        """
        left = {mailbox: sender for mailbox, sender in self._senders.items() if sender.unheld >= _MANY}
        for _ in range(_LEAVE_PROBES):
            for sender in left.values():
                sender.probe(math.ceil(timeout_s))
            if left:
                await asyncio.sleep(timeout_s / _LEAVE_PROBES)
            left = {mailbox: sender for mailbox, sender in left.items() if sender.unheld}
        for mailbox, sender in left.items():
            logger.warning(
                "mailbox %s did not say that it has the last %d frames from %s: they are with the broker alone, which "
                "keeps them if its limits allow (Mosquitto: max_queued_messages 0)",
                mailbox,
                sender.unheld,
                self.sender,
            )

    def fail(self, error: Exception) -> None:
        """Fail all waiting calls: the connection has ended for good."""
        for sender in self._senders.values():
            sender.end(0, error)
