"""Signals of a mailbox to its senders: confirmed frames and missing ones."""

import asyncio
import logging
import secrets

from ray_messaging.mqtt.connection.control_link import ControlLink
from ray_messaging.mqtt.connection.packets import Arrival
from ray_messaging.mqtt.connection.reasons import Reason
from ray_messaging.mqtt.receiving.arrivals import Arrivals, Resend, Taken
from ray_messaging.mqtt.wire.messages import Signal, SignalKind, encode_signal

MARK = b"RM?"  # prefix of markers that we send through our own mailbox
_MAX_MARKS = 1000

logger = logging.getLogger(__name__)


class AckSender:
    """Sender of acks and resend requests for one mailbox.

    If a sender has been gone for `lease_s`, its missing frames are given up.
    """

    def __init__(self, control: ControlLink, mailbox: str, lease_s: float, arrivals: Arrivals[Arrival]) -> None:
        self._control = control
        self._mailbox = mailbox
        self._lease_s = lease_s
        self._arrivals = arrivals
        self._unanswered: dict[Resend, float] = {}  # requests without a sender to answer them, since when (loop time)
        self._marks: dict[bytes, Resend] = {}  # markers in flight

    def answer(self, taken: Taken[Arrival], sender: str) -> None:
        """Send the signals that an arrival asks for."""
        if taken.confirm:
            self.confirm(sender)
        if taken.held is not None:
            self._signal(SignalKind.HELD, taken.held)
        if taken.resend is not None:
            self._request(taken.resend)

    def confirm(self, sender: str) -> None:
        """Tell a sender which frames are handled; a lost signal is sent again when the sender repeats a frame."""
        position = self._arrivals.confirmed(sender)
        if position is not None:
            self._signal(SignalKind.CONFIRM, Resend(sender, position.epoch, position.seq))

    def _signal(self, kind: SignalKind, place: Resend) -> "asyncio.Future[int] | None":
        signal = Signal(kind, self._mailbox, place.epoch, place.seq)
        return self._control.try_publish(self._control.topics.sender(place.sender), encode_signal(signal))

    def _request(self, resend: Resend) -> None:
        published = self._signal(SignalKind.RESEND, resend)
        if published is not None:
            published.add_done_callback(lambda answer: self._answered(resend, answer))

    def _answered(self, resend: Resend, answer: "asyncio.Future[int]") -> None:
        if answer.cancelled() or answer.exception() is not None:
            return
        if answer.result() == Reason.NO_MATCHING_SUBSCRIBERS:
            self._unanswered.setdefault(resend, asyncio.get_running_loop().time())
        else:
            self._unanswered.pop(resend, None)

    def check(self) -> None:
        """Request missing frames again; if their sender has been gone for a lease, send a marker."""
        gaps = self._arrivals.gaps()
        self._unanswered = {gap: since for gap, since in self._unanswered.items() if gap in gaps}
        now = asyncio.get_running_loop().time()
        for gap in gaps:
            if now - self._unanswered.get(gap, now) < self._lease_s:
                self._request(gap)
            elif len(self._marks) < _MAX_MARKS:
                # It may still wait in our own session behind unhandled frames. Then it comes before the marker.
                mark = MARK + secrets.token_bytes(8)
                self._marks[mark] = gap
                self._control.try_publish(self._control.topics.mailbox(self._mailbox), mark)

    def on_marker(self, mark: bytes) -> tuple[Taken[Arrival], str]:
        """Give up frames that are still missing; return the outcome for the sender's other frames."""
        gap = self._marks.pop(mark, None)
        if gap is None or gap not in self._unanswered:
            return Taken(), ""
        self._marks = {mark: other for mark, other in self._marks.items() if other != gap}
        before = self._arrivals.lost
        taken = self._arrivals.give_up(gap)
        logger.error(
            "mailbox %s lost up to %d frames of %s: the broker lost them, and that sender is gone",
            self._mailbox,
            self._arrivals.lost - before,
            gap.sender,
        )
        return taken, gap.sender
