"""Publishing of one mailbox's window, in order and again after cuts and losses."""

import asyncio
from dataclasses import dataclass
from functools import partial

from ray_messaging.common.backoff import MQTT_REFUSED_RETRY, MQTT_RESEND
from ray_messaging.errors import MessagingError, PayloadTooLarge
from ray_messaging.mqtt.connection.control_link import ControlLink
from ray_messaging.mqtt.connection.reasons import Reason
from ray_messaging.mqtt.sending.window import Window
from ray_messaging.mqtt.wire.messages import Data, encode_data

_MAX_BYTES_IN_FLIGHT = 8 * 2**20  # each byte is in memory twice


@dataclass(slots=True)
class FrameSizes:
    """Bytes of the largest frame that the broker is known to take, and of the smallest that it refused."""

    accepted: int = 0
    refused: int | None = None

    def refuse(self, nbytes: int) -> None:
        """Note that the broker refuses this size; some brokers disconnect for each such frame."""
        self.refused = nbytes if self.refused is None else min(self.refused, nbytes)

    def refuses(self, nbytes: int) -> bool:
        """Return whether the broker is known to refuse this size."""
        return self.refused is not None and nbytes >= self.refused


class MailboxSender:
    """Sender of one window's frames.

    `offer` gives a future with the code of the broker's PUBACK. When the broker refuses frames, the refused ones that
    no receiver can have are dropped from the window's end. If others stay, the sender is `stalled`.
    """

    def __init__(self, window: Window, control: ControlLink, topic: str, sizes: FrameSizes, stamp: str) -> None:
        self.window = window
        self.stalled = False
        self.refusal = 0  # the broker's code that stalled it
        self.stamp = stamp  # of the last directory entry
        self.moved = True  # since the last check
        self.idle_checks = 0  # since it moved
        self.held = 0  # the receiver has all up to this seq, handled or not
        self.absent_checks = 0  # since its mailbox left the directory
        self._control = control
        self._topic = topic
        self._sizes = sizes
        self._next = window.base  # the next seq to publish
        self._connection = 0  # counts connections, to tell which answers are current
        self._in_flight: dict[int, int] = {}  # bytes by seq
        self._bytes_in_flight = 0
        self._exclusive = False  # the frame in flight may be too large
        self._accepted = 0  # the highest seq that the broker took, ever
        self._accepted_now = 0  # and since the last refusal was settled
        self._unknown = 0  # seqs up to here may have been taken though no answer came
        self._refused: tuple[int, int] | None = None  # the first refused seq, and the code
        self._cut = False  # there is no connection
        self._probe_next = False  # when all is in flight
        self._resent = 0  # the seq that was requested last,
        self._resend_at = 0.0  # and when the same may be requested again (loop time)
        self._results: dict[int, asyncio.Future[int]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def offer(self, frame: bytes, rows: int) -> "asyncio.Future[int]":
        """Add a frame to the window and publish it when possible."""
        seq = self.window.put(frame, rows).seq
        result = self._results[seq] = asyncio.get_running_loop().create_future()
        self._send()
        return result

    # -- publishing -----------------------------------------------------------------------------------------------

    def _send(self) -> None:
        """Publish frames up to the limit of bytes in flight."""
        blocked = self.stalled or self._exclusive or self._cut
        while not (blocked or self._refused) and self._bytes_in_flight < _MAX_BYTES_IN_FLIGHT:
            data = self.window.next(self._next)
            if data is None:
                if self._probe_next and len(self.window):
                    self._probe_next = False
                    self.probe(None)
                return
            if data.seq in self._in_flight:
                # Never twice over one connection: the copies could get different answers.
                self._next = data.seq + 1
                continue
            # A frame that may be too large is sent by itself: among others, its refusal would leave a hole.
            unproven = len(data.frame) > self._sizes.accepted
            if (unproven and self._in_flight) or not self._publish(data):
                return
            self._next, self._exclusive = data.seq + 1, unproven
            blocked = unproven

    def _publish(self, data: Data) -> bool:
        try:
            confirmed = self._control.link.publish(self._topic, encode_data(data))
        except PayloadTooLarge:
            self._settle_refusal(data.seq, Reason.PACKET_TOO_LARGE)
            return False
        except MessagingError:
            return False  # `reconnected` publishes again
        self._in_flight[data.seq] = len(data.frame)
        self._bytes_in_flight += len(data.frame)
        confirmed.add_done_callback(partial(self._answered, self._connection, data.seq))
        return True

    def _answered(self, connection: int, seq: int, confirmed: "asyncio.Future[int]") -> None:
        if confirmed.cancelled() or confirmed.exception() is not None:
            return
        code = confirmed.result()
        if code == Reason.SUCCESS:
            self.window.arrived(seq)
            self._accepted = max(self._accepted, seq)
            _resolve(self._results.pop(seq, None), code)
        if connection != self._connection:
            return
        nbytes = self._in_flight.pop(seq, 0)
        self._bytes_in_flight -= nbytes
        self._exclusive = False
        if code == Reason.SUCCESS:
            self._sizes.accepted = max(self._sizes.accepted, nbytes)
            self._accepted_now = max(self._accepted_now, seq)
        elif self._refused is None or seq < self._refused[0]:
            self._refused = (seq, code)
        if self._refused is not None and not self._in_flight:
            self._settle_refusal(*self._refused)
        self._send()

    def _settle_refusal(self, seq: int, code: int) -> None:
        """Drop the refused frames, now that none is in flight."""
        if self._accepted_now > seq:  # the broker took a later frame, so it must take this one, too
            self._refused = (seq, code)
            self._timer = asyncio.get_running_loop().call_later(MQTT_REFUSED_RETRY.first_s, self.send_again, seq)
            return
        self._refused, self._accepted_now = None, 0
        first = max(seq, self._unknown + 1, self._accepted + 1)
        refused = self.window.next(first)
        if refused is not None:
            self.window.withdraw(refused.seq)
        stays = self.window.next(seq)
        self.stalled, self.refusal = stays is not None and stays.seq < first, code
        for lost in sorted(lost for lost in self._results if lost >= first):
            _resolve(self._results.pop(lost), code)

    # -- publishing again -----------------------------------------------------------------------------------------

    def send_again(self, seq: int | None = None) -> None:
        """Publish the window again from a seq on (None: all)."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.stalled = False
        if not self._in_flight:
            self._refused, self._accepted_now = None, 0
        self._next = min(self._next, self.window.base if seq is None else max(seq, self.window.base))
        self._send()

    def _reset_flight(self) -> None:
        self._connection += 1
        self._in_flight.clear()
        self._bytes_in_flight = 0
        self._exclusive = False
        self._refused, self._accepted_now = None, 0

    def disconnected(self) -> None:
        """Wait for a new connection; the fate of the frames in flight is unknown."""
        self._unknown = max([self._unknown, *self._in_flight])
        self._reset_flight()
        self._cut = True

    def reconnected(self) -> None:
        """Publish the unconfirmed frames again, then probe for other losses."""
        self._cut, self._probe_next, self.idle_checks = False, True, 0
        unconfirmed = (data.seq for data in self.window.pending() if not self.window.is_arrived(data.seq))
        self.send_again(next(unconfirmed, self._next))

    def resend(self, seq: int) -> None:
        """Publish again from a seq that the receiver lacks; probe if nothing of it is left."""
        now = asyncio.get_running_loop().time()
        if seq <= self._resent and now < self._resend_at:
            return  # it is in flight
        self._resent, self._resend_at = seq, now + MQTT_RESEND.first_s
        if self.window.next(seq) is None:  # withdrawn: the probe releases the frames that the receiver holds behind it
            self.probe(None)
        else:
            self.send_again(seq)

    def probe(self, expiry_s: int | None) -> None:
        """Ask the receiver which frames it lacks or has handled."""
        try:
            self._control.link.publish(self._topic, encode_data(self.window.probe()), expiry_s=expiry_s)
        except MessagingError:
            return  # all is published again over the next connection

    @property
    def unheld(self) -> int:
        """Return how many frames the receiver may not have yet."""
        return sum(data.seq > self.held for data in self.window.pending())

    def confirm(self, seq: int) -> None:
        """Drop the frames that the receiver has handled."""
        if self.window.confirm(seq):
            self.moved = True
            # The broker's own answer may have been lost with a connection.
            for handled in [each for each in self._results if each <= seq]:
                _resolve(self._results.pop(handled), Reason.SUCCESS)

    # -- giving up ------------------------------------------------------------------------------------------------

    def abandon(self) -> None:
        """Drop the frames that the broker has not confirmed; their futures have no waiter any more."""
        if self.window.abandon_unarrived():
            self._reset_flight()
        self._results.clear()
        self._send()

    def end(self, code: int, error: Exception | None = None) -> None:
        """Stop, and resolve all futures with a code or an error."""
        self._reset_flight()
        self.stalled = True
        if self._timer is not None:
            self._timer.cancel()
        results, self._results = self._results, {}
        for future in results.values():
            if error is None:
                _resolve(future, code)
            elif not future.done():
                future.set_exception(error)
                future.exception()  # it may have no waiter


def _resolve(future: "asyncio.Future[int] | None", code: int) -> None:
    if future is not None and not future.done():
        future.set_result(code)
