"""Unconfirmed frames of one sender for one mailbox."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from ray_messaging.mqtt.wire.messages import Data
from ray_messaging.transports.transport import FrameFate, Limits


@dataclass(slots=True)
class _Frame:
    frame: bytes
    rows: int
    after: int  # the frame before it when it was added; frames confirmed since lie below the base
    arrived: bool = False  # at the broker


class Window:
    """Numbered frames of one sender epoch for one mailbox, each kept until the receiver has confirmed it.

    A seq is given once. A frame that is dropped before it is confirmed leaves a hole, which the `after` of the next
    frame tells. So the receiver drops a copy that the broker still holds once that next frame has come.

    Args: last is the highest seq that was given under this epoch for this mailbox. max_messages and max_bytes may
    change later.
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
        self._frames: dict[int, _Frame] = {}
        self._order: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._order)

    @property
    def base(self) -> int:
        """Return the lowest seq that is kept, or the next seq if none is."""
        return self._order[0] if self._order else self.last + 1

    def fits(self, rows: int, nbytes: int) -> bool:
        """Return whether a frame is within the limits; an empty window takes any frame."""
        limits = Limits(self.max_messages, self.max_bytes, 0.0, leased=True)
        return not self._order or limits.fate(0, self.messages + rows, self.nbytes + nbytes) is FrameFate.WRITTEN

    def put(self, frame: bytes, rows: int) -> Data:
        """Add a frame under the next seq; return the message to publish."""
        before = self._order[-1] if self._order else self.last
        self.last += 1
        self._frames[self.last] = _Frame(frame, rows, before)
        self._order.append(self.last)
        self.messages += rows
        self.nbytes += len(frame)
        return self._data(self.last)

    def _data(self, seq: int) -> Data:
        kept, base = self._frames[seq], self.base
        return Data(self._sender, self._epoch, seq, base, max(kept.after, base - 1), kept.frame)

    def _drop(self, seq: int) -> None:
        kept = self._frames.pop(seq)
        self.messages -= kept.rows
        self.nbytes -= len(kept.frame)

    # -- answers of the broker ------------------------------------------------------------------------------------

    def arrived(self, seq: int) -> None:
        """Note that the broker has a frame."""
        kept = self._frames.get(seq)
        if kept is not None:
            kept.arrived = True

    def is_arrived(self, seq: int) -> bool:
        """Return whether the broker has a frame, or the receiver has handled it; invalid for a dropped frame."""
        kept = self._frames.get(seq)
        return seq <= self._confirmed if kept is None else kept.arrived

    def withdraw(self, seq: int) -> int:
        """Drop a frame that the broker refused and all frames behind it; return their number (0: it is gone already).

        If the broker took one of those behind it, the receiver does not read it, because it waits for the frame before
        it until the next frame or a probe tells that this one will not come. For a frame that was published twice, the
        refusal of one copy says nothing about the other.
        """
        before = len(self._order)
        while seq in self._frames:
            self._drop(self._order.pop())
        return before - len(self._order)

    def abandon_unarrived(self) -> int:
        """Drop the frames that the broker has not confirmed; return their number.

        If the broker has one nevertheless, it is read if it comes before any frame that is added from now on.
        """
        left = deque[int]()
        before = self.base - 1
        for seq in self._order:
            kept = self._frames[seq]
            if kept.arrived:
                kept.after = before
                before = seq
                left.append(seq)
            else:
                self._drop(seq)
        dropped = len(self._order) - len(left)
        self._order = left
        return dropped

    # -- signals of the receiver ----------------------------------------------------------------------------------

    def confirm(self, seq: int) -> bool:
        """Drop all frames up to `seq`, which the receiver has handled; return whether there were any.

        A repeated or impossible seq has no effect.
        """
        if not self._confirmed < seq <= self.last:
            return False
        self._confirmed = seq
        kept = len(self._order)
        while self._order and self._order[0] <= seq:
            self._drop(self._order.popleft())
        return len(self._order) < kept

    def next(self, seq: int) -> Data | None:
        """Return the first kept frame from `seq` on, as it is to be published now."""
        if not self._order or seq > self._order[-1]:
            return None
        if seq not in self._frames:
            seq = next(found for found in self._order if found >= seq)  # it is in a hole, or confirmed
        return self._data(seq)

    def pending(self) -> Iterator[Data]:
        """Yield the frames in order; the window may change meanwhile."""
        seq = 0
        while (data := self.next(seq)) is not None:
            yield data
            seq = data.seq + 1

    def probe(self) -> Data:
        """Return a message that asks the receiver for missing frames."""
        after = self._order[-1] if self._order else self.last
        return Data(self._sender, self._epoch, self.last + 1, self.base, after, b"")
