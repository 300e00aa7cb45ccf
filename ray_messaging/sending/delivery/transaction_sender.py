"""Conclude a transaction: one call for all that it sends and commits, and what is known of it afterwards."""

import logging

import msgspec

from ray_messaging.errors import Closed, ConfigError, Fenced, MailboxFull, MessagingError, TransitError
from ray_messaging.receipt import Receipts
from ray_messaging.sending import send_errors as refusals
from ray_messaging.sending.accumulation.pending_batch import TransactionBatch
from ray_messaging.sending.delivery.frame_router import UNOWNED, OutboundFrame
from ray_messaging.sending.delivery.frame_sender import FrameSender
from ray_messaging.sending.delivery.in_flight_batch import InFlightBatch
from ray_messaging.transports.base import FrameFate, SendReply, SendStatus

logger = logging.getLogger(__name__)

TAKEN = (FrameFate.WRITTEN, FrameFate.DUPLICATE)


class Concluder(FrameSender):
    """Ship crates, and conclude transactions: one at a time, when nothing else is on its way."""

    _bundle: TransactionBatch | None = None  # under way
    _posting: InFlightBatch | None = None
    over: Fenced | None = None  # why nothing can be sent any more
    _cut_at = -1  # the directory's version
    _behind = False  # the server lost a transaction that it had confirmed: cursor and state here are ahead of it

    @property
    def idle(self) -> bool:
        """Tell whether all that was loaded has its fate."""
        return not any(lane.crates for lane in self._lanes.values())

    def begin_with(self, bundle: TransactionBatch, posting: InFlightBatch | None) -> None:
        """Take a transaction up: whoever waits for it is told by `succeed`, or when sending stops."""
        self._bundle, self._posting = bundle, posting

    def succeed(self) -> None:
        """Tell whoever waits that all of it was written."""
        bundle, posting = self._bundle, self._posting
        self._bundle = self._posting = None
        if posting is not None:
            posting.stop(posting.open_rows)  # what no log had to be told of
        if bundle is not None and not bundle.future.done():
            parts = [] if posting is None else [(posting.outcome, 0, len(posting.batch))]
            bundle.future.set_result(Receipts(parts))

    def give_up(self, error: MessagingError) -> None:
        """Tell whoever waits why nothing was written, or that nobody knows."""
        bundle, posting = self._bundle, self._posting
        self._bundle = self._posting = None
        if bundle is not None:
            bundle.fail(error if posting is None else posting.give_up(error))

    def abandon(self, error: MessagingError) -> None:
        """Give everybody whose messages wait the error; what is on its way right now has an unknown outcome."""
        if self._bundle is not None:
            self.give_up(refusals.cut_off(error) if self._attempted else error)
        super().abandon(error)

    async def _fence(self) -> None:
        confirmed = self.transactions
        try:
            await super()._fence()
        except Fenced as error:
            self.over = error
            raise
        self._behind |= self.transactions < confirmed

    def cut(self, posting: InFlightBatch, verdicts: int, deadline: float) -> list[OutboundFrame]:
        """Cut all of a posting by the directory as it is."""
        self._cut_at = self._directory.version
        return self._cutter.cut(posting, None, verdicts, deadline, settle=False)

    @property
    def stale(self) -> bool:
        """Tell whether the directory has changed since the last cut."""
        return self._cut_at != self._directory.version

    async def attempt(self, bundle: TransactionBatch, crates: list[OutboundFrame], verdicts: int) -> SendReply | None:
        """Make one call; None: it is concluded. Else the reply says why nothing of it was written, nor can be.

        Raises: Fenced where sending is over, OutcomeUnknown, MailboxFull where the server's memory is.
        """
        assert bundle.conclusion is not None
        if self._behind:
            raise refusals.behind()
        bundle.number = bundle.number or self.transactions + 1
        conclusion = msgspec.structs.replace(bundle.conclusion, number=bundle.number)
        try:
            reply = await self._exchange(self._numbered(crates), verdicts, conclusion)
            return await self._learn(reply, bundle.number, crates)
        except MailboxFull:
            self._attempted = False
            raise
        except (TransitError, ConfigError, Closed) as error:
            raise self._lose(error) from error

    def _numbered(self, crates: list[OutboundFrame]) -> list[tuple[OutboundFrame, int]]:
        last: dict[str, int] = {}
        for crate in crates:
            last.setdefault(crate.mailbox, self._lanes.of(crate.mailbox).written)
        numbered = []
        for crate in crates:
            last[crate.mailbox] += 1
            numbered.append((crate, last[crate.mailbox]))
        return numbered

    async def _check_epoch(self, reply: SendReply) -> None:
        """Raise Fenced where sending is over, TransactionError where the server was restored from older data."""
        if reply.status in (SendStatus.FENCED, SendStatus.LOST):
            if reply.repeated:
                self._attempted = False
                self.give_up(refusals.taken_over())
            self.over = self._fenced(reply, [])
            raise self.over
        if reply.status is SendStatus.RESTORED:
            await self._heal(reply)
            self._attempted = False
            raise refusals.behind()

    async def _learn(self, reply: SendReply, number: int, crates: list[OutboundFrame]) -> SendReply | None:
        """Tell what became of a call, of which an attempt may still be on its way."""
        await self._check_epoch(reply)
        concluded = reply.status is SendStatus.OK and all(fate in TAKEN for fate in reply.fates)
        takers = reply.takers
        if concluded:
            self.transactions = number
            for crate in crates:
                self._lanes.of(crate.mailbox).written += 1
        elif reply.repeated or FrameFate.GAP in reply.fates:
            if FrameFate.GAP in reply.fates:
                logger.error("the server lost messages that it had taken from %s: was it restored?", self.sender)
            try:
                await self._fence()
            except Fenced:
                self._attempted = False
                self.give_up(refusals.taken_over())
                raise
            concluded, takers = self.transactions >= number, self._takers
        self._attempted = False
        if not concluded:
            return reply
        for crate in crates:
            count = len(crate.publish) if crate.mailbox == UNOWNED else 0
            self._fates.arrived(crate, takers[:count])
            takers = takers[count:]
        return None
