"""The sending side: a way to each mailbox, and what its receiver answers."""

import asyncio
import logging
import math
from collections.abc import Callable

from ray_messaging.errors import FrameError
from ray_messaging.mqtt.connection.reasons import Reason
from ray_messaging.mqtt.directory.control import Control
from ray_messaging.mqtt.directory.registry import Registry
from ray_messaging.mqtt.sending.mailbox_sender import MailboxSender, Proof
from ray_messaging.mqtt.sending.window import Window
from ray_messaging.mqtt.wire.signals import Card, SignalKind, decode_signal, encode_data
from ray_messaging.transports.base import FrameFate, FrameWrite

logger = logging.getLogger(__name__)

LOOK_S = 2.0
_LONGEST_LOOK = 5  # doublings of it
_SMALLEST_FRAME = 1024
_MANY = 100  # frames, that a broker's queue may not hold: they keep 1,000 by default
_ASKED = 20  # times
_SMALLER = 4  # times, as each attempt may cost a connection
_REFUSALS = {Reason.NOT_AUTHORIZED, Reason.BAD_TOPIC}


class Senders:
    """Keep the ways to all mailboxes under one sender's name and epoch; all windows together hold `most_bytes`."""

    def __init__(self, control: Control, registry: Registry, most_bytes: int) -> None:
        self.sender = ""
        self.epoch = 0
        self.written: dict[str, int] = {}  # the last seq of each mailbox that was written, as the shipper counts
        self._control = control
        self._registry = registry
        self._most_bytes = most_bytes
        self._ways: dict[str, MailboxSender] = {}
        self._last: dict[str, int] = {}  # of mailboxes that are gone: their windows go on counting
        self.proof = Proof()
        self._held = 0  # bytes in all windows, as of the call that is under way

    def begin(self, sender: str, epoch: int) -> None:
        """Take a name and an epoch."""
        self.sender, self.epoch = sender, epoch

    @property
    def waiting(self) -> dict[str, int]:
        """Return the messages in each window."""
        return {mailbox: way.window.messages for mailbox, way in self._ways.items()}

    # -- sending --------------------------------------------------------------------------------------------------

    def offer(self, part: FrameWrite) -> "FrameFate | asyncio.Future[int]":
        """Put a frame on its way; return what became of it, or a future with the broker's code."""
        entry = self._registry.entries.get(part.mailbox)
        if entry is None:
            return FrameFate.GONE
        last = self.written.get(part.mailbox, 0)
        if part.seq <= last:
            return FrameFate.DUPLICATE
        if len(part.frame) > entry.card.nbytes or self.proof.refuses(len(part.frame)):
            return self._too_large(part)
        way = self._way(part.mailbox, entry.card)
        if way.stalled:
            gone = way.refusal == Reason.NO_MATCHING_SUBSCRIBERS
            return self._absent(part.mailbox) if gone else FrameFate.FULL
        nbytes = len(part.frame)
        if not way.window.fits(part.rows, nbytes) or (self._held and self._held + nbytes > self._most_bytes):
            return FrameFate.FULL
        self._held += nbytes
        return way.offer(part.frame, part.rows)

    def weigh(self) -> None:
        """Count anew what all windows hold."""
        self._held = sum(way.window.nbytes for way in self._ways.values())

    def _way(self, mailbox: str, card: Card) -> MailboxSender:
        way = self._ways.get(mailbox)
        if way is None:
            topic = self._control.topics.mailbox(mailbox)
            window = Window(self.sender, self.epoch, card.messages, card.nbytes, last=self._last.pop(mailbox, 0))
            way = self._ways[mailbox] = MailboxSender(window, _publisher(self._control, topic), self.proof)
            way.stamp = card.stamp
        return way

    def settle(self, part: FrameWrite, code: int) -> FrameFate:
        """Return what became of a frame by the broker's code; raise ServerRefused where we may not publish."""
        if code == Reason.SUCCESS:
            self.written[part.mailbox] = part.seq
            return FrameFate.WRITTEN
        if code == Reason.NO_MATCHING_SUBSCRIBERS:
            return self._absent(part.mailbox)
        if code == Reason.PACKET_TOO_LARGE:
            self.proof.refuse(len(part.frame))
            return self._too_large(part)
        if code in _REFUSALS:
            raise self._control.refused(self._control.topics.mailbox(part.mailbox), code)
        return FrameFate.FULL  # a quota, or what the broker does not name: it is tried again

    def _too_large(self, part: FrameWrite) -> FrameFate:
        """Have frames cut smaller that hold more than one message."""
        if part.rows > 1:
            self._registry.limit(max(_SMALLEST_FRAME, self.proof.nbytes, len(part.frame) // _SMALLER))
        return FrameFate.TOO_LARGE

    def _absent(self, mailbox: str) -> FrameFate:
        """Nobody listens: say whether the mailbox may come back."""
        if self._registry.returning(mailbox, self._control.connected_at):
            return FrameFate.FULL
        self._registry.forget(mailbox)  # its window is kept for a lease: it may come back with another card
        return FrameFate.GONE

    def abandon(self) -> None:
        """Let go of what the broker did not confirm."""
        for way in self._ways.values():
            way.abandon()

    # -- what is heard --------------------------------------------------------------------------------------------

    def on_card(self, mailbox: str, card: Card | None) -> None:
        """Follow what becomes of a mailbox."""
        way = self._ways.get(mailbox)
        if way is None:
            return
        if card is None:
            self._drop(mailbox)
        elif not card.pending:
            way.window.max_messages, way.window.max_bytes = card.messages, card.nbytes
            if way.stalled or way.stamp != card.stamp:
                way.stamp = card.stamp
                way.again()

    def _drop(self, mailbox: str) -> None:
        way = self._ways.pop(mailbox, None)
        if way is None:
            return
        if way.window.messages and mailbox != self.sender:  # who leaves knows what it leaves
            logger.warning("mailbox %s is gone: it had not handled %d of our messages", mailbox, way.window.messages)
        self._last[mailbox] = way.window.last
        way.end(Reason.NO_MATCHING_SUBSCRIBERS)

    def on_signal(self, _sender: str, payload: bytes, _retained: bool) -> None:  # noqa: FBT001 - a handler
        """Take what a receiver tells us."""
        try:
            signal = decode_signal(payload)
        except FrameError as error:
            logger.warning("a signal to %s is passed over: %s", self.sender, error)
            return
        way = self._ways.get(signal.mailbox)
        if signal.epoch < self.epoch and signal.kind is SignalKind.RESEND:
            self._say_newer(signal.mailbox)
        if way is None or signal.epoch != self.epoch:
            return
        if signal.kind is SignalKind.CONFIRM:
            way.confirm(signal.seq)
        elif signal.kind is SignalKind.HELD:
            way.held = max(way.held, signal.seq)
        else:
            logger.info("mailbox %s lacks what we sent from %d on: sent again", signal.mailbox, signal.seq)
            way.resend(signal.seq)

    def _say_newer(self, mailbox: str) -> None:
        """Tell a receiver that whoever sent under this name before is gone, with what it lacks of him."""
        way = self._ways.get(mailbox)
        last = self._last.get(mailbox, 0)
        window = Window(self.sender, self.epoch, 1, 1, last=last) if way is None else way.window
        self._control.signal(self._control.topics.mailbox(mailbox), encode_data(window.probe()))

    def cut(self) -> None:
        """Wait for a new connection."""
        for way in self._ways.values():
            way.cut()

    def reconnected(self) -> None:
        """Go on over a new connection."""
        for way in self._ways.values():
            way.reconnected()

    def look(self) -> None:
        """Ask receivers that do not move whether they lack something: no later frame tells that the last is lost."""
        for mailbox, way in list(self._ways.items()):
            if mailbox not in self._registry.entries:
                way.absent += 1
                if way.absent * LOOK_S > self._registry.lease_s:
                    self._drop(mailbox)
                continue
            way.absent = 0
            if way.moved or not len(way.window):
                way.moved, way.looks = False, 0
                continue
            way.looks += 1
            if way.stalled:
                way.again()
            elif way.looks & (way.looks - 1) == 0 or way.looks % 2**_LONGEST_LOOK == 0:
                way.probe(int(LOOK_S * 2**_LONGEST_LOOK))

    async def take_leave(self, within_s: float) -> None:
        """Ask the receivers of long windows whether they have all, before nobody is there to send it again.

        A broker may have dropped what is above its limits. What nobody answers for is logged.
        """
        left = {mailbox: way for mailbox, way in self._ways.items() if way.alone >= _MANY}
        for _ in range(_ASKED):
            for way in left.values():
                way.probe(math.ceil(within_s))
            if left:
                await asyncio.sleep(within_s / _ASKED)
            left = {mailbox: way for mailbox, way in left.items() if way.alone}
        for mailbox, way in left.items():
            logger.warning(
                "mailbox %s did not say that it has the last %d frames from %s: they are with the broker alone, which "
                "keeps them if its limits allow (Mosquitto: max_queued_messages 0)",
                mailbox,
                way.alone,
                self.sender,
            )

    def fail(self, error: Exception) -> None:
        """Give all who wait an error: the connection has ended for good."""
        for way in self._ways.values():
            way.end(0, error)


def _publisher(control: Control, topic: str) -> "Callable[[bytes, int | None], asyncio.Future[int]]":
    return lambda payload, expiry_s: control.publish(topic, payload, (), expiry_s)
