"""The transaction sender, which gets the verdicts on one transaction, and writes it as a whole or not at all."""

import asyncio
from typing import TYPE_CHECKING

import msgspec

from ray_messaging.common.backoff import TRANSACTION_RETRY, Backoff
from ray_messaging.config import MessagingConfig
from ray_messaging.default_limits_and_leases import TRANSACTION_BYTES
from ray_messaging.errors import (
    Closed,
    ConfigError,
    Fenced,
    MessagingError,
    PayloadTooLarge,
    TransitError,
)
from ray_messaging.interception.verdicts import FOREIGN
from ray_messaging.model.fates import BLOCKED
from ray_messaging.receipt import Receipts
from ray_messaging.sending import send_errors
from ray_messaging.sending.destination import OF_VERDICTS, VerdictRenewal
from ray_messaging.sending.frame_router import UNOWNED, OutboundFrame
from ray_messaging.sending.frame_sender import FrameSender
from ray_messaging.sending.in_flight_batch import InFlightBatch
from ray_messaging.sending.pending_batch import TransactionBatch
from ray_messaging.sending.schema_checks import check_batches
from ray_messaging.transports.transport_values import FrameFate, SendReply, SendStatus

if TYPE_CHECKING:
    from ray_messaging.sending.send_loop import SendLoop

_REFUSED = (FrameFate.FULL, FrameFate.LOG_FULL, FrameFate.GONE, FrameFate.GAP)


