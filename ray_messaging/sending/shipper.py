"""Write crates into mailboxes: one script call for all that may go; a lane each, so that a full one waits alone."""

import asyncio
import logging
from collections import deque

import numpy as np

from ray_messaging.directory import Directory
from ray_messaging.errors import ConfigError, Fenced, MailboxFull, MessagingError, OutcomeUnknown, TransitError
from ray_messaging.receipt import DELIVERED, PUBLISHED, UNDELIVERABLE
from ray_messaging.sending.cutter import BARE, Crate, Cutter
from ray_messaging.sending.posting import Posting
from ray_messaging.transports.base import FrameFate, SendReply, SendRequest, SendStatus, Shipment, Transport

logger = logging.getLogger(__name__)

CALL_BYTES = 32 * 2**20  # one script call holds the server up for as long as it takes to copy this much
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.05


class _Lane:
    """What waits for one mailbox, in order; `written` is the last seq that the server has."""

    __slots__ = ("crates", "pause", "retry_at", "written")

    def __init__(self, written: int) -> None:
        self.crates: deque[Crate] = deque()
        self.written = written
        self.pause = 0.0
        self.retry_at = 0.0


class Shipper:
    """Ship crates under one sender's name.

    A retry repeats the same bytes under the same seq. Where an outcome stays unknown, whoever waits is told so, and a
    higher epoch is taken before anything else is sent, so that the old frame can never come after all.
    """

    def __init__(self, transport: Transport, directory: Directory, cutter: Cutter, sender: str, keep_s: float) -> None:
        self.sender = sender
        self.epoch = 0
        self._transport = transport
        self._directory = directory
        self._cutter = cutter
        self._keep_s = keep_s
        self._lanes: dict[str, _Lane] = {}
        self._written: dict[str, int] = {}
        self._unfenced = False
        self.stale_verdicts: list[Posting] = []

    async def start(self) -> None:
        """Take an epoch and load the directory."""
        await self._take_epoch()
        await self.reload()

    async def reload(self) -> None:
        """Take over what changed in the directory."""
        delta = await self._transport.load_directory(self._directory.version)
        self._directory.update(*delta)

    async def _take_epoch(self) -> None:
        state = await self._transport.take_sender_epoch(self.sender, keep_s=self._keep_s)
        self.epoch, self._written = state.epoch, state.last
        self._unfenced = False
        for mailbox, lane in self._lanes.items():
            lane.written = self._written.get(mailbox, 0)

    def load(self, posting: Posting, verdicts: int, deadline: float) -> None:
        """Cut a posting and queue its crates; `verdicts` is the epoch of the interceptor that passed them."""
        for crate in self._cutter.cut(posting, verdicts, deadline):
            lane = self._lanes.get(crate.mailbox)
            if lane is None:
                lane = self._lanes[crate.mailbox] = _Lane(self._written.get(crate.mailbox, 0))
            lane.crates.append(crate)

    @property
    def retry_at(self) -> float | None:
        """Return when a full mailbox is to be tried again (loop time); None: nothing waits."""
        return min((lane.retry_at for lane in self._lanes.values() if lane.crates), default=None)

    async def ship(self) -> None:
        """Write all that can be written now."""
        if self._unfenced and not await self._fence():
            return
        while not self.stale_verdicts and (ready := self._ready()):
            request = SendRequest(
                self.sender,
                self.epoch,
                self._directory.version,
                ready[0][0].verdicts,
                [Shipment(crate.mailbox, seq, crate.count, crate.frame, crate.publish) for crate, seq in ready],
            )
            try:
                reply = await self._transport.send(request)
                await self._take(reply, [crate for crate, _ in ready])
            except (TransitError, ConfigError) as error:
                self._lose(error)
                return

    async def _fence(self) -> bool:
        """Take a higher epoch, so that a frame whose outcome is unknown can never come after all."""
        try:
            await self._take_epoch()
        except (TransitError, ConfigError) as error:
            self.abandon(error)
            return False
        return True

    def _ready(self) -> list[tuple[Crate, int]]:
        """Return the crates of the next call with their seqs: all under the verdicts of one interceptor."""
        now = asyncio.get_running_loop().time()
        ready: list[tuple[Crate, int]] = []
        volume = 0
        for lane in self._lanes.values():
            if lane.crates and lane.retry_at <= now:
                for seq, crate in enumerate(lane.crates, lane.written + 1):
                    volume += len(crate.frame)
                    if ready and (crate.verdicts != ready[0][0].verdicts or volume > CALL_BYTES):
                        break
                    ready.append((crate, seq))
                    if crate.mailbox == BARE:
                        break  # one set of takers is kept for a call that is repeated
        return ready

    async def _take(self, reply: SendReply, crates: list[Crate]) -> None:
        if reply.status is SendStatus.FENCED:
            error = Fenced(
                f"another messager sends under the name {self.sender!r} now (our epoch is {self.epoch}): close it",
                name=self.sender,
                epoch=self.epoch,
            )
            self.abandon(error)
            raise error
        moved = False
        for crate, fate in zip(crates, reply.fates, strict=True):
            lane = self._lanes[crate.mailbox]
            if fate in (FrameFate.WRITTEN, FrameFate.DUPLICATE):
                lane.crates.popleft()
                lane.written += 1
                lane.pause = lane.retry_at = 0.0
                self._arrived(crate, reply.takers)
            elif fate is FrameFate.GONE:
                moved = True
            elif reply.status is SendStatus.OK and lane.crates and lane.crates[0] is crate:
                self._hold(lane, crate)
        if reply.status is SendStatus.STALE_DIRECTORY or moved:
            await self.reload()
            self._recut()
        elif reply.status is SendStatus.STALE_VERDICTS:
            self.stale_verdicts = self._unload()

    def _arrived(self, crate: Crate, takers: list[int]) -> None:
        if crate.mailbox != BARE:
            crate.posting.deliver(crate.rows, crate.mailbox, DELIVERED)
            return
        fates = np.where(np.array(takers) > 0, PUBLISHED, UNDELIVERABLE).astype(np.uint8)
        posting = crate.posting
        if posting.copies is not None and crate.rows is not None:
            posting.copies[crate.rows] = 0
        posting.settle(np.arange(crate.count) if crate.rows is None else crate.rows, fates)

    def _hold(self, lane: _Lane, crate: Crate) -> None:
        """Wait for room in a full mailbox; give up on crates whose time is over."""
        now = asyncio.get_running_loop().time()
        while lane.crates and lane.crates[0].deadline <= now:
            late = lane.crates.popleft()
            late.posting.fail(
                np.arange(late.count) if late.rows is None else late.rows,
                MailboxFull(
                    f"mailbox {late.mailbox!r} stayed full: its reader does not keep up; fetch there, or raise "
                    "MessagingConfig.mailbox_messages or mailbox_bytes (nothing of these messages was sent)",
                    mailbox=crate.mailbox,
                ),
            )
        lane.pause = min(max(2 * lane.pause, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
        lane.retry_at = now + lane.pause

    def _unload(self) -> list[Posting]:
        """Empty the lanes; return the postings that were on them, in their order."""
        postings: dict[Posting, None] = {}
        for lane in self._lanes.values():
            postings.update((crate.posting, None) for crate in lane.crates)
            lane.crates.clear()
            lane.pause = lane.retry_at = 0.0
        return sorted(postings, key=lambda posting: posting.batch.first)

    def _recut(self) -> None:
        """Cut anew by the new directory what has not been written."""
        known = {crate.posting: crate for lane in self._lanes.values() for crate in lane.crates}
        for posting in self._unload():
            self.load(posting, known[posting].verdicts, known[posting].deadline)

    def _lose(self, cause: TransitError | ConfigError) -> None:
        """Give up: the server cannot be asked what it has."""
        error = OutcomeUnknown(
            f"the server did not answer, so these messages may or may not have been sent ({cause}); the frames are "
            "fenced: what has not arrived will never arrive. Look whether the answer came, or send again"
        )
        error.__cause__ = cause
        self._unfenced = True
        self.abandon(error)

    def abandon(self, error: MessagingError) -> None:
        """Give everybody whose messages wait the error."""
        stale, self.stale_verdicts = self.stale_verdicts, []
        for posting in (*stale, *self._unload()):
            posting.fail(None, error)
