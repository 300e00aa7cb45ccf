"""What a sender keeps for one mailbox: each frame until the receiver has confirmed that it is handled."""

from collections import deque
from collections.abc import Iterator

from ray_messaging.mqtt.wire.signals import Data


class _Kept:
    __slots__ = ("after", "arrived", "frame", "rows")

    def __init__(self, frame: bytes, rows: int, after: int) -> None:
        self.frame = frame
        self.rows = rows
        self.after = after  # the frame before it when it came in; what has been confirmed since lies below the base
        self.arrived = False


class Window:
    """Number and keep the frames of one sender's incarnation for one mailbox.

    A number is given once. A frame that leaves before it is confirmed leaves a hole, which the frame behind it tells of
    by its `after`; so a copy that a broker still holds is dropped by the receiver once that has come.

    Args: last is the highest number that was ever given under this epoch for this mailbox; max_messages and max_bytes
    may be set anew.
    """

    def __init__(self, sender: str, epoch: int, max_messages: int, max_bytes: int, *, last: int = 0) -> None:
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.last = last
        self.messages = 0
        self.nbytes = 0
        self._sender = sender
        self._epoch = epoch
        self._confirmed = last
        self._kept: dict[int, _Kept] = {}
        self._order: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._order)

    @property
    def base(self) -> int:
        """Return the lowest seq that is kept; where none is, the one that comes next."""
        return self._order[0] if self._order else self.last + 1

    def fits(self, rows: int, nbytes: int) -> bool:
        """Tell whether a frame keeps to the limits; an empty window takes any."""
        return not self._order or (self.messages + rows <= self.max_messages and self.nbytes + nbytes <= self.max_bytes)

    def put(self, frame: bytes, rows: int) -> Data:
        """Keep a frame under the next seq; return what to publish."""
        before = self._order[-1] if self._order else self.last
        self.last += 1
        self._kept[self.last] = _Kept(frame, rows, before)
        self._order.append(self.last)
        self.messages += rows
        self.nbytes += len(frame)
        return self._data(self.last)

    def _data(self, seq: int) -> Data:
        kept, base = self._kept[seq], self.base
        return Data(self._sender, self._epoch, seq, base, max(kept.after, base - 1), kept.frame)

    def _drop(self, seq: int) -> None:
        kept = self._kept.pop(seq)
        self.messages -= kept.rows
        self.nbytes -= len(kept.frame)

    # -- what the broker says -------------------------------------------------------------------------------------

    def arrived(self, seq: int) -> None:
        """Note that the broker has a frame."""
        kept = self._kept.get(seq)
        if kept is not None:
            kept.arrived = True

    def is_arrived(self, seq: int) -> bool:
        """Tell whether the broker has a frame, or the receiver has handled it; ask only of what was not given up."""
        kept = self._kept.get(seq)
        return seq <= self._confirmed if kept is None else kept.arrived

    def withdraw(self, seq: int) -> int:
        """Let go of a frame that the broker refused, and of all behind it, for good; return how many these were.

        Those behind it are not read even if the broker took them, as each waits for the one before it, until the next
        frame or a probe tells that it will not come. Of a frame that was published twice the refusal of one copy says
        nothing; of one that has left already nothing happens.
        """
        before = len(self._order)
        while seq in self._kept:
            self._drop(self._order.pop())
        return before - len(self._order)

    def abandon_unarrived(self) -> int:
        """Let go of the frames of which the broker did not say that it has them; return how many.

        One that it has nevertheless is read if it gets there before anything that is put in from now on.
        """
        left = deque[int]()
        before = self.base - 1
        for seq in self._order:
            kept = self._kept[seq]
            if kept.arrived:
                kept.after = before
                before = seq
                left.append(seq)
            else:
                self._drop(seq)
        gone = len(self._order) - len(left)
        self._order = left
        return gone

    # -- what the receiver says -----------------------------------------------------------------------------------

    def confirm(self, seq: int) -> bool:
        """Let go of what the receiver has handled, all up to `seq`; return whether that was anything.

        What was confirmed before does no harm, and what was never sent is not believed.
        """
        if not self._confirmed < seq <= self.last:
            return False
        self._confirmed = seq
        kept = len(self._order)
        while self._order and self._order[0] <= seq:
            self._drop(self._order.popleft())
        return len(self._order) < kept

    def next(self, seq: int) -> Data | None:
        """Return the first frame from `seq` on, as it is to be published now."""
        if not self._order or seq > self._order[-1]:
            return None
        if seq not in self._kept:
            seq = next(found for found in self._order if found >= seq)  # a hole, or what was confirmed
        return self._data(seq)

    def pending(self, seq: int = 0) -> Iterator[Data]:
        """Yield the frames from `seq` on in order; the window may change meanwhile."""
        while (data := self.next(seq)) is not None:
            yield data
            seq = data.seq + 1

    def resend(self, seq: int) -> Iterator[Data]:
        """Yield what answers a receiver that lacks what comes from `seq` on: frames, or a probe if those were given up.

        Frames that the broker has not answered for are under way, and a second copy might be taken where the first one
        is refused.
        """
        if self.next(seq) is None:
            yield self.probe()
        for data in self.pending(seq):
            if not self.is_arrived(data.seq):
                return
            yield data

    def probe(self) -> Data:
        """Return what asks the receiver whether it has all that there is."""
        after = self._order[-1] if self._order else self.last
        return Data(self._sender, self._epoch, self.last + 1, self.base, after, b"")
