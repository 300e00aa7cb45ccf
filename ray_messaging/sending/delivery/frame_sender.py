"""Write crates into mailboxes: one call for all that may go."""

import asyncio
import logging
from itertools import islice

import numpy as np

from ray_messaging.addressing.directory import Directory
from ray_messaging.errors import (
    Closed,
    ConfigError,
    ConnectionFailed,
    Fenced,
    MailboxFull,
    MessagingError,
    PayloadTooLarge,
    TransitError,
)
from ray_messaging.sending import send_errors as refusals
from ray_messaging.sending.delivery.delivered import DeliveryRecorder
from ray_messaging.sending.delivery.frame_router import UNOWNED, FrameRouter, OutboundFrame
from ray_messaging.sending.delivery.in_flight_batch import InFlightBatch, Rows
from ray_messaging.sending.delivery.mailbox_queues import MailboxQueue, MailboxQueues
from ray_messaging.transports.base import (
    LOG,
    Conclusion,
    FrameFate,
    FrameWrite,
    SendReply,
    SendRequest,
    SendStatus,
    Transport,
    lost,
)

logger = logging.getLogger(__name__)

_FENCE_PAUSE_S = 1.0
_GONE, _MOST_FIELDS = 64, 1_000  # mailboxes that are gone are forgotten together, so many, and in calls of so many
_LARGE = 16 * 2**10  # bytes of a frame: a smaller one takes no longer than a question about it


