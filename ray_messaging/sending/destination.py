"""Destination: what a sender writes its frames to, the mailboxes or the boxes of a step.

A box has the messages that one mailbox reads in one step. A destination has a queue of frames for each mailbox. A full
mailbox blocks only its own queue.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from ray_messaging.addressing.directory import Routes
from ray_messaging.common.backoff import FULL_MAILBOX_RETRY, STALE_VERDICT_RETRY, Backoff
from ray_messaging.default_limits_and_leases import CALL_BYTES
from ray_messaging.errors import InterceptorUnavailable
from ray_messaging.interception.verdict_client import VerdictClient
from ray_messaging.model.fates import BLOCKED, DELIVERED, PUBLISHED, UNDELIVERABLE
from ray_messaging.model.schema import Schemas
from ray_messaging.observability.observer import Observer
from ray_messaging.sending import send_errors
from ray_messaging.sending.frame_router import UNOWNED, FrameRouter, OutboundFrame
from ray_messaging.sending.in_flight_batch import InFlightBatch, Rows
from ray_messaging.sending.schema_checks import fitting
from ray_messaging.transports.transport_values import LOG, SendStatus

if TYPE_CHECKING:
    from ray_messaging.transports.transport import RedisTransport

# After these refusals, the sender has to ask the interceptor for new verdicts.
OF_VERDICTS = (SendStatus.STALE_VERDICTS, SendStatus.OTHER_RULES)


class VerdictRenewal:
    """The renewal of verdicts that the server refuses, because other rules or another interceptor are in force.

    New verdicts may be refused, too, so the renewal is repeated for up to `timeout_s` seconds.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._backoff: Backoff | None = None  # None before the first renewal, which needs no pause

    async def begin(self, verdict_client: VerdictClient, why: SendStatus) -> None:
        """Make a client drop its old verdicts, so that the next verdicts are new. From the second time on, pause first.

        Args: `why` is the server's refusal of the old verdicts, one of OF_VERDICTS.
        Raises: InterceptorUnavailable if `timeout_s` seconds have passed since the first call.
        """
        if self._backoff is None:
            deadline = asyncio.get_running_loop().time() + self._timeout_s
            self._backoff = Backoff(STALE_VERDICT_RETRY, deadline=deadline)
        elif self._backoff.exhausted:
            raise InterceptorUnavailable(send_errors.STALE)
        else:
            await self._backoff.sleep()
        await verdict_client.outdated(successor=why is SendStatus.STALE_VERDICTS)


class MailboxQueue:
    """The frames that wait for one mailbox.

    `written` is the sequence number of the last frame that the server has written. `attempted` is the number of frames
    at the beginning of the queue that belong to a call under way, or to a call that may still reach the server.
    `refused` is True if the server has refused the first frame.
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
        """Forget that the first frame was refused, because it is written now."""
        self.refused, self.retry_at = False, 0.0
        self._backoff.reset()

    def back_off(self, now: float) -> None:
        """Record that the first frame was refused, and set a pause before it is sent again. The pauses grow."""
        self.refused = True
        self.retry_at = now + self._backoff.next_pause()

    def take(self) -> list[OutboundFrame]:
        """Remove and return the frames.

        A pause that `back_off` has set ends now. The pause after the next refusal is longer than the last one.
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
        """Return the mailboxes that have no queue any more, but whose last sequence number is still kept."""
        return [mailbox for mailbox in self.written if mailbox not in self]

    def forget(self, mailboxes: Iterable[str]) -> None:
        """Delete the last sequence numbers of the given mailboxes, which have no queues any more."""
        for mailbox in mailboxes:
            self.written.pop(mailbox, None)

    @property
    def empty(self) -> bool:
        """Return whether no frame waits."""
        return not any(queue.frames for queue in self.values())

    def refused(self, now: float) -> list[MailboxQueue]:
        """Return the queues whose first frame was refused, but may be sent again now."""
        return [queue for queue in self.values() if queue.refused and queue.frames and queue.retry_at <= now]

    def take_all(self) -> list[OutboundFrame]:
        """Empty the queues, and return their frames in the order of their batches, then of their deadlines.

        Rows that had to wait for a verdict have a later deadline than the other rows of their batch.
        """
        frames = [frame for queue in self.values() for frame in queue.take()]
        return sorted(frames, key=lambda frame: (frame.in_flight.batch.first, frame.deadline))