class TransactionSender:
    """Sender of one transaction. During the transaction, the messager sends nothing else."""

    def __init__(
        self,
        frames: FrameSender,
        settings: MessagingConfig,
        transaction: TransactionBatch,
        in_flight: InFlightBatch | None,
        loop: "SendLoop",
    ) -> None:
        self._frames = frames
        self._settings = settings
        self._transaction = transaction
        self._in_flight = in_flight  # None if the transaction sends no messages
        self._loop = loop
        self._done = False
        self._verdict_epoch = FOREIGN
        self._outbound: list[OutboundFrame] = []
        self._backoff = Backoff(TRANSACTION_RETRY)
        self._until = 0.0  # the loop time at which the transaction exceeds its time limit
        self._renewal = VerdictRenewal(settings.interceptor_timeout_s)

    async def run(self) -> None:
        """Write the transaction. If it has no `conclusion`, only find out which transactions the server has committed.

        Raises: the error that the transaction's future also gets.
        """
        try:
            await self._frames.begin()
            await self._frames.fence()
            if self._transaction.conclusion is not None:
                await self._conclude()
        except MessagingError as error:
            self._fail(error)
            raise
        self._succeed()

    def abandon(self, error: MessagingError) -> None:
        """Fail the transaction, because sending stops. If a call is under way, the transaction's outcome is unknown."""
        self._fail(send_errors.cut_off(error) if self._frames.attempted else error)

    def _succeed(self) -> None:
        self._done = True
        parts = []
        if self._in_flight is not None:
            # The rows that are still open are blocked ones that need no log note.
            self._in_flight.settle(self._in_flight.open_rows, BLOCKED)
            parts = [(self._in_flight.outcome, 0, len(self._in_flight.batch))]
        if not self._transaction.future.done():
            self._transaction.future.set_result(Receipts(parts))

    def _fail(self, error: MessagingError) -> None:
        """Give the transaction an error, unless the transaction has ended already."""
        if not self._done:
            self._done = True
            self._transaction.fail(error if self._in_flight is None else self._in_flight.give_up(error))

    # -- calls ----------------------------------------------------------------------------------------------------

    async def _conclude(self) -> None:
        if self._in_flight is not None:
            self._verdict_epoch = await self._loop.judge_transaction(self._in_flight)
        self._until = asyncio.get_running_loop().time() + self._settings.send_timeout_s
        self._route()
        while (reply := await self._attempt()) is not None:
            await self._prepare_next(reply)
            if self._frames.router.routes is not self._frames.routes:
                self._route()

    def _route(self) -> None:
        """Make the frames of the whole transaction by the current directory of mailboxes.

        Raises: PayloadMismatch if a schema refuses a payload; PayloadTooLarge if the frames are too large for one call.
        """
        self._frames.reroute()  # no frame is queued, so this only gives the router the current routes
        if self._in_flight is None:
            return
        check_batches(self._frames.schemas, [self._in_flight.batch])
        self._outbound = self._frames.router.route(self._in_flight, None, settle=False)
        volume = sum(frame.nbytes for frame in self._outbound)
        if volume > TRANSACTION_BYTES:
            raise PayloadTooLarge(
                f"a transaction can carry at most {TRANSACTION_BYTES:,} bytes, but this one would take {volume:,}, "
                "with one copy for each mailbox: send fewer messages at a time, or references to the data",
                size=volume,
                limit=TRANSACTION_BYTES,
            )

    async def _attempt(self) -> SendReply | None:
        """Make one call; return None if it has written the transaction.

        Otherwise return the reply, which says why nothing was written. Then it is certain that the server will not
        accept a delayed copy of the call.

        Raises: Fenced if another sender has our name; OutcomeUnknown if the server did not answer; MailboxFull if the
        server's memory is full.
        """
        frames, transaction = self._frames, self._transaction
        assert transaction.conclusion is not None
        if frames.behind:
            raise send_errors.behind()
        transaction.number = transaction.number or frames.transactions + 1
        conclusion = msgspec.structs.replace(transaction.conclusion, number=transaction.number)
        try:
            self._number()
            reply = await frames.exchange(self._outbound, self._verdict_epoch, conclusion)
            return await self._process(reply, transaction.number)
        except (TransitError, ConfigError, Closed) as error:
            raise frames.lose(error) from error

    def _number(self) -> None:
        """Set the sequence numbers of the frames."""
        last: dict[str, int] = {}
        for frame in self._outbound:
            written = self._frames.queues.queue_of(frame.mailbox).written
            frame.seq = last[frame.mailbox] = last.get(frame.mailbox, written) + 1

    async def _process(self, reply: SendReply, number: int) -> SendReply | None:
        """If the transaction was written, set the messages' fates and return None; otherwise return the reply.

        After a refusal, make sure that the server will not accept a delayed copy of the call.

        Args: `number` is the transaction's number. If the server has committed at least this many transactions, the
        transaction was written.
        """
        frames = self._frames
        subscriber_counts = reply.takers
        if reply.all_written:
            frames.transactions = number
            for frame in self._outbound:
                frames.queues.queue_of(frame.mailbox).written += 1
        else:
            try:
                await frames.settle_refusal(reply, [])
            except Fenced:
                frames.attempted = False
                if reply.repeated:
                    self._fail(send_errors.taken_over())
                raise
            subscriber_counts = frames.subscriber_counts
        frames.attempted = False
        if frames.transactions < number:
            return reply
        for frame in self._outbound:
            count = len(frame.publish) if frame.mailbox == UNOWNED else 0
            frames.written(frame, subscriber_counts[:count])
            subscriber_counts = subscriber_counts[count:]
        return None

    # -- between calls --------------------------------------------------------------------------------------------

    async def _prepare_next(self, reply: SendReply) -> None:
        """Remove the cause of a refusal, or wait until the cause is gone. If it cannot go away, raise an error."""
        if reply.status in (SendStatus.READER_FENCED, SendStatus.READER_LOST):
            assert self._transaction.conclusion is not None
            raise send_errors.reader_fenced(self._transaction.conclusion)
        if reply.status in (SendStatus.BEHIND, SendStatus.RESTORED):
            raise send_errors.behind()
        if reply.status is SendStatus.UNJUDGED:
            raise send_errors.no_verdicts()
        if reply.status in OF_VERDICTS:
            await self._judge_again(reply.status)
        elif reply.status is SendStatus.STALE_DIRECTORY or FrameFate.GONE in reply.fates:
            await self._pause_after(reply)
            await self._frames.reload()
        else:
            for frame, fate in zip(self._outbound, reply.fates, strict=True):
                if fate is FrameFate.TOO_LARGE:
                    raise self._frames.too_large(frame)
            await self._pause_after(reply)

    async def _pause_after(self, reply: SendReply) -> None:
        """Pause after the server has refused the transaction's frames.

        If the transaction has exceeded its time limit, raise the refusal's error.
        """
        if asyncio.get_running_loop().time() >= self._until:
            fates = zip(self._outbound, reply.fates, strict=True)
            frame, fate = next((frame, fate) for frame, fate in fates if fate in _REFUSED)
            raise send_errors.refused(frame, fate if reply.status is SendStatus.OK else reply.status)
        self._loop.made_progress()
        await self._backoff.sleep()

    async def _judge_again(self, why: SendStatus) -> None:
        """Get verdicts by the current rules. If the interceptor is gone, wait for its successor."""
        self._loop.made_progress()
        await self._renewal.begin(self._loop.verdict_client, why)
        if self._in_flight is not None:
            self._verdict_epoch = await self._loop.judge_transaction(self._in_flight)
            self._route()
