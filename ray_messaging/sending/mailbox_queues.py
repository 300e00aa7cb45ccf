"""Queues of frames, one for each mailbox. A full mailbox blocks only its own queue."""

from collections import deque
from collections.abc import Iterable

from ray_messaging.common.backoff import FULL_MAILBOX_RETRY, Backoff
from ray_messaging.sending.frame_router import OutboundFrame


class MailboxQueue:
    """The frames that wait for one mailbox.

    `written` is the sequence number of the last frame that the server has written. `attempted` is the number of frames
    at the beginning of the queue that belong to a call under way, or to a call that may still reach the server.
    `refused` says that the server has refused the first frame.
    """

    __slots__ = ("_backoff", "attempted", "frames", "refused", "retry_at", "written")

    def __init__(self, written: int) -> None:
        self.frames: deque[OutboundFrame] = deque()
        self.written = written
        self.attempted = 0
        self.refused = False
        self.retry_at = 0.0  # the loop time at which the first frame is sent again
        self._backoff = Backoff(FULL_MAILBOX_RETRY)

    def reset(self) -> None:
        """Record that the first frame was written after it had been refused."""
        self.refused, self.retry_at = False, 0.0
        self._backoff.reset()

    def back_off(self, now: float) -> None:
        """Record that the first frame was refused, and set a pause before it is sent again. The pauses grow."""
        self.refused = True
        self.retry_at = now + self._backoff.next_pause()

    def take(self) -> list[OutboundFrame]:
        """Remove and return the frames.

        A first frame that was refused may be sent again at once, but the pause after its next refusal is longer.
        """
        taken, self.frames = [*self.frames], deque()
        self.attempted, self.retry_at = 0, 0.0
        return taken

    def take_late(self, now: float) -> list[OutboundFrame]:
        """Remove and return the frames at the beginning whose deadline has passed."""
        late = []
        while self.frames and self.frames[0].deadline <= now:
            late.append(self.frames.popleft())
        return late


class MailboxQueues(dict[str, MailboxQueue]):
    """The queues of frames, by mailbox."""

    def __init__(self) -> None:
        super().__init__()
        # For each mailbox without a queue, the sequence number of the last frame that was written to it.
        self.written: dict[str, int] = {}

    def queue_of(self, mailbox: str) -> MailboxQueue:
        """Return a mailbox's queue; create it if there is none."""
        queue = self.get(mailbox)
        if queue is None:
            queue = self[mailbox] = MailboxQueue(self.written.get(mailbox, 0))
        return queue

    def reset(self) -> None:
        """Delete all queues, which must be empty, and all sequence numbers."""
        self.clear()
        self.written.clear()

    def drop(self, mailbox: str) -> None:
        """Delete a mailbox's queue if it is empty, and keep its last sequence number."""
        if not self[mailbox].frames:
            self.written[mailbox] = self.pop(mailbox).written

    def dropped(self) -> list[str]:
        """Return the mailboxes that have a last sequence number but no queue."""
        return [mailbox for mailbox in self.written if mailbox not in self]

    def forget(self, mailboxes: Iterable[str]) -> None:
        """Delete the last sequence numbers of mailboxes without a queue."""
        for mailbox in mailboxes:
            self.written.pop(mailbox, None)

    @property
    def empty(self) -> bool:
        """Return whether no frame waits."""
        return not any(queue.frames for queue in self.values())

    @property
    def retry_at(self) -> float | None:
        """Return the loop time at which a frame is to be sent again, or None if no frame waits."""
        return min((queue.retry_at for queue in self.values() if queue.frames), default=None)

    def refused(self, now: float) -> list[MailboxQueue]:
        """Return the queues whose first frame was refused, but may be sent again now."""
        return [queue for queue in self.values() if queue.refused and queue.frames and queue.retry_at <= now]

    def take_all(self) -> list[OutboundFrame]:
        """Empty the queues, and return their frames, the oldest first.

        Rows that had to wait for a verdict were queued later than other rows of their batch, and have a later deadline.
        """
        frames = [frame for queue in self.values() for frame in queue.take()]
        return sorted(frames, key=lambda frame: (frame.in_flight.batch.first, frame.deadline))
