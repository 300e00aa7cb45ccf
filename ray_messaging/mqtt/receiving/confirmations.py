"""What a mailbox tells its senders: what is handled, and what is missing."""

import asyncio
import logging
import secrets

from ray_messaging.mqtt.connection.packets import Arrival
from ray_messaging.mqtt.connection.reasons import Reason
from ray_messaging.mqtt.directory.control import Control
from ray_messaging.mqtt.receiving.arrivals import Resend, Taken
from ray_messaging.mqtt.receiving.mailbox import MARK, Mailbox
from ray_messaging.mqtt.wire.signals import Signal, SignalKind, encode_signal

logger = logging.getLogger(__name__)

_MARKS = 1000


class Confirmations:
    """Answer the senders of one mailbox; a sender that nobody answers for during a lease is given up."""

    def __init__(self, control: Control, lease_s: float) -> None:
        self._control = control
        self._topics = control.topics
        self._lease_s = lease_s
        self._unanswered: dict[Resend, float] = {}  # what nobody was there to answer, since when (loop time)
        self._marks: dict[bytes, Resend] = {}  # on their way through our own mailbox

    def answer(self, mailbox: Mailbox, taken: Taken[Arrival], sender: str) -> None:
        """Say what an arrival asks for."""
        if taken.confirm:
            self.confirm(mailbox, sender)
        if taken.held is not None:
            signal = Signal(SignalKind.HELD, mailbox.name, taken.held.epoch, taken.held.seq)
            self._control.signal(self._topics.sender(sender), encode_signal(signal))
        if taken.resend is not None:
            self._ask(mailbox, taken.resend)

    def confirm(self, mailbox: Mailbox, sender: str) -> None:
        """Tell a sender what is handled; if that is lost, a frame that it sends again brings it again."""
        place = mailbox.arrivals.confirmed(sender)
        if place is not None:
            signal = Signal(SignalKind.CONFIRM, mailbox.name, place.epoch, place.seq)
            self._control.signal(self._topics.sender(sender), encode_signal(signal))

    def confirm_all(self, mailbox: Mailbox) -> None:
        """Tell all senders what is handled."""
        for sender in mailbox.arrivals.places():
            self.confirm(mailbox, sender)

    def _ask(self, mailbox: Mailbox, resend: Resend) -> None:
        signal = Signal(SignalKind.RESEND, mailbox.name, resend.epoch, resend.seq)
        asked = self._control.signal(self._topics.sender(resend.sender), encode_signal(signal))
        if asked is not None:
            asked.add_done_callback(lambda answer: self._answered(resend, answer))

    def _answered(self, resend: Resend, answer: "asyncio.Future[int]") -> None:
        if answer.cancelled() or answer.exception() is not None:
            return
        if answer.result() == Reason.NO_MATCHING_SUBSCRIBERS:
            self._unanswered.setdefault(resend, asyncio.get_running_loop().time())
        else:
            self._unanswered.pop(resend, None)

    def look(self, mailbox: Mailbox) -> None:
        """Ask again for what is missing; doubt that it comes where its sender was not there for a lease."""
        gaps = mailbox.arrivals.gaps()
        self._unanswered = {gap: since for gap, since in self._unanswered.items() if gap in gaps}
        now = asyncio.get_running_loop().time()
        for gap in gaps:
            if now - self._unanswered.get(gap, now) < self._lease_s:
                self._ask(mailbox, gap)
            elif len(self._marks) < _MARKS:
                # It may still wait in our own session, behind what is not handled: then it comes before this does.
                mark = MARK + secrets.token_bytes(8)
                self._marks[mark] = gap
                self._control.signal(self._topics.mailbox(mailbox.name), mark)

    def marked(self, mailbox: Mailbox, mark: bytes) -> None:
        """Do without what is still missing: all that the broker had has come."""
        gap = self._marks.pop(mark, None)
        if gap is None or gap not in self._unanswered:
            return
        self._marks = {mark: other for mark, other in self._marks.items() if other != gap}
        before = mailbox.arrivals.lost
        mailbox.follow(mailbox.arrivals.give_up(gap), gap.sender)
        logger.error(
            "mailbox %s lost up to %d frames of %s: the broker lost them, and that sender is gone",
            mailbox.name,
            mailbox.arrivals.lost - before,
            gap.sender,
        )
