"""The way to one mailbox: its window, and how much of it is out over the connection that is there."""

import asyncio
from collections.abc import Callable
from functools import partial

from ray_messaging.errors import MessagingError, PayloadTooLarge
from ray_messaging.mqtt.connection.reasons import Reason
from ray_messaging.mqtt.sending.window import Window
from ray_messaging.mqtt.wire.signals import Data, encode_data

_FLIGHT_BYTES = 8 * 2**20  # out at a time: each byte of it is in memory twice
_AGAIN_S = 0.05
_RESEND_S = 1.0

Publish = Callable[[bytes, int | None], "asyncio.Future[int]"]


class Proof:
    """Hold the bytes of the largest frame that the broker is known to take, and of the smallest that it refused."""

    __slots__ = ("nbytes", "refused")

    def __init__(self) -> None:
        self.nbytes = 0
        self.refused: int | None = None

    def refuse(self, nbytes: int) -> None:
        """Note that the broker takes none of this size: some cut the connection each time that they see one."""
        self.refused = nbytes if self.refused is None else min(self.refused, nbytes)

    def refuses(self, nbytes: int) -> bool:
        """Tell whether the broker is known to take none of this size."""
        return self.refused is not None and nbytes >= self.refused


class MailboxSender:
    """Publish a window's frames in order, and from any of them again.

    `offer` gives a future with the code of the broker's PUBACK. Where the broker takes none any more, those at the
    window's end that nobody can have got leave it, and the way is `stalled` with the others.
    """

    def __init__(self, window: Window, publish: Publish, proof: Proof) -> None:
        self.window = window
        self.stalled = False
        self.refusal = 0  # the broker's code for which it is stalled
        self.stamp = ""  # of the card that we know
        self.moved = True  # since somebody looked
        self.looks = 0  # since it moved
        self.held = 0  # up to this seq the receiver has them, handled or not
        self.absent = 0  # looks since its mailbox has no card
        self._publish = publish
        self._proof = proof
        self._at = window.base  # the next seq to publish
        self._turn = 0  # the connection that answers belong to
        self._out: dict[int, int] = {}  # seqs that are out over it, and their bytes
        self._bytes_out = 0
        self._alone = False  # what is out may be too large
        self._taken = 0  # the highest seq that the broker took, ever
        self._taken_now = 0  # and since the last refusal was settled
        self._unsure = 0  # seqs up to here may have been taken though no answer came
        self._refused: tuple[int, int] | None = None  # the first seq that was refused, and the code
        self._cut = False  # the connection is made anew, and not there yet
        self._probes = False  # when all is out
        self._resent = 0  # the seq that was asked for last,
        self._resend_at = 0.0  # and when the same may be asked for again (loop time)
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def offer(self, frame: bytes, rows: int) -> "asyncio.Future[int]":
        """Put a frame into the window, and on its way."""
        seq = self.window.put(frame, rows).seq
        waiting = self._waiting[seq] = asyncio.get_running_loop().create_future()
        self.pump()
        return waiting

    # -- publishing -----------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Publish what there is room for."""
        blocked = self.stalled or self._alone or self._cut
        while not (blocked or self._refused) and self._bytes_out < _FLIGHT_BYTES:
            data = self.window.next(self._at)
            if data is None:
                if self._probes and len(self.window):
                    self._probes = False
                    self.probe(None)
                return
            if data.seq in self._out:
                # Not twice over one connection: what one copy's refusal means, another one would undo.
                self._at = data.seq + 1
                continue
            # What may be too large goes alone: refused amid others it would leave a hole.
            unproved = len(data.frame) > self._proof.nbytes
            if (unproved and self._out) or not self._put_out(data):
                return
            self._at, self._alone = data.seq + 1, unproved
            blocked = unproved

    def _put_out(self, data: Data) -> bool:
        try:
            confirmed = self._publish(encode_data(data), None)
        except PayloadTooLarge:
            self._refuse(data.seq, Reason.PACKET_TOO_LARGE)
            return False
        except MessagingError:
            return False  # whoever makes the connection anew comes here again
        self._out[data.seq] = len(data.frame)
        self._bytes_out += len(data.frame)
        confirmed.add_done_callback(partial(self._answered, self._turn, data.seq))
        return True

    def _answered(self, turn: int, seq: int, confirmed: "asyncio.Future[int]") -> None:
        if confirmed.cancelled() or confirmed.exception() is not None:
            return
        code = confirmed.result()
        if code == Reason.SUCCESS:
            self.window.arrived(seq)
            self._taken = max(self._taken, seq)
            _resolve(self._waiting.pop(seq, None), code)
        if turn != self._turn:
            return
        nbytes = self._out.pop(seq, 0)
        self._bytes_out -= nbytes
        self._alone = False
        if code == Reason.SUCCESS:
            self._proof.nbytes = max(self._proof.nbytes, nbytes)
            self._taken_now = max(self._taken_now, seq)
        elif self._refused is None or seq < self._refused[0]:
            self._refused = (seq, code)
        if self._refused is not None and not self._out:
            self._refuse(*self._refused)
        self.pump()

    def _refuse(self, seq: int, code: int) -> None:
        """Settle what the broker did not take, now that nothing is out."""
        if self._taken_now > seq:  # it took later ones, so it must have this one, too
            self._refused = (seq, code)
            self._timer = asyncio.get_running_loop().call_later(_AGAIN_S, self.again, seq)
            return
        self._refused, self._taken_now = None, 0
        first = max(seq, self._unsure + 1, self._taken + 1)
        refused = self.window.next(first)
        if refused is not None:
            self.window.withdraw(refused.seq)
        stays = self.window.next(seq)
        self.stalled, self.refusal = stays is not None and stays.seq < first, code
        for lost in sorted(lost for lost in self._waiting if lost >= first):
            _resolve(self._waiting.pop(lost), code)

    # -- again ----------------------------------------------------------------------------------------------------

    def again(self, seq: int | None = None) -> None:
        """Publish again what is in the window from a seq on (None: all)."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.stalled = False
        if not self._out:
            self._refused, self._taken_now = None, 0
        self._at = min(self._at, self.window.base if seq is None else max(seq, self.window.base))
        self.pump()

    def _begin_turn(self) -> None:
        self._turn += 1
        self._out.clear()
        self._bytes_out = 0
        self._alone = False
        self._refused, self._taken_now = None, 0

    def cut(self) -> None:
        """Wait for a new connection: what the old one would have answered, nobody knows."""
        self._unsure = max([self._unsure, *self._out])
        self._begin_turn()
        self._cut = True

    def reconnected(self) -> None:
        """Publish again what the broker did not confirm, and ask the receiver whether it lacks something else."""
        self._cut, self._probes, self.looks = False, True, 0
        unconfirmed = (data.seq for data in self.window.pending() if not self.window.is_arrived(data.seq))
        self.again(next(unconfirmed, self._at))

    def resend(self, seq: int) -> None:
        """Publish again from a seq that the receiver lacks; where nothing is left of it, say so."""
        now = asyncio.get_running_loop().time()
        if seq <= self._resent and now < self._resend_at:
            return  # it is under way
        self._resent, self._resend_at = seq, now + _RESEND_S
        if self.window.next(seq) is None:  # withdrawn: what the receiver holds behind it goes on
            self.probe(None)
        else:
            self.again(seq)

    def probe(self, expiry_s: int | None) -> None:
        """Ask the receiver what it lacks, or has handled."""
        try:
            self._publish(encode_data(self.window.probe()), expiry_s)
        except MessagingError:
            return  # all is published again over the next connection

    @property
    def alone(self) -> int:
        """Return how many frames only the broker may have beside us, as far as we know."""
        return sum(data.seq > self.held for data in self.window.pending())

    def confirm(self, seq: int) -> None:
        """Let go of what the receiver has handled."""
        if self.window.confirm(seq):
            self.moved = True
            # The broker's own answer may have been lost with a connection.
            for taken in [waiting for waiting in self._waiting if waiting <= seq]:
                _resolve(self._waiting.pop(taken), Reason.SUCCESS)

    # -- giving up ------------------------------------------------------------------------------------------------

    def abandon(self) -> None:
        """Let go of what the broker did not confirm: nobody waits for it any more."""
        if self.window.abandon_unarrived():
            self._begin_turn()
        self._waiting.clear()
        self.pump()

    def end(self, code: int, error: Exception | None = None) -> None:
        """Give those who wait a code, or an error: it ends here."""
        self._begin_turn()
        self.stalled = True
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if error is None:
                _resolve(future, code)
            elif not future.done():
                future.set_exception(error)
                future.exception()  # whoever waits sees it; nobody may


def _resolve(waiting: "asyncio.Future[int] | None", code: int) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(code)
