"""The frame sender, which writes frames into mailboxes, with one call for all frames that are ready."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from ray_messaging.addressing.directory import Directory, Routes
from ray_messaging.common.backoff import FENCE_RETRY, REFUSED_CALL_RETRY, Backoff
from ray_messaging.errors import (
    Closed,
    ConfigError,
    ConnectionFailed,
    Fenced,
    MailboxFull,
    MessagingError,
    PayloadMismatch,
    PayloadTooLarge,
    TransitError,
)
from ray_messaging.model.batch import Batch
from ray_messaging.observability.observer import Observer
from ray_messaging.sending import send_errors
from ray_messaging.sending.destination import OF_VERDICTS, Destination, MailboxQueue
from ray_messaging.sending.frame_router import UNOWNED, OutboundFrame
from ray_messaging.sending.schema_checks import check_batches
from ray_messaging.transports.transport_values import (
    LOG,
    WRITTEN,
    Conclusion,
    FrameFate,
    SendReply,
    SendRequest,
    SendStatus,
    lost,
)

if TYPE_CHECKING:
    from ray_messaging.transports.transport import RedisTransport

logger = logging.getLogger(__name__)

# When at least 64 mailboxes are gone, their sequence numbers are deleted, in calls of at most 1,000 numbers each.
_GONE, _MOST_FIELDS = 64, 1_000
# Statuses with which the server refuses the sender, and not only its frames.
_OF_THE_SENDER = (SendStatus.FENCED, SendStatus.LOST, SendStatus.RESTORED)
_LARGE = 16 * 2**10  # a refused frame below this size is sent again without asking whether there is room for it
# How many calls may be under way to a near server and to a far server, and how many bytes may be under way when one
# more call is made. So many bytes suffice for a link of 100 MB/s with a round trip of 80 ms. A near server carries out
# one call while another one waits there. More calls would only take memory.
_NEAR_CALLS, _FAR_CALLS, _WINDOW_BYTES = 2, 16, 8 * 2**20
# If a reply takes more seconds than this, the network or the server is slow. Then no further call is made while a call
# is under way, because with more bytes under way, calls would only exceed their timeout.
_SLOW_S = 0.5
# A server is far if each of the last `_TRIPS` calls took at least _FAR_S seconds, plus _BYTE_S for each byte that was
# under way. While a call to a far server is under way, another call sends a part of the open batch. A near server
# replies so soon that such a call would save too little time for the processor time that it costs.
_FAR_S, _BYTE_S, _TRIPS = 0.004, 1.5e-9, 32


class CallUnderWay(NamedTuple):
    """A call whose reply was not processed yet. `alone` is true if the call began while no other call was under way."""

    frames: list[OutboundFrame]
    nbytes: int
    began: float  # the loop time at which the call was made
    alone: bool
    reply: asyncio.Task[SendReply]


class FrameSender(Destination):
    """The mailboxes as the destination of one sender. The sender's frames wait here until the server has written them.

    A retry repeats the same bytes under the same sequence number. If the outcome of a call stays unknown, the sends
    raise OutcomeUnknown. Before anything else is sent, a higher epoch is claimed, so that the server refuses the old
    frames. Several calls may be under way. The server accepts frames only in the order of their numbers, so after a
    refused frame it refuses the later frames of the same mailbox. After a refusal, the sender waits for the replies to
    all calls under way. Then it repeats the frames that were not written, at first in one call.
    """

    def __init__(
        self,
        transport: "RedisTransport",
        directory: Directory,
        sender: str,
        keep_s: float,
        *,
        mirror: bool,
        observer: Observer | None = None,
    ) -> None:
        super().__init__(transport, sender, directory.routing, directory.schemas, mirror=mirror, observer=observer)
        self.epoch = 0
        self.transactions = 0  # how many transactions the server has committed, as far as this process knows
        # For the last call with publications before this sender claimed its epoch: how many subscribers got each
        # publication. The server told this when the epoch was claimed.
        self.subscriber_counts: list[int] = []
        self.fenced: Fenced | None = None  # the error because of which nothing can be sent any more
        self.behind = False  # whether the server has lost a transaction that it had confirmed
        self.attempted = False  # whether the outcome of a call is unknown: the server may have written its frames
        self.calls: deque[CallUnderWay] = deque()  # the calls that `send` has left under way, the oldest first
        # A function that is called when the reply to a call under way has arrived.
        self.replied: Callable[[], None] = lambda: None
        # While more bytes than this are under way, no further call is made. The number grows with each quick reply, and
        # is 0 again after a slow reply or a refusal.
        self._window = 0
        # How long the latest calls took, in s, less _BYTE_S for each byte that was under way. `far_s` is the least of
        # these times if the server is far, otherwise 0.
        self._trips = deque[float](maxlen=_TRIPS)
        self.far_s = 0.0
        self.called_at = 0.0  # the loop time of the last call that `send` has left under way
        self._some_refused = False  # whether the first frame of some queue may have been refused
        self.directory = directory
        self._keep_s = keep_s
        self._first_epoch = asyncio.Lock()
        # The loop time at which to claim a higher epoch. None: this is not needed, because no old call can still arrive
        # at the server.
        self._fence_at: float | None = None
        self._directory_stale = False  # whether the server has a later version of the directory
        self._refusals = 0  # how many successive calls the server has refused as a whole
        self._refused_until = 0.0  # the loop time until which nothing is sent
        self._backoff = Backoff(REFUSED_CALL_RETRY)

    @property
    def routes(self) -> Routes:
        """Return which mailboxes each message goes to.

        If no call is under way, these are the routes of the newest directory of mailboxes that this process has. If
        calls are under way, these are the routes by which the calls' frames were made. If they are out of date, the
        server refuses the calls, and the frames are made again once no call is under way.
        """
        return self.router.routes if self.calls else self.directory.routing

    async def reload(self) -> None:
        """Load the directory as `refresh` does, and delete the empty queues of mailboxes that are gone.

        If many mailboxes are gone, also delete their last sequence numbers.
        """
        await self.refresh()
        for mailbox in filter(self._is_gone, list(self.queues)):
            self.queues.drop(mailbox)
        if self.epoch:
            await self._forget_gone()

    async def refresh(self) -> None:
        """Load the changes of the directory of mailboxes. The next send makes new frames of queued rows."""
        self.directory.update(*await self.transport.load_directory(self.directory.version))

    def _is_gone(self, mailbox: str) -> bool:
        return mailbox not in {UNOWNED, LOG} and mailbox not in self.directory.records

    async def _forget_gone(self) -> None:
        """When many mailboxes are gone, delete their last sequence numbers, here and on the server."""
        gone = list(filter(self._is_gone, self.queues.dropped()))
        if len(gone) < _GONE:
            return
        # By a mailbox's last number, the server refuses a frame that arrives twice. Without this number, the server
        # would accept such a frame if a new mailbox had the old name. With a higher epoch, it refuses all old frames.
        await self.take_epoch()
        for low in range(0, len(gone), _MOST_FIELDS):
            some = gone[low : low + _MOST_FIELDS]
            await self.transport.forget(self.sender, self.epoch, some)
            self.queues.forget(some)

    # -- epochs ---------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Claim the first epoch, unless this sender has one.

        The server then refuses an earlier sender of the same name.
        """
        async with self._first_epoch:
            if self.epoch == 0:
                await self.take_epoch()

    async def fence(self) -> None:
        """Make the server refuse frames that may still arrive there after their sends have raised OutcomeUnknown.

        Claim a higher epoch: the server refuses frames of lower epochs. Do nothing if no such frame can arrive.
        """
        if self._fence_at is not None:
            await self.take_epoch()

    async def take_epoch(self) -> None:
        """Claim a higher epoch, the number under which this sender sends; the server refuses calls with lower ones.

        Also read which frames and transactions the server has written. If the server does not answer, it may have a
        higher epoch than this process knows. So this is called again before anything is sent.

        Raises: Fenced if another sender has our name.
        """
        confirmed = self.transactions
        if self.epoch:
            self._fence_at = asyncio.get_running_loop().time()
        try:
            state = await self.transport.take_sender_epoch(self.sender, keep_s=self._keep_s, held=self.epoch or None)
        except Fenced as error:
            self.fenced, self._fence_at = error, None
            raise
        self.epoch, self._fence_at = state.epoch, None
        self.transactions, self.subscriber_counts = state.transactions, state.takers
        self.queues.written = dict(state.last)
        for mailbox, queue in list(self.queues.items()):
            last = state.last.get(mailbox, 0)
            # If the reply to a call was lost, the call's frames are still the first frames of their queues.
            for _ in range(min(last - queue.written, queue.attempted)):
                self.written(queue.frames.popleft(), state.takers)
            queue.written, queue.attempted = last, 0
        self.behind |= self.transactions < confirmed

    # -- sending --------------------------------------------------------------------------------------------------

    async def check(self, batches: Sequence[Batch]) -> int:
        """Check batches by the schemas that this process knows. If one fails, load the current schemas and check again.

        Returns: the version of the schemas by which the batches were checked.
        Raises: PayloadMismatch if a schema refuses a payload.
        """
        if self.schemas.version:
            try:
                check_batches(self.schemas, batches)
            except (PayloadMismatch, ConfigError):
                await self.refresh()
                check_batches(self.schemas, batches)
        return self.schemas.version

    @property
    def retry_at(self) -> float | None:
        """Return the loop time at which `send` must be called again to repeat frames or to claim a higher epoch.

        Return None if there is no such time, or if calls are under way, because each reply leads to a call of `send`.
        """
        if self.calls:
            return None
        queued = min((queue.retry_at for queue in self.queues.values() if queue.frames), default=None)
        if queued is not None:
            queued = max(queued, self._refused_until)
        return min((time for time in (queued, self._fence_at) if time is not None), default=None)

    @property
    def has_room(self) -> bool:
        """Return whether one more call may be made while calls are under way."""
        most = _FAR_CALLS if self.far_s else _NEAR_CALLS
        return not self.calls or (len(self.calls) < most and self._bytes_under_way() <= self._window)

    async def send(self, *, ahead: bool = False) -> None:
        """Write all frames that can be written now; raise Fenced if another sender has our name.

        Args: With `ahead`, calls are made while there is room, and `send` returns before their replies. The next `send`
        processes the replies that have come by then.
        """
        try:
            ahead = ahead and self._is_calm()
            if self.calls:
                await self._take_replies(all_of_them=not ahead)
            if ahead:
                # `reroute` does nothing while calls are under way. Otherwise it may make new frames. If the event log
                # must get the sets of agents that these frames name first, `_is_calm` returns False below.
                self.reroute()
            if ahead and self._is_calm():
                self._call_ahead()
                return
            if self._fence_at is not None:
                await self.take_epoch()
            if self._some_refused:
                await self._look_for_room()
            while not self.stale_verdicts and self._refused_until <= asyncio.get_running_loop().time():
                if self._directory_stale:
                    await self.reload()
                    self._directory_stale = False
                # The receiving part of the messager may have reloaded the directory, so that queued frames have old
                # routes.
                self.reroute()
                ready = self.next_call()
                if not ready:
                    break
                reply = await self.exchange(ready, ready[0].verdict_epoch)
                await self._process([(ready, reply)])
                self.attempted = False
        except (TransitError, ConfigError, Closed) as error:
            self.lose(error)

    # -- calls under way ------------------------------------------------------------------------------------------

    def _is_calm(self) -> bool:
        """Return whether no refused frame waits, and nothing else must be done before the next call."""
        refused = self._some_refused or self._refusals or self.stale_verdicts or self._directory_stale
        return not refused and self._fence_at is None and not self.router.unkept

    def _bytes_under_way(self) -> int:
        return sum(call.nbytes for call in self.calls)

    def _call_ahead(self) -> None:
        while self.has_room and (ready := self.next_call()):
            began = self.called_at = asyncio.get_running_loop().time()
            call = self._call(ready, ready[0].verdict_epoch, earlier_bytes=self._bytes_under_way())
            reply = asyncio.create_task(call, name="ray_messaging send")
            reply.add_done_callback(self._has_replied)
            nbytes = sum(frame.nbytes for frame in ready)
            self.calls.append(CallUnderWay(ready, nbytes, began, not self.calls, reply))
            self.attempted = True

    def _has_replied(self, reply: "asyncio.Task[SendReply]") -> None:
        if not reply.cancelled():
            # Without this call, asyncio would log an error of the reply if sending stops before the reply is processed.
            reply.exception()
            self.replied()

    async def _take_replies(self, *, all_of_them: bool) -> None:
        """Process the replies to calls under way, in order: those that have arrived, or with `all_of_them` all."""
        while self.calls and (all_of_them or self.calls[0].reply.done()):
            await asyncio.wait((self.calls[0].reply,))
            if not self._take_first():
                await self._take_refusal()
                return

    def take_arrived(self) -> None:
        """Process the replies that have arrived, in order, up to the first call that has failed or has no reply yet.

        It must not be called while `send` runs.
        """
        while self.calls and self.calls[0].reply.done() and self._take_first():
            pass

    def _take_first(self) -> bool:
        """Process the reply to the first call under way.

        If the call has failed, or the server has refused one of its frames, do nothing and return False.
        """
        call = self.calls[0]
        if call.reply.exception() is not None or not call.reply.result().all_written:
            return False
        self.calls.popleft()
        late = asyncio.get_running_loop().time() - call.began > _SLOW_S
        self._window = 0 if late else min(self._window + call.nbytes, _WINDOW_BYTES)
        self._take_written(call.frames, call.reply.result())
        self.attempted = bool(self.calls)
        return True

    async def _take_refusal(self) -> None:
        """Wait for the replies to all calls under way, the first of which failed or was refused, and process them.

        Raises: the error of a failed call, if one has failed. If several have failed, this is the first error after
        which it is unknown whether the server has written the frames, or else the first error.
        """
        await asyncio.wait([call.reply for call in self.calls])
        calls, self._window = [*self.calls], 0
        self.calls.clear()
        errors = [error for call in calls if (error := call.reply.exception()) is not None]
        replied = [(call.frames, call.reply.result()) for call in calls if call.reply.exception() is None]
        if errors:
            for frames, reply in replied:
                self._take_written(frames, reply)
            unknown = [error for error in errors if not _is_unsent(error)]
            late = any(reply.repeated and not reply.all_written for _, reply in replied)
            if late and not unknown:
                # The server refused a repeated call, but another copy of this call may still arrive. With a higher
                # epoch, the server refuses this copy, too.
                await self.take_epoch()
            self.attempted = bool(unknown)
            raise [*unknown, *errors][0]
        await self._process(replied, alone=calls[0].alone)
        self.attempted = False

    async def _look_for_room(self) -> None:
        """Ask the server whether it has room now for refused large frames, because sending them in vain takes long."""
        self._some_refused = any(queue.refused for queue in self.queues.values())
        for queue in self.queues.refused(asyncio.get_running_loop().time()):
            head = queue.frames[0]
            if len(head.frame) < _LARGE:  # for a channel without a mailbox, or for log notes, `frame` is empty
                continue
            why = await self.transport.still_full(head.mailbox, head.rows, len(head.frame))
            if why is not None:
                self._try_later(queue, why)

    async def exchange(
        self, frames: list[OutboundFrame], verdict_epoch: int, conclusion: Conclusion | None = None
    ) -> SendReply:
        """Make one call with numbered frames.

        If the call was repeated because no reply came, its first copy may still reach the server. In this case
        `self.attempted` is still True when this method returns. The caller must process the reply, and then set
        `self.attempted` to False.
        """
        if self.router.unkept:
            await self.keep_agents()
        self.attempted = True
        reply = await self._call(frames, verdict_epoch, conclusion)
        self.attempted = reply.repeated
        return reply

    async def _call(
        self,
        frames: list[OutboundFrame],
        verdict_epoch: int,
        conclusion: Conclusion | None = None,
        *,
        earlier_bytes: int = 0,
    ) -> SendReply:
        """Make one call. Args: `earlier_bytes` is the size of the calls that are under way before it."""
        began = time.perf_counter()
        reply = await self.transport.send(
            SendRequest(self.sender, self.epoch, self.router.routes.version, verdict_epoch, frames, conclusion)
        )
        took_s = time.perf_counter() - began
        self._trips.append(took_s - _BYTE_S * (earlier_bytes + sum(frame.nbytes for frame in frames)))
        least_s = min(self._trips)
        self.far_s = least_s if least_s >= _FAR_S else 0.0
        if self.observer is not None:
            self.observer.call_made(len(frames), took_s)
        return reply

    async def _process(self, calls: Sequence[tuple[list[OutboundFrame], SendReply]], *, alone: bool = True) -> None:
        """Process the replies to calls that were under way at the same time, in order.

        If the server refused several calls, only the cause of the first refusal is removed, and then all refused frames
        are sent again. But if the server refuses the sender itself, this refusal is processed in place of the first.

        Args: `alone` is true if the first of these calls was made while no earlier call was under way.
        """
        for frames, reply in calls:
            self._take_written(frames, reply)
        failed = [(frames, reply) for frames, reply in calls if not reply.all_written]
        if not failed:
            return
        sent, reply = next((each for each in failed if each[1].status in _OF_THE_SENDER), failed[0])
        reply.repeated = any(other.repeated for _, other in failed)
        if not alone or reply is not calls[0][1]:
            # The fate GAP means that the server lacked an earlier frame. Perhaps that frame was in another call, which
            # arrived after this one. If the server has lost that frame, the reply to the next call shows this, because
            # no other call is under way then.
            reply.fates = [FrameFate.HELD_BACK if fate is FrameFate.GAP else fate for fate in reply.fates]
        await self.settle_refusal(reply, [frame for frames, _ in failed for frame in frames])
        if reply.status in _OF_THE_SENDER:
            self._back_off(reply.status)
            return
        for frames, _ in failed:
            for frame in frames:
                self.queues[frame.mailbox].attempted = 0
        passing = {*WRITTEN, FrameFate.HELD_BACK}
        refused = [each for each in zip(sent, reply.fates, strict=True) if each[1] not in passing]
        await self._prepare_next(reply.status, refused)

    def _take_written(self, frames: list[OutboundFrame], reply: SendReply) -> None:
        """Take the frames that the server has written out of their queues, and set the fates of their rows.

        If the server has written a frame, it has also written all earlier frames of the mailbox, even if their call got
        no reply.
        """
        written = False
        # If the server refuses the sender, the reply has no fates.
        for frame, fate in zip(frames, reply.fates, strict=False):
            if fate in WRITTEN:
                written, queue = True, self.queues[frame.mailbox]
                while queue.written < frame.seq:
                    head = queue.frames[0]
                    self.dequeue(head)
                    self.written(head, reply.takers)
        if written and self._refusals:
            self._refusals, self._refused_until = 0, 0.0
            self._backoff.reset()

    async def settle_refusal(self, reply: SendReply, sent: list[OutboundFrame]) -> None:
        """After a refused call, make sure that the server will not accept a delayed copy of this call.

        If a copy may still reach the server, claim a higher epoch, and read which frames the server has written.

        Raises: Fenced if another sender has our name, or if the server has lost our data.
        """
        if reply.status in (SendStatus.FENCED, SendStatus.LOST):
            self.fenced = self._end(reply, sent)
            raise self.fenced
        if reply.status is SendStatus.RESTORED:
            await self._recover()
            return
        gap = FrameFate.GAP in reply.fates
        if gap:
            logger.error(
                "the server has lost messages that it had stored for %s: was it restored from older data?", self.sender
            )
        if gap or reply.repeated:
            # With a higher epoch the server refuses delayed copies of the call. With the old epoch, the server could
            # accept a frame of such a copy, because the server has lost the frame's number, or because another frame
            # has this number now.
            await self.take_epoch()

    async def _prepare_next(self, status: SendStatus, refused: list[tuple[OutboundFrame, FrameFate]]) -> None:
        """Remove the cause of a refusal, or wait until it is gone. Fail frames that can never be written."""
        if status is SendStatus.STALE_DIRECTORY:
            self._directory_stale = True
            self._back_off(status)
        elif status in OF_VERDICTS:
            self.refuse_verdicts(status)
        elif gone := {frame.mailbox for frame, fate in refused if fate is FrameFate.GONE}:
            await self.reload()
            self.reroute(again=True)
            for queue in [self.queues[mailbox] for mailbox in gone & self.queues.keys()]:
                if queue.frames:  # the mailbox is still in the directory
                    self._try_later(queue, FrameFate.GONE)
        else:
            for frame, fate in refused:
                queue = self.queues[frame.mailbox]
                # A frame that is not the first of its queue was refused only because an earlier frame was refused.
                if queue.frames and queue.frames[0] is frame:
                    self._process_refused(queue, status, fate)

    def _process_refused(self, queue: MailboxQueue, status: SendStatus, fate: FrameFate) -> None:
        frame = queue.frames[0]
        if status is SendStatus.UNJUDGED:
            queue.frames.popleft()
            frame.in_flight.fail(frame.batch_rows(), send_errors.no_verdicts())
        elif fate is FrameFate.TOO_LARGE:
            queue.frames.popleft()
            frame.in_flight.fail(frame.batch_rows(), self.too_large(frame))
        else:
            self._try_later(queue, fate)

    def _try_later(self, queue: MailboxQueue, why: FrameFate) -> None:
        """Set a pause after which a queue's refused first frame is sent again.

        Fail frames whose deadline has passed.
        """
        now = asyncio.get_running_loop().time()
        self._fail_late(queue, why, now)
        queue.back_off(now)
        self._some_refused = True

    def _back_off(self, why: SendStatus) -> None:
        """After a call that was refused as a whole, fail frames whose deadline has passed.

        After the second such call in succession, and after each further one, pause.
        """
        now = asyncio.get_running_loop().time()
        self._refusals += 1
        if self._refusals > 1:
            self._refused_until = now + self._backoff.next_pause()
        for queue in self.queues.values():
            self._fail_late(queue, why, now)

    def _fail_late(self, queue: MailboxQueue, why: FrameFate | SendStatus, now: float) -> None:
        for frame in queue.take_late(now):
            error = send_errors.refused(frame, why)
            frame.in_flight.fail(frame.batch_rows(), error)

    def too_large(self, frame: OutboundFrame) -> PayloadTooLarge:
        """Build the error for a frame that its mailbox could not hold even if the mailbox were empty."""
        record = self.directory.records.get(frame.mailbox)
        # The record does not have the mailbox's limit of bytes. The record's `frame_bytes` is at most a quarter of the
        # limit, unless that is below 1024: then `frame_bytes` is 1024.
        return send_errors.too_large(frame, 0 if record is None else 4 * record.frame_bytes)

    # -- failures -------------------------------------------------------------------------------------------------

    async def _recover(self) -> None:
        """Continue after the server was restored from a backup that is older than this sender."""
        logger.error(
            "the server has lost all that %s has sent since it was opened: was the server restored from older data?",
            self.sender,
        )
        await self.take_epoch()
        await self.reload()
        self.router.forget_kept()
        self.reroute(again=True)

    def _end(self, reply: SendReply, frames: list[OutboundFrame]) -> Fenced:
        """Stop for good, because another sender has our name or the server has lost our data; return the error.

        If the call was repeated, an earlier copy of the call may have written the frames, so their outcome is unknown.
        """
        for frame in frames if reply.repeated else ():
            frame.in_flight.fail(frame.batch_rows(), send_errors.taken_over())
        self.attempted = False
        error = (send_errors.fenced if reply.status is SendStatus.FENCED else lost)(self.sender, self.epoch)
        self.abandon(error)
        return error

    def lose(self, cause: TransitError | ConfigError | Closed) -> MessagingError:
        """Fail all frames, because the server cannot be reached or its memory is full.

        Returns: the error that the frames get. It is `cause` if the server has certainly written nothing, otherwise
        OutcomeUnknown.
        """
        if self.attempted and not _is_unsent(cause):
            self._fence_at = asyncio.get_running_loop().time()
            error: MessagingError = send_errors.unknown(cause)
        else:
            error = cause  # the server has written none of these frames
        self.attempted = False
        if self._fence_at is not None:
            self._fence_at = asyncio.get_running_loop().time() + FENCE_RETRY.first_s
        self.abandon(error)
        return error

    def abandon(self, error: MessagingError) -> None:
        """Fail all frames. The outcome of frames in calls under way is unknown."""
        for call in self.calls:
            call.reply.cancel()
        self.calls.clear()
        if self.attempted:
            self.attempted, self._fence_at = False, asyncio.get_running_loop().time()
            for queue in self.queues.values():
                for frame in islice(queue.frames, queue.attempted):
                    frame.in_flight.fail(frame.batch_rows(), send_errors.cut_off(error))
        stale, self.stale_verdicts = self.stale_verdicts, {}
        for in_flight, rows in stale.items():
            in_flight.fail(rows, error)
        for frame in self.queues.take_all():
            frame.in_flight.fail(frame.batch_rows(), error)


def _is_unsent(error: BaseException) -> bool:
    """Return whether an error says that the server has written nothing."""
    return isinstance(error, MailboxFull) or (isinstance(error, ConnectionFailed | Closed) and error.unsent)
