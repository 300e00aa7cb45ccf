"""Write crates into mailboxes: one call for all that may go."""

import asyncio
import logging
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from ray_messaging.directory import Directory
from ray_messaging.errors import ConfigError, Fenced, MailboxFull, MessagingError, PayloadTooLarge, TransitError
from ray_messaging.receipt import DELIVERED, PUBLISHED, UNDELIVERABLE, UNKNOWN
from ray_messaging.sending import refusals
from ray_messaging.sending.cutter import BARE, Crate, Cutter
from ray_messaging.sending.lanes import Lane, Lanes
from ray_messaging.sending.posting import Posting, Rows
from ray_messaging.transports.base import (
    LOG,
    TOO_LARGE_TAKER,
    FrameFate,
    SendReply,
    SendRequest,
    SendStatus,
    Shipment,
    Transport,
)

logger = logging.getLogger(__name__)

_FENCE_PAUSE_S = 1.0


class Shipper:
    """Ship crates under one sender's name.

    A retry repeats the same bytes under the same seq. Where an outcome stays unknown, whoever waits is told so, and a
    higher epoch is taken before anything else is sent, so that the old frame can never come after that.
    """

    def __init__(self, transport: Transport, directory: Directory, cutter: Cutter, sender: str, keep_s: float) -> None:
        self.sender = sender
        self.epoch = 0
        self._transport = transport
        self._directory = directory
        self._cutter = cutter
        self._keep_s = keep_s
        self._lanes = Lanes()
        self._first_epoch = asyncio.Lock()
        self._attempted = False
        self._fence_at: float | None = None  # loop time; None: nothing of ours can still come
        self._cut_by = -1  # the directory's version by which what waits was cut
        self.stale_verdicts: dict[Posting, Rows] = {}

    async def reload(self) -> None:
        """Take over what changed in the directory."""
        self._directory.update(*await self._transport.load_directory(self._directory.version))
        for mailbox in [
            name for name in self._lanes if name not in {BARE, LOG} and name not in self._directory.records
        ]:
            self._lanes.forget(mailbox)

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
        state = await self._transport.take_sender_epoch(self.sender, keep_s=self._keep_s)
        self.epoch, self._fence_at = state.epoch, None
        self._lanes.learn(state.last)
        for mailbox, lane in list(self._lanes.items()):
            last = state.last.get(mailbox, 0)
            # A lost answer's frames are at the head of their lane.
            for _ in range(min(last - lane.written, lane.tried)):
                self._arrived(lane.crates.popleft(), state.takers)
            lane.written, lane.tried = last, 0

    # -- shipping -------------------------------------------------------------------------------------------------

    def load(self, posting: Posting, rows: Rows | None, verdicts: int, deadline: float) -> None:
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
            while not self.stale_verdicts and (ready := self._ready()):
                await self._call(ready)
        except MailboxFull as error:  # the whole server is: nothing of this was taken
            self._attempted = False
            self.abandon(error)
        except (TransitError, ConfigError) as error:
            self._lose(error)

    async def _call(self, ready: list[tuple[Crate, int]]) -> None:
        request = SendRequest(
            self.sender,
            self.epoch,
            self._directory.version,
            ready[0][0].verdicts,
            [
                Shipment(crate.mailbox, seq, crate.count, crate.frame, crate.publish, crate.noted, crate.batch)
                for crate, seq in ready
            ],
        )
        for crate, _ in ready:
            self._lanes[crate.mailbox].tried += 1
        self._attempted = True
        reply = await self._transport.send(request)
        await self._take(reply, [crate for crate, _ in ready])
        self._attempted = False

    def _ready(self) -> list[tuple[Crate, int]]:
        """Return the crates of the next call with their seqs: all under the verdicts of one interceptor."""
        self._follow()
        return self._lanes.ready(asyncio.get_running_loop().time())

    async def _take(self, reply: SendReply, crates: list[Crate]) -> None:
        if reply.status is SendStatus.FENCED:
            raise self._fenced(crates if reply.repeated else [])
        refused: list[tuple[Crate, FrameFate]] = []
        for crate, fate in zip(crates, reply.fates, strict=True):
            lane = self._lanes[crate.mailbox]
            if fate in (FrameFate.WRITTEN, FrameFate.DUPLICATE):
                lane.took()
                self._arrived(crate, reply.takers)
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

    async def _settle_refused(self, status: SendStatus, refused: list[tuple[Crate, FrameFate]]) -> None:
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
                    crate.posting.fail(crate.rows_of_posting(), self._too_large(crate))

    def _fenced(self, unknown: list[Crate]) -> Fenced:
        """Give up for good: the name has a successor; `unknown` crates may have been written before it came."""
        for crate in unknown:
            crate.posting.fail(crate.rows_of_posting(), refusals.taken_over())
        self._attempted = False
        error = refusals.fenced(self.sender, self.epoch)
        self.abandon(error)
        return error

    def _arrived(self, crate: Crate, takers: list[int]) -> None:
        if crate.told is not None:
            self._settle(crate, crate.told.mailbox, crate.told.fate)
            return
        if crate.mailbox == LOG:
            crate.posting.stop(crate.rows_of_posting())
            return
        fates = DELIVERED if crate.mailbox != BARE else self._fates(crate, np.array(takers))
        if self._transport.logs_apart and self._directory.logged:
            # Whoever waits is told when the log knows: what has a receipt is in the log.
            for told in self._cutter.tell(crate, fates):
                self._lanes.queue(told)
        else:
            self._settle(crate, crate.mailbox, fates)

    def _fates(self, crate: Crate, takers: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the fate of each publication; those that the server refused are told so, and get none."""
        refused = np.flatnonzero(takers == TOO_LARGE_TAKER)
        for row in refused.tolist():
            crate.posting.fail(crate.rows_of_posting()[[row]], refusals.not_published(crate.publish[row]))
        fates = np.where(takers > 0, PUBLISHED, UNDELIVERABLE)
        fates[refused] = UNKNOWN
        return fates

    def _settle(self, crate: Crate, mailbox: str, fates: int | NDArray[np.intp]) -> None:
        """Give rows their fate, where a mailbox has them as soon as all of theirs have them."""
        if mailbox != BARE and isinstance(fates, int):
            crate.posting.deliver(crate.rows, mailbox, fates)
            return
        if crate.posting.copies is not None:
            crate.posting.copies[crate.rows_of_posting()] = 0
        crate.posting.settle(crate.rows_of_posting(), fates if isinstance(fates, int) else fates.astype(np.uint8))

    def _hold(self, lane: Lane, fate: FrameFate) -> None:
        """Wait for room in a full mailbox, or for the log; give up on crates whose time is over."""
        now = asyncio.get_running_loop().time()
        while lane.crates and lane.crates[0].deadline <= now:
            late = lane.crates.popleft()
            error = refusals.full(late, log=fate is FrameFate.LOG_FULL)
            late.posting.fail(late.rows_of_posting(), error if late.told is None else refusals.untold(error))
        lane.wait(now)

    def _too_large(self, crate: Crate) -> PayloadTooLarge:
        limit = self._transport.largest_frame
        if limit is not None:
            return refusals.above_the_servers_limit(crate, limit)
        record = self._directory.records.get(crate.mailbox)
        return refusals.too_large(crate, 0 if record is None else 4 * record.frame_bytes)  # as its frames are cut

    def _recut(self) -> None:
        """Cut anew by the new directory what has not been written."""
        self._cut_by = self._directory.version
        # Rows of one posting may have passed under several interceptors, and at several times.
        found: dict[tuple[Posting, int, float], list[Rows]] = {}
        for crate in self._lanes.unload():
            key = (crate.posting, crate.verdicts, crate.deadline)
            found.setdefault(key, []).append(crate.rows_of_posting())
        for (posting, verdicts, deadline), rows in found.items():
            self.load(posting, np.unique(np.concatenate(rows)), verdicts, deadline)

    def _lose(self, cause: TransitError | ConfigError) -> None:
        """Give up: the server cannot be asked what it has."""
        if self._attempted:
            self._attempted = False
            self._fence_at = asyncio.get_running_loop().time()
            error: MessagingError = refusals.unknown(cause)
        else:
            error = cause  # the server never got these
        if self.unfenced:
            self._fence_at = asyncio.get_running_loop().time() + _FENCE_PAUSE_S
        self.abandon(error)

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