class FrameSender:
    """Ship crates under one sender's name.

    A retry repeats the same bytes under the same seq. Where an outcome stays unknown, whoever waits is told so, and a
    higher epoch is taken before anything else is sent, so that the old frame can never come after that.
    """

    def __init__(
        self, transport: Transport, directory: Directory, cutter: FrameRouter, sender: str, keep_s: float
    ) -> None:
        self.sender = sender
        self.epoch = 0
        self.transactions = 0  # that the server has, as far as we were told
        self._takers: list[int] = []  # of the last publications, as of the last epoch
        self._transport = transport
        self._directory = directory
        self._cutter = cutter
        self._keep_s = keep_s
        self._lanes = MailboxQueues()
        self._fates = DeliveryRecorder(transport, directory, cutter, self._lanes)
        self._first_epoch = asyncio.Lock()
        self._attempted = False
        self._fence_at: float | None = None  # loop time; None: nothing of ours can still come
        self._cut_by = -1  # the directory's version by which what waits was cut
        self.stale_verdicts: dict[InFlightBatch, Rows] = {}

    async def reload(self) -> None:
        """Take over what changed in the directory; all of it where the server has an older one than we know."""
        delta = await self._transport.load_directory(self._directory.version)
        if delta.version < self._directory.version:
            delta = await self._transport.load_directory(-1)
        self._directory.update(*delta)
        for mailbox in filter(self._is_gone, list(self._lanes)):
            self._lanes.forget(mailbox)
        if self.epoch:
            await self._forget_gone()

    def _is_gone(self, mailbox: str) -> bool:
        return mailbox not in {UNOWNED, LOG} and mailbox not in self._directory.records

    async def _forget_gone(self) -> None:
        """Have the server forget what it had of mailboxes that are gone, some at a time: others come for ever."""
        gone = list(filter(self._is_gone, self._lanes.idle()))
        if len(gone) < _GONE or not self._transport.forgets:
            return
        await self._fence()  # a frame that still comes late must not find its seq free, where a name comes again
        for low in range(0, len(gone), _MOST_FIELDS):
            some = gone[low : low + _MOST_FIELDS]
            await self._transport.forget(self.sender, self.epoch, some)
            self._lanes.unlearn(some)

    async def leave(self, keep_s: float) -> None:
        """Have the server forget this sender, which sends no more, after so long."""
        if self.epoch:
            await self._transport.leave(self.sender, self.epoch, keep_s=keep_s)

    # -- epochs ---------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Take the first epoch, unless there is one: whoever sent under this name before is fenced."""
        async with self._first_epoch:
            if self.epoch == 0:
                await self._fence()

    @property
    def unfenced(self) -> bool:
        """Tell whether a frame may still come of which whoever waited was told that its outcome is unknown."""
        return self._fence_at is not None

    async def fence(self) -> None:
        """Take a higher epoch if a frame of ours may still come: then it cannot."""
        if self.unfenced:
            await self._fence()

    async def _fence(self) -> None:
        """Take a higher epoch, and learn from the server what it has by now."""
        state = await self._transport.take_sender_epoch(self.sender, keep_s=self._keep_s, held=self.epoch or None)
        self.epoch, self._fence_at = state.epoch, None
        self.transactions, self._takers = state.transactions, state.takers
        self._lanes.learn(state.last)
        for mailbox, lane in list(self._lanes.items()):
            last = state.last.get(mailbox, 0)
            # A lost answer's frames are at the head of their lane.
            for _ in range(min(last - lane.written, lane.tried)):
                self._fates.arrived(lane.crates.popleft(), state.takers)
            lane.written, lane.tried = last, 0

    # -- shipping -------------------------------------------------------------------------------------------------

    def load(self, posting: InFlightBatch, rows: Rows | None, verdicts: int, deadline: float) -> None:
        """Cut rows of a posting (None: all) and queue their crates; `verdicts` is the epoch of who passed them."""
        self._follow()
        for crate in self._cutter.cut(posting, rows, verdicts, deadline):
            self._lanes.queue(crate)

    def _follow(self) -> None:
        """Cut anew what was cut by an older directory: the receiving side reloads it, too."""
        if self._cut_by != self._directory.version:
            self._recut()

    @property
    def retry_at(self) -> float | None:
        """Return when there is something to try again (loop time); None: nothing waits."""
        times = [time for time in (self._lanes.retry_at, self._fence_at) if time is not None]
        return min(times, default=None)

    async def ship(self) -> None:
        """Write all that can be written now; raises Fenced."""
        try:
            await self.fence()
            if refused := self._lanes.refused(asyncio.get_running_loop().time()):
                await self._look_for_room(refused)
            while not self.stale_verdicts and (ready := self._ready()):
                await self._call(ready)
        except MailboxFull as error:  # the whole server is: nothing of this was taken
            self._attempted = False
            self.abandon(error)
        except (TransitError, ConfigError, Closed) as error:
            self._lose(error)

    async def _look_for_room(self, refused: list[MailboxQueue]) -> None:
        """Have refused frames wait on while there is no room for them: to offer large ones takes the server's time."""
        for lane in refused:
            head = lane.crates[0]
            if len(head.frame) < _LARGE:  # so are those that only publish, or tell the log
                continue
            why = await self._transport.still_full(head.mailbox, head.count, len(head.frame))
            if why is not None:
                self._hold(lane, why)

    async def _call(self, ready: list[tuple[OutboundFrame, int]]) -> None:
        for crate, _ in ready:
            self._lanes[crate.mailbox].tried += 1
        reply = await self._exchange(ready, ready[0][0].verdicts)
        await self._take(reply, [crate for crate, _ in ready])
        self._attempted = False

    async def _exchange(
        self, crates: list[tuple[OutboundFrame, int]], verdicts: int, conclusion: Conclusion | None = None
    ) -> SendReply:
        """Make a call of crates with their seqs; until the reply is dealt with, an attempt may be on its way."""
        shipments = [
            FrameWrite(crate.mailbox, seq, crate.count, crate.frame, crate.publish, crate.noted, crate.batch)
            for crate, seq in crates
        ]
        version = self._directory.version
        self._attempted = True
        return await self._transport.send(
            SendRequest(self.sender, self.epoch, version, verdicts, shipments, conclusion)
        )

    def _ready(self) -> list[tuple[OutboundFrame, int]]:
        """Return the crates of the next call with their seqs: all under the verdicts of one interceptor."""
        self._follow()
        return self._lanes.ready(asyncio.get_running_loop().time())

    async def _take(self, reply: SendReply, crates: list[OutboundFrame]) -> None:
        if reply.status in (SendStatus.FENCED, SendStatus.LOST):
            raise self._fenced(reply, crates)
        if reply.status is SendStatus.RESTORED:
            await self._heal(reply)
            return
        refused: list[tuple[OutboundFrame, FrameFate]] = []
        for crate, fate in zip(crates, reply.fates, strict=True):
            lane = self._lanes[crate.mailbox]
            if fate in (FrameFate.WRITTEN, FrameFate.DUPLICATE):
                lane.took()
                self._fates.arrived(crate, reply.takers)
            else:
                refused.append((crate, fate))
        if FrameFate.GAP in reply.fates:
            logger.error("the server lost messages that it had taken from %s: was it restored?", self.sender)
        if FrameFate.GAP in reply.fates or (refused and reply.repeated):
            # An attempt that is still on its way must not find its seq free, nor its crate changed.
            await self._fence()
        for crate, _ in refused:
            self._lanes[crate.mailbox].tried = 0
        await self._settle_refused(reply.status, refused)

    async def _settle_refused(self, status: SendStatus, refused: list[tuple[OutboundFrame, FrameFate]]) -> None:
        if status is SendStatus.STALE_DIRECTORY or any(fate is FrameFate.GONE for _, fate in refused):
            await self.reload()
            self._recut()
        elif status is SendStatus.STALE_VERDICTS:
            for crate in self._lanes.unload():
                rows = self.stale_verdicts.get(crate.posting, np.zeros(0, np.intp))
                self.stale_verdicts[crate.posting] = np.union1d(rows, crate.rows_of_posting())
        else:
            for crate, fate in refused:
                lane = self._lanes[crate.mailbox]
                if not lane.crates or lane.crates[0] is not crate:
                    continue  # it waits behind another one
                if status is SendStatus.UNJUDGED:
                    lane.crates.popleft()
                    crate.posting.fail(crate.rows_of_posting(), refusals.unjudged())
                elif fate in (FrameFate.FULL, FrameFate.LOG_FULL):
                    self._hold(lane, fate)
                elif fate is FrameFate.TOO_LARGE:
                    lane.crates.popleft()
                    crate.posting.fail(crate.rows_of_posting(), self.too_large(crate))

    async def _heal(self, reply: SendReply) -> None:
        """Go on with a server that is as it was before we took our epoch, by what it has now."""
        logger.error("the server lost what %s had sent since it began: was it restored from older data?", self.sender)
        self._attempted = reply.repeated
        await self._fence()
        await self.reload()
        self._recut()

    def _fenced(self, reply: SendReply, crates: list[OutboundFrame]) -> Fenced:
        """Give up for good: the name has a successor, or the server lost it; an earlier attempt may have been taken."""
        for crate in crates if reply.repeated else ():
            crate.posting.fail(crate.rows_of_posting(), refusals.taken_over())
        self._attempted = False
        error = (refusals.fenced if reply.status is SendStatus.FENCED else lost)(self.sender, self.epoch)
        self.abandon(error)
        return error

    def _hold(self, lane: MailboxQueue, fate: FrameFate) -> None:
        """Wait for room in a full mailbox, or for the log; give up on crates whose time is over."""
        now = asyncio.get_running_loop().time()
        while lane.crates and lane.crates[0].deadline <= now:
            late = lane.crates.popleft()
            error = refusals.full(late, log=fate is FrameFate.LOG_FULL)
            late.posting.fail(late.rows_of_posting(), error if late.told is None else refusals.untold(error))
        lane.wait(now)

    def too_large(self, crate: OutboundFrame) -> PayloadTooLarge:
        """Build the error for a crate that its mailbox can never take."""
        limit = self._transport.largest_frame
        if limit is not None:
            return refusals.above_the_servers_limit(crate, limit)
        record = self._directory.records.get(crate.mailbox)
        return refusals.too_large(crate, 0 if record is None else 4 * record.frame_bytes)  # as its frames are cut

    def _recut(self) -> None:
        """Cut anew by the new directory what has not been written."""
        self._cut_by = self._directory.version
        # Rows of one posting may have passed under several interceptors, and at several times.
        found: dict[tuple[InFlightBatch, int, float], list[Rows]] = {}
        for crate in self._lanes.unload():
            key = (crate.posting, crate.verdicts, crate.deadline)
            found.setdefault(key, []).append(crate.rows_of_posting())
        for (posting, verdicts, deadline), rows in found.items():
            self.load(posting, np.unique(np.concatenate(rows)), verdicts, deadline)

    def _lose(self, cause: TransitError | ConfigError | Closed) -> MessagingError:
        """Give up, as the server cannot be asked what it has; return what those who wait are told."""
        if self._attempted and not (isinstance(cause, ConnectionFailed | Closed) and cause.unsent):
            self._fence_at = asyncio.get_running_loop().time()
            error: MessagingError = refusals.unknown(cause)
        else:
            error = cause  # the server never got these
        self._attempted = False
        if self.unfenced:
            self._fence_at = asyncio.get_running_loop().time() + _FENCE_PAUSE_S
        self.abandon(error)
        return error

    def abandon(self, error: MessagingError) -> None:
        """Give everybody whose messages wait the error; what is on its way right now has an unknown outcome."""
        if self._attempted:
            self._attempted, self._fence_at = False, asyncio.get_running_loop().time()
            for lane in self._lanes.values():
                for crate in islice(lane.crates, lane.tried):
                    crate.posting.fail(crate.rows_of_posting(), refusals.cut_off(error))
        stale, self.stale_verdicts = self.stale_verdicts, {}
        for posting, rows in stale.items():
            posting.fail(rows, error)
        for crate in self._lanes.unload(told=True):
            crate.posting.fail(crate.rows_of_posting(), error if crate.told is None else refusals.untold(error))
