"""What waits for each mailbox, in order: a lane each, so that a full one waits alone."""

from collections import deque
from collections.abc import Iterable

from ray_messaging.sending.delivery.frame_router import CALL_BYTES, UNOWNED, OutboundFrame

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.05


class MailboxQueue:
    """Be what waits for one mailbox.

    `written` is the last seq that the server has; `tried` counts the crates at the head of which an attempt is under
    way, or may still be.
    """

    __slots__ = ("crates", "pause", "retry_at", "tried", "written")

    def __init__(self, written: int) -> None:
        self.crates: deque[OutboundFrame] = deque()
        self.written = written
        self.tried = 0
        self.pause = 0.0
        self.retry_at = 0.0

    def took(self) -> None:
        """Note that the server has the crate at the head."""
        self.crates.popleft()
        self.written += 1
        self.tried -= 1
        self.pause = self.retry_at = 0.0

    def wait(self, now: float) -> None:
        """Try again later, and ever later."""
        self.pause = min(max(2 * self.pause, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
        self.retry_at = now + self.pause

    def empty(self, *, told: bool) -> list[OutboundFrame]:
        """Take the crates out; those that tell the log of what has been written stay, unless `told`."""
        taken = [crate for crate in self.crates if told or crate.told is None]
        self.crates = deque(crate for crate in self.crates if not told and crate.told is not None)
        self.tried = 0
        self.pause = self.retry_at = 0.0
        return taken


class MailboxQueues(dict[str, MailboxQueue]):
    """Hold the lanes by mailbox."""

    def __init__(self) -> None:
        super().__init__()
        self._written: dict[str, int] = {}  # as of the last epoch, of mailboxes without a lane

    def queue(self, crate: OutboundFrame) -> None:
        """Put a crate behind what waits for its mailbox."""
        self.of(crate.mailbox).crates.append(crate)

    def of(self, mailbox: str) -> MailboxQueue:
        """Return a mailbox's lane."""
        lane = self.get(mailbox)
        if lane is None:
            lane = self[mailbox] = MailboxQueue(self._written.get(mailbox, 0))
        return lane

    def learn(self, written: dict[str, int]) -> None:
        """Take over what the server has of mailboxes that get a lane later."""
        self._written = dict(written)

    def forget(self, mailbox: str) -> None:
        """Drop a lane that holds nothing."""
        if not self[mailbox].crates:
            self._written[mailbox] = self.pop(mailbox).written

    def idle(self) -> list[str]:
        """Return the mailboxes without a lane of which it is known what the server has."""
        return [mailbox for mailbox in self._written if mailbox not in self]

    def unlearn(self, mailboxes: Iterable[str]) -> None:
        """Forget what the server had of mailboxes, as it did."""
        for mailbox in mailboxes:
            self._written.pop(mailbox, None)

    @property
    def retry_at(self) -> float | None:
        """Return when there is something to try again (loop time); None: nothing waits."""
        return min((lane.retry_at for lane in self.values() if lane.crates), default=None)

    def refused(self, now: float) -> list[MailboxQueue]:
        """Return the lanes that were refused and are to be tried again."""
        return [lane for lane in self.values() if lane.pause and lane.crates and lane.retry_at <= now]

    def ready(self, now: float) -> list[tuple[OutboundFrame, int]]:
        """Return the crates of the next call with their seqs: all under the verdicts of one interceptor."""
        ready: list[tuple[OutboundFrame, int]] = []
        volume = 0
        for lane in self.values():
            if lane.crates and lane.retry_at <= now:
                for seq, crate in enumerate(lane.crates, lane.written + 1):
                    volume += crate.nbytes
                    if ready and (crate.verdicts != ready[0][0].verdicts or volume > CALL_BYTES):
                        break
                    ready.append((crate, seq))
                    if crate.mailbox == UNOWNED:
                        break  # one set of takers is kept for a call that is repeated
                    if lane.pause:
                        break  # it was refused: until its head is taken, the rest would only be refused again
        return ready

    def unload(self, *, told: bool = False) -> list[OutboundFrame]:
        """Empty the lanes; return the crates that were on them, the oldest first.

        Rows of one posting that were loaded later, as they had to wait, have the later deadline. Crates that tell the
        log of what has been written stay, unless `told`: nothing can change what they say.
        """
        crates = [crate for lane in self.values() for crate in lane.empty(told=told)]
        return sorted(crates, key=lambda crate: (crate.posting.batch.first, crate.deadline))
