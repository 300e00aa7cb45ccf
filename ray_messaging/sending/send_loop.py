"""The send loop, which takes one batch after the other, gets verdicts on its messages, and writes them to mailboxes."""

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from ray_messaging.common.task_health import end
from ray_messaging.common.texts import error_in_words
from ray_messaging.config import MessagingConfig
from ray_messaging.errors import InterceptorUnavailable, MessagingError, OutcomeUnknown
from ray_messaging.interception.verdict_client import VerdictClient
from ray_messaging.interception.verdicts import MIXED, BatchVerdict
from ray_messaging.sending.deferred_rows import DeferredRows
from ray_messaging.sending.destination import VerdictRenewal
from ray_messaging.sending.frame_sender import FrameSender
from ray_messaging.sending.in_flight_batch import InFlightBatch, Rows
from ray_messaging.sending.pending_batch import PendingBatch, TransactionBatch
from ray_messaging.sending.schema_checks import some_misfit
from ray_messaging.sending.transaction_sender import TransactionSender

if TYPE_CHECKING:
    from ray_messaging.sending.accumulator import Accumulator

logger = logging.getLogger(__name__)

# If the server is far, which means that its replies take long, callers get their receipts in groups. A group has at
# least _WAVE callers, and at least a quarter (_WAVES) of the callers that have no receipt yet. While calls to the
# server are under way, an open batch is sent if it has at least half as many messages as a group. A smaller open batch
# is sent half a round trip (_PAUSES) after the last call was made. A call takes as much processor time as some 100
# single messages.
_WAVE, _WAVES, _PAUSES = 200, 4, 2
# The longest time for which closing a messager waits for a server that does not answer.
_LAST_FENCE_S = 1.0