class Destination:
    """The place to which a sender writes frames, with a queue of frames for each mailbox, or for each box of a step.

    Each destination decides by itself to which mailboxes or boxes a message goes, so that a message for a step never
    goes into a mailbox.
    """

    def __init__(
        self,
        transport: "RedisTransport",
        sender: str,
        routes: Routes,
        schemas: Schemas,
        *,
        mirror: bool,
        observer: Observer | None = None,
    ) -> None:
        self.transport = transport
        self.sender = sender
        self.observer = observer
        self.schemas = schemas
        self.stale_verdicts: dict[InFlightBatch, Rows] = {}  # rows whose verdicts are no longer valid
        self.stale_by = SendStatus.OK  # why the verdicts are no longer valid: STALE_VERDICTS or OTHER_RULES
        self.queues = MailboxQueues()
        # The queued frames were made by the routes in `router.routes`. `reroute` sets `router.routes` to `self.routes`.
        self.router = FrameRouter(routes, mirror=mirror)

    @property
    def routes(self) -> Routes:
        """Return the mailboxes to which each message must go now."""
        raise NotImplementedError

    def load(self, in_flight: InFlightBatch, rows: Rows | None, verdict_epoch: int, deadline: float) -> None:
        """Queue frames with those rows of a batch that `rows` selects (None: all rows), after they were judged.

        Rows whose payload does not fit its schema get an error. Blocked rows go only to the event log, if there is one.

        Args: `verdict_epoch` is a number by which the server refuses outdated verdicts. `deadline` is the loop time
        until which the frames must be written.
        """
        if not in_flight.left:
            return
        self.reroute()
        if in_flight.pending.checked != self.schemas.version:
            rows = fitting(self.schemas, in_flight, rows)
            if rows is not None and not len(rows):
                return
        queues = self.queues
        for frame in self.router.route(in_flight, rows):
            frame.verdict_epoch, frame.deadline = verdict_epoch, deadline
            queue = queues.get(frame.mailbox) or queues.queue_of(frame.mailbox)
            queue.frames.append(frame)

    def reroute(self, *, again: bool = False) -> None:
        """Make new frames of all queued rows, if they now go to other mailboxes, or if `again` is true."""
        if self.router.routes is self.routes and not again:
            return
        self.router.routes = self.routes
        # Rows of one batch may have passed the rules in several verdict epochs, and at different times.
        found: dict[tuple[InFlightBatch, int, float], list[Rows]] = {}
        for frame in self.queues.take_all():
            key = (frame.in_flight, frame.verdict_epoch, frame.deadline)
            found.setdefault(key, []).append(frame.batch_rows())
        for (in_flight, verdict_epoch, deadline), rows in found.items():
            self.load(in_flight, np.unique(np.concatenate(rows)), verdict_epoch, deadline)

    async def keep_agents(self) -> None:
        """Write the sets of agents that queued frames name to the server, from which the event log reads the sets.

        Sets that the server is known to have are left out. The server must have a set before the frames that name it.
        """
        if self.router.unkept:
            await self.transport.keep_agents(self.router.unkept)
            self.router.kept()

    def next_call(self) -> list[OutboundFrame]:
        """Return the frames of the next call, and give each frame the next sequence number of its queue.

        All frames were judged under the same verdict epoch, a number by which the server refuses outdated verdicts.
        """
        ready: list[OutboundFrame] = []
        volume, now = 0, asyncio.get_running_loop().time()
        for name, queue in self.queues.items():
            under_way = queue.attempted
            if under_way == len(queue.frames) or queue.retry_at > now or (under_way and name == UNOWNED):
                continue
            for seq, frame in enumerate(islice(queue.frames, under_way, None), queue.written + under_way + 1):
                volume += frame.nbytes
                if ready and (frame.verdict_epoch != ready[0].verdict_epoch or volume > CALL_BYTES):
                    break
                frame.seq = seq
                ready.append(frame)
                queue.attempted += 1
                if frame.mailbox == UNOWNED:
                    # The server keeps the subscriber counts of the last publications only, to answer a repeated call.
                    # So only one frame with publications may be under way.
                    break
                if queue.refused:
                    # The first frame of the queue was refused. Until it is written, the server would refuse the later
                    # frames too.
                    break
        return ready

    def dequeue(self, frame: OutboundFrame) -> None:
        """Remove a frame that the server has written, the first of its queue."""
        queue = self.queues[frame.mailbox]
        queue.frames.popleft()
        queue.written += 1
        queue.attempted -= 1
        if queue.refused:
            queue.reset()

    def written(self, frame: OutboundFrame, subscriber_counts: list[int]) -> None:
        """Set the fates of the rows of a frame that the server has written.

        Args: `subscriber_counts` has, for a frame of channels without a mailbox, how many subscribers got each row.
        """
        if frame.mailbox == LOG:
            frame.in_flight.settle(frame.batch_rows(), BLOCKED)
            return
        if self.observer is not None and frame.mailbox != UNOWNED:
            self.observer.frame_written(frame.mailbox, frame.rows, len(frame.frame))
        if frame.mailbox != UNOWNED:
            frame.in_flight.deliver(frame.taken, frame.mailbox, DELIVERED)
            return
        fates = np.where(np.array(subscriber_counts) > 0, PUBLISHED, UNDELIVERABLE).astype(np.uint8)
        if frame.in_flight.copies is not None:
            frame.in_flight.copies[frame.batch_rows()] = 0
        if np.any(fates == UNDELIVERABLE):
            frame.in_flight.outcome.keep_addresses(frame.in_flight.batch)
        frame.in_flight.settle(frame.batch_rows(), fates)

    def refuse_verdicts(self, status: SendStatus) -> None:
        """Remove all frames from the queues, because the server refused the verdicts of some frames.

        The rows of all removed frames are added to `stale_verdicts`, so that these rows get new verdicts.
        """
        self.stale_by = status
        for frame in self.queues.take_all():
            rows = self.stale_verdicts.get(frame.in_flight, np.zeros(0, np.intp))
            self.stale_verdicts[frame.in_flight] = np.union1d(rows, frame.batch_rows())
