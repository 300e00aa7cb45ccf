"""The pump: one batch after the other through the interceptor and into the mailboxes."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from ray_messaging.common.task_health import end
from ray_messaging.config import MessagingConfig
from ray_messaging.errors import InterceptorUnavailable, MessagingError, OutcomeUnknown
from ray_messaging.interception.client.verdict_client import VerdictClient
from ray_messaging.interception.wire.verdicts import MIXED
from ray_messaging.sending import send_errors as refusals
from ray_messaging.sending.accumulation.pending_batch import PendingBatch, TransactionBatch
from ray_messaging.sending.delivery.deferred_rows import DeferredRows
from ray_messaging.sending.delivery.in_flight_batch import InFlightBatch, Rows
from ray_messaging.sending.delivery.transaction_sender import Concluder
from ray_messaging.sending.delivery.transactions import Transacting

logger = logging.getLogger(__name__)

# Who closes while the server is away is not kept for longer than this, in seconds.
_LAST_FENCE_S = 1.0

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.5


class SendLoop:
    """Take parcels, have them judged, and ship them: one batch is under way at a time, which keeps the order.

    Asking about a batch while the one before it is written was tried: it gains nothing, as the time goes to other
    processes on the same cores, and costs a task for each batch.
    """

    def __init__(
        self,
        shipper: Concluder,
        judge: VerdictClient,
        settings: MessagingConfig,
        take: Callable[[], PendingBatch | None],
        finish: Callable[[InFlightBatch], None],
        broken: Callable[[MessagingError], None],
        closed: Callable[[int, int], None],
    ) -> None:
        self.judge = judge
        self.batches = 0
        self.deferred = DeferredRows(lambda: self.judge, self.wake)
        self._shipper = shipper
        self._settings = settings
        self._take = take
        self._finish = finish
        self._broken = broken
        self._closed = closed
        self._number = 0
        self._awake = False
        self._wake = asyncio.Event()
        self._first: PendingBatch | None = None  # waits for the first epoch
        self._judging: InFlightBatch | None = None
        self._bundle: TransactionBatch | None = None  # waits for what was accepted before it
        self.turned_at = time.monotonic()
        self._task = asyncio.create_task(self._run(), name="ray_messaging outbox")

    @property
    def alive(self) -> bool:
        """Tell whether batches go on being sent."""
        return not self._task.done()

    @property
    def transactions(self) -> int:
        """Return how many transactions the server has, as far as we were told."""
        return self._shipper.transactions

    def wake(self) -> None:
        """Say that there is a parcel."""
        if not self._awake:
            self._awake = True
            self._turn()  # while it slept it had nothing to do
            self._wake.set()

    def _turn(self) -> None:
        self.turned_at = time.monotonic()

    async def stop(self, why: MessagingError) -> None:
        """Stop at once; what has no receipt yet gets the error, and what may still come is fenced."""
        await self.deferred.close()
        await end(self._task)
        self._abandon(why)
        with suppress(MessagingError, TimeoutError):
            async with asyncio.timeout(_LAST_FENCE_S):
                await self._shipper.fence()

    async def _run(self) -> None:
        try:
            while True:
                # Those who wait for a receipt or for room go on before the next batch is closed.
                await asyncio.sleep(0)
                self._turn()
                await self._step()
        except MessagingError as error:
            self._break(error)
        except Exception as error:
            logger.exception("the outbox of %s stopped", self._shipper.sender)
            broken = OutcomeUnknown(f"the outbox failed ({type(error).__name__}: {error}): please report this")
            broken.__cause__ = error
            self._break(broken)

    async def _step(self) -> None:
        parcel = self._take()
        if parcel is None:
            await self._sleep()
            parcel = self._take()
        if isinstance(parcel, TransactionBatch):
            await self._transact(parcel)
        elif parcel is not None:
            posting = self._judging = await self._begin(parcel)
            if posting.open:
                await self._judge(posting, None)
            self._judging = None
        await self._move()

    async def _move(self) -> None:
        """Ship what may go."""
        for held, rows, epoch in self.deferred.take_ready():
            self._load(held, rows, epoch)
        await self._shipper.ship()
        if self._shipper.stale_verdicts:
            await self._judge_again()

    async def _transact(self, bundle: TransactionBatch) -> None:
        """Let all that was accepted before have its fate, then bring a transaction to its end."""
        self._bundle = bundle
        posting = self._judging = await self._begin(bundle) if len(bundle) else None
        await self._move()
        while len(self.deferred) or not self._shipper.idle:
            await self._sleep()
            self._turn()
            await self._move()
        self._shipper.begin_with(bundle, posting)
        self._bundle = self._judging = None
        with suppress(MessagingError):  # whoever waits was told
            await Transacting(self._shipper, self._settings, bundle, posting, self._decide, self._turn).run()
        if self._shipper.over is not None:
            raise self._shipper.over

    async def _decide(self, posting: InFlightBatch, again: bool) -> int:  # noqa: FBT001 - see Decide
        """Have all of a posting judged, with what waits for a slow rule; return the epoch of who passed it."""
        if again:
            await self.judge.close()  # a predecessor that goes on answering must not be asked again
        if not posting.errors:
            verdicts = await self.judge.judge(posting.batch)
            judgement = verdicts.batch_verdict(posting.batch.rows)
            posting.apply(judgement)
            free = self.deferred.hold(posting, None, judgement.deferred, verdicts.epoch)
            epochs = {verdicts.epoch} if free is None or len(free) else set[int]()
        while not posting.errors and len(self.deferred):
            epochs |= {epoch for _, _, epoch in self.deferred.take_ready()}
            if len(self.deferred):
                await self._sleep()
                self._turn()
        if posting.errors:
            raise next(iter(posting.errors.values()))
        return epochs.pop() if len(epochs) == 1 else MIXED  # what another interceptor passed is judged once more

    async def _begin(self, parcel: PendingBatch) -> InFlightBatch:
        """Give a parcel's messages their numbers; the first one takes the epoch that is part of them."""
        error: MessagingError | None = None
        if self._shipper.epoch == 0:
            self._first = parcel
            try:
                await self._shipper.begin()
            except MessagingError as why:
                error = why
            self._first = None
        posting = self.post(parcel)
        if error is not None:
            posting.fail(None, error)
        return posting

    def post(self, parcel: PendingBatch) -> InFlightBatch:
        """Give a parcel's messages their numbers."""
        batch = parcel.seal(self._shipper.sender, self._shipper.epoch, self._number)
        self._number += batch.rows
        self.batches += 1
        return InFlightBatch(parcel, batch, self._finish, self._closed)

    async def _sleep(self) -> None:
        """Wait for a parcel, or for the time at which a full mailbox is to be tried again."""
        retry_at = self._shipper.retry_at
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

    async def _judge(self, posting: InFlightBatch, rows: Rows | None) -> None:
        """Have rows of a posting judged (None: all), and load what may go; who waits is told where nobody judges."""
        try:
            verdicts = await self.judge.judge(posting.batch)
            judgement = verdicts.batch_verdict(posting.batch.rows)
        except MessagingError as error:
            posting.fail(rows, error)
            return
        deferred = judgement.deferred
        if rows is not None:
            deferred &= set(rows.tolist())
        posting.apply(judgement, rows)
        self._load(posting, self.deferred.hold(posting, rows, deferred, verdicts.epoch), verdicts.epoch)

    def _load(self, posting: InFlightBatch, rows: Rows | None, epoch: int) -> None:
        if posting.open:
            deadline = asyncio.get_running_loop().time() + self._settings.send_timeout_s
            self._shipper.load(posting, rows, epoch, deadline)

    async def _judge_again(self) -> None:
        """Ask the interceptor's successor about what its predecessor passed but nobody has; wait until it is there."""
        loop, pause = asyncio.get_running_loop(), _FIRST_PAUSE_S
        deadline = loop.time() + self._settings.interceptor_timeout_s
        while self._shipper.stale_verdicts:
            if loop.time() > deadline:
                self._shipper.abandon(InterceptorUnavailable(refusals.STALE))
                return
            await self.judge.close()  # a predecessor that goes on answering must not be asked again
            for posting, rows in self._shipper.stale_verdicts.items():
                await self._judge(posting, rows)
            self._shipper.stale_verdicts = {}
            await self._shipper.ship()
            if self._shipper.stale_verdicts:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _break(self, error: MessagingError) -> None:
        self._abandon(error)
        self._broken(error)

    def _abandon(self, error: MessagingError) -> None:
        """Give everybody whose messages are under way the error."""
        self._shipper.abandon(error)
        self.deferred.abandon(error)
        if self._first is not None:
            self.post(self._first).fail(None, error)
            self._first = None
        if self._judging is not None and self._judging.open:
            self._judging.fail(None, error)
        if self._bundle is not None:
            self._bundle.fail(error)