class SendLoop:
    """A task that takes one batch after the other, gets the verdicts on it, and writes it.

    While a call to the server is under way, the open batch collects messages. A closed batch, such as a large send,
    collects no more messages, so it may be written before the replies to earlier calls. If the server is far, the open
    batch may be written before these replies, too. So the callers who wait for receipts do not all wait for the same
    reply: some callers send their next messages while the messages of other callers are on their way.
    """

    def __init__(
        self, frames: FrameSender, verdict_client: VerdictClient, settings: MessagingConfig, source: "Accumulator"
    ) -> None:
        self.verdict_client = verdict_client  # if it is replaced, the new client is used from the next batch on
        self.batches = 0  # how many batches the loop has begun to send
        self.deferred = DeferredRows(self)
        self.turned_at = time.monotonic()
        self._frames = frames
        self._observer = frames.observer
        self._settings = settings
        self._source = source
        self.number = 0  # the number of the next message
        self._awake = False
        self._asking = False  # whether the loop waits for verdicts
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        # The work in progress: a batch that waits for the first epoch, a batch whose frames are not queued yet, a
        # transaction that waits for its turn, and the transaction that is being sent.
        self._first: PendingBatch | None = None
        self._in_flight: InFlightBatch | None = None
        self._next_transaction: TransactionBatch | None = None
        self._transaction: TransactionSender | None = None
        frames.replied = self._replied
        self._task = asyncio.create_task(self._run(), name="ray_messaging outbox")

    @property
    def alive(self) -> bool:
        """Return whether the loop runs."""
        return not self._task.done()

    @property
    def transactions(self) -> int:
        """Return how many transactions the server has committed, as far as this process knows."""
        return self._frames.transactions

    def wake(self) -> None:
        """Wake the loop, because there is something to do."""
        if not self._awake:
            self._awake = True
            self.turned_at = time.monotonic()  # the time for which the loop slept does not count as being stuck
            self._wake.set()

    def _replied(self) -> None:
        """Wake the loop, so that it processes a reply from the server. If the loop waits for verdicts, process it now.

        Verdicts may take long, and the callers whose messages were written must not wait for verdicts on others.
        """
        if self._asking:
            self._frames.take_arrived()
        self.wake()

    def made_progress(self) -> None:
        """Record the time, so that health checks see that the loop works, although it is waiting."""
        self.turned_at = time.monotonic()

    async def stop(self, error: MessagingError) -> None:
        """Stop at once. Messages without a receipt get the error.

        If frames may still reach the server, the server is made to refuse them.
        """
        await self.deferred.close()
        await end(self._task)
        self._abandon(error)
        with suppress(MessagingError, TimeoutError):
            async with asyncio.timeout(_LAST_FENCE_S):
                await self._frames.fence()

    async def _run(self) -> None:
        try:
            while True:
                # Callers that have just got a receipt or capacity can now run. Their next messages still get into
                # the next batch.
                await asyncio.sleep(0)
                self.turned_at = time.monotonic()
                await self._step()
        except MessagingError as error:
            self._break(error)
        except Exception as error:
            logger.exception("%s has stopped sending", self._frames.sender)
            broken = OutcomeUnknown(
                f"the task that sends messages failed ({error_in_words(error)}): please report this"
            )
            broken.__cause__ = error
            self._break(broken)

    async def _step(self) -> None:
        """Send the next batch, and queued frames that may be written. If no batch may be sent yet, sleep first."""
        pending, ahead = self._take()
        if pending is None:
            await self._sleep()
            pending, ahead = self._take()
        if isinstance(pending, TransactionBatch):
            await self._transact(pending)
        elif pending is not None:
            if self._frames.epoch == 0:
                await self._begin_first(pending)
            else:
                self._in_flight = self.begin(pending)
            if self._in_flight is not None and self._in_flight.left:
                await self._judge(self._in_flight, None)
            self._in_flight = None
        await self._send(ahead=ahead)

    def _take(self) -> tuple[PendingBatch | None, bool]:
        """Return the next batch if it may be written now, otherwise None. Also return the argument `ahead` for `_send`.

        That argument is true if the next batch is closed, if earlier calls are under way, or if the server is far and
        the open batch is not small.
        """
        source, frames = self._source, self._frames
        closed, under_way = source.has_closed, bool(frames.calls)
        follows = closed or ((at := self._follow_at) is not None and at <= self._loop.time())
        may_write = not under_way or (frames.has_room and follows)
        ahead = closed or under_way or self._is_wave
        return (source.take() if may_write else None), ahead

    @property
    def _follow_at(self) -> float | None:
        """Return the event loop's time at which the open batch may be sent, although calls are still under way.

        None means that the open batch has to wait for these calls, or that no open batch is next.
        """
        far_s, rows = self._frames.far_s, self._source.open_rows
        if not far_s or not rows:
            return None
        return self._frames.called_at + (0 if self._is_wave else far_s / _PAUSES)

    @property
    def _is_wave(self) -> bool:
        """Return whether the open batch is large enough to be sent before the server has answered earlier calls.

        This is always False if the server is near, because its answers come soon.
        """
        return 0 < self._wave <= 2 * self._source.open_rows

    @property
    def _wave(self) -> int:
        """Return how many callers get their receipts at the same time.

        If the server is near, the result is 0: then all callers of a batch get their receipts at the same time.
        """
        return max(_WAVE, self._source.rows // _WAVES) if self._frames.far_s else 0

    async def _send(self, *, ahead: bool = False) -> None:
        """Write all frames that can be written now. With `ahead`, return before the replies."""
        if self.deferred.moved:
            deadline = self._loop.time() + self._settings.send_timeout_s
            for held, rows, epoch in self.deferred.take_ready():
                self._frames.load(held, rows, epoch, deadline)
        await self._frames.send(ahead=ahead)
        if self._frames.stale_verdicts:
            await self._judge_again()

    async def _sleep(self) -> None:
        """Wait until `wake` is called, or until the time at which the open batch or refused frames may be sent."""
        frames = self._frames
        retry_at = self._follow_at if frames.calls and frames.has_room else frames.retry_at
        try:
            if retry_at is None:
                await self._wake.wait()
            else:
                async with asyncio.timeout_at(retry_at):
                    await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()
        self._awake = False

    # -- batches --------------------------------------------------------------------------------------------------

    def begin(self, pending: PendingBatch) -> InFlightBatch:
        """Assign numbers to the messages of a batch, and return the batch in the form in which it is sent."""
        batch = pending.seal(self._frames.sender, self._frames.epoch, self.number)
        self.number += batch.rows
        self.batches += 1
        if self._observer is not None and batch.rows:
            self._observer.batch_taken(batch.rows, max(0.0, time.time() - batch.sent_time(0)))
        pending.trace.taken(batch)
        return InFlightBatch(pending, batch, self._source, self._wave)

    async def _begin_first(self, pending: PendingBatch) -> None:
        """Claim the first epoch, which is part of the messages' ids, and then begin to send a batch.

        An epoch is a number. Each claim gives a higher epoch than all earlier claims for the same sender name.
        """
        error: MessagingError | None = None
        self._first = pending
        try:
            await self._frames.begin()
        except MessagingError as why:
            error = why
        self._first = None
        self._in_flight = self.begin(pending)
        if error is not None:
            self._in_flight.fail(None, error)

    async def _judge(self, in_flight: InFlightBatch, rows: Rows | None) -> None:
        """Get the verdicts on rows of a batch (None: all), and queue the frames of the rows that pass."""
        try:
            verdict = await self._ask(in_flight)
            schemas = self._frames.directory.schemas
            if in_flight.pending.checked != schemas.version and some_misfit(schemas, in_flight):
                await self._frames.refresh()  # a schema may have been replaced
        except MessagingError as error:
            in_flight.fail(rows, error)
            return
        in_flight.apply(verdict, rows)
        if verdict.deferred or self.deferred.pairs:
            deferred = verdict.deferred if rows is None else verdict.deferred & set(rows.tolist())
            rows = self.deferred.hold(in_flight, rows, deferred, verdict.epoch)
        self._frames.load(in_flight, rows, verdict.epoch, self._loop.time() + self._settings.send_timeout_s)

    async def _ask(self, in_flight: InFlightBatch) -> BatchVerdict:
        """Ask for the verdicts on a batch. Report to the observer and the trace how long the answer took."""
        in_flight.pending.trace.asking(in_flight.batch)
        asked_at = time.perf_counter()
        self._asking = True
        self._frames.take_arrived()
        try:
            verdict = await self.verdict_client.judge(in_flight.batch)
        finally:
            self._asking = False
        if self._observer is not None:
            self._observer.batch_judged(in_flight.batch.rows, time.perf_counter() - asked_at)
        in_flight.pending.trace.judged(verdict.blocked, verdict.deferred, self.verdict_client.route)
        return verdict

    async def _judge_again(self) -> None:
        """Get new verdicts on rows that were judged by old rules or by an earlier interceptor, and send these rows."""
        renewal = VerdictRenewal(self._settings.interceptor_timeout_s)
        while self._frames.stale_verdicts:
            try:
                await renewal.begin(self.verdict_client, self._frames.stale_by)
            except InterceptorUnavailable as error:
                self._frames.abandon(error)
                return
            for in_flight, rows in self._frames.stale_verdicts.items():
                await self._judge(in_flight, rows)
            self._frames.stale_verdicts = {}
            await self._frames.send()

    # -- transactions ---------------------------------------------------------------------------------------------

    async def _transact(self, transaction: TransactionBatch) -> None:
        """Send all messages that were accepted before a transaction, and then the transaction."""
        self._next_transaction = transaction
        if len(transaction):
            await self._begin_first(transaction)
        await self._send()
        while len(self.deferred) or not self._frames.queues.empty:
            await self._sleep()
            self.made_progress()
            await self._send()
        sender = TransactionSender(self._frames, self._settings, transaction, self._in_flight, self)
        self._transaction, self._next_transaction, self._in_flight = sender, None, None
        with suppress(MessagingError):  # the transaction's future has the error
            await sender.run()
        self._transaction = None
        if self._frames.fenced is not None:
            raise self._frames.fenced

    async def judge_transaction(self, in_flight: InFlightBatch) -> int:
        """Get all verdicts on a transaction's batch, also those of slow rules.

        Return the verdict epoch, a number by which the server refuses outdated verdicts.
        """
        if not in_flight.errors:
            verdict = await self._ask(in_flight)
            in_flight.apply(verdict)
            free = self.deferred.hold(in_flight, None, verdict.deferred, verdict.epoch)
            epochs = {verdict.epoch} if free is None or len(free) else set[int]()
        while not in_flight.errors and len(self.deferred):
            epochs |= {epoch for _, _, epoch in self.deferred.take_ready()}
            if len(self.deferred):
                await self._sleep()
                self.made_progress()
        if in_flight.errors:
            raise next(iter(in_flight.errors.values()))
        # If the verdicts have two epochs, the server refuses them, and new verdicts are requested.
        return epochs.pop() if len(epochs) == 1 else MIXED

    # -- failures -------------------------------------------------------------------------------------------------

    def _break(self, error: MessagingError) -> None:
        self._abandon(error)
        self._source.fail(error)

    def _abandon(self, error: MessagingError) -> None:
        """Give the error to all messages that were taken for sending and have no receipt yet."""
        if self._transaction is not None:
            self._transaction.abandon(error)
            self._transaction = None
        self._frames.abandon(error)
        self.deferred.abandon(error)
        if self._first is not None:
            self.begin(self._first).fail(None, error)
            self._first = None
        if self._in_flight is not None and self._in_flight.left:
            self._in_flight.fail(None, error)
        if self._next_transaction is not None:
            self._next_transaction.fail(error)
