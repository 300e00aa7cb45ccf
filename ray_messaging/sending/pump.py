"""The pump: one batch after the other through the interceptor and into the mailboxes."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from ray_messaging.config import MessagingConfig
from ray_messaging.errors import InterceptorUnavailable, MessagingError, OutcomeUnknown
from ray_messaging.interception.verdicts import Judge
from ray_messaging.sending.deferred import Deferred
from ray_messaging.sending.parcel import Parcel
from ray_messaging.sending.posting import Posting, Rows
from ray_messaging.sending.shipper import Shipper

logger = logging.getLogger(__name__)

# Who closes while the server is away is not kept for longer than this, in seconds.
_LAST_FENCE_S = 1.0

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.5
_STALE = (
    "the interceptor that answers has a successor, which could not be asked in time, so nothing was sent: look at its "
    "actor, or set the new one by set_message_interceptor, then send again"
)


class Pump:
    """Take parcels, have them judged, and ship them: one batch is under way at a time, which keeps the order.

    Asking about a batch while the one before it is written was tried: it gains nothing, as the time goes to other
    processes on the same cores, and costs a task for each batch.
    """

    def __init__(
        self,
        shipper: Shipper,
        judge: Judge,
        settings: MessagingConfig,
        take: Callable[[], Parcel | None],
        finish: Callable[[Posting], None],
        broken: Callable[[MessagingError], None],
        closed: Callable[[int, int], None],
    ) -> None:
        self.judge = judge
        self.batches = 0
        self.deferred = Deferred(lambda: self.judge, self.wake)
        self._shipper = shipper
        self._settings = settings
        self._take = take
        self._finish = finish
        self._broken = broken
        self._closed = closed
        self._number = 0
        self._awake = False
        self._wake = asyncio.Event()
        self._judging: Posting | None = None
        self._task = asyncio.create_task(self._run(), name="ray_messaging outbox")

    def wake(self) -> None:
        """Say that there is a parcel."""
        if not self._awake:
            self._awake = True
            self._wake.set()

    async def stop(self, why: MessagingError) -> None:
        """Stop at once; what has no receipt yet gets the error, and what may still come is fenced."""
        await self.deferred.close()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._abandon(why)
        with suppress(MessagingError, TimeoutError):
            async with asyncio.timeout(_LAST_FENCE_S):
                await self._shipper.fence()

    async def _run(self) -> None:
        try:
            while True:
                # Those who wait for a receipt or for room go on before the next batch is closed.
                await asyncio.sleep(0)
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
        if parcel is not None:
            posting = self._judging = await self._begin(parcel)
            if posting.open:
                await self._judge(posting, None)
            self._judging = None
        for held, rows, epoch in self.deferred.take_ready():
            self._load(held, rows, epoch)
        await self._shipper.ship()
        if self._shipper.stale_verdicts:
            await self._judge_again()

    async def _begin(self, parcel: Parcel) -> Posting:
        """Give a parcel's messages their numbers; the first one takes the epoch that is part of them."""
        error: MessagingError | None = None
        if self._shipper.epoch == 0:
            try:
                await self._shipper.begin()
            except MessagingError as why:
                error = why
        posting = self.post(parcel)
        if error is not None:
            posting.fail(None, error)
        return posting

    def post(self, parcel: Parcel) -> Posting:
        """Give a parcel's messages their numbers."""
        batch = parcel.seal(self._shipper.sender, self._shipper.epoch, self._number)
        self._number += len(batch)
        self.batches += 1
        return Posting(parcel, batch, self._finish, self._closed)

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

    async def _judge(self, posting: Posting, rows: Rows | None) -> None:
        """Have rows of a posting judged (None: all), and load what may go; who waits is told where nobody judges."""
        try:
            verdicts = await self.judge.judge(posting.batch)
            judgement = verdicts.judgement(len(posting.batch))
        except MessagingError as error:
            posting.fail(rows, error)
            return
        deferred = judgement.deferred
        if rows is not None:
            deferred &= set(rows.tolist())
        posting.apply(judgement, rows)
        self._load(posting, self.deferred.hold(posting, rows, deferred, verdicts.epoch), verdicts.epoch)

    def _load(self, posting: Posting, rows: Rows | None, epoch: int) -> None:
        if posting.open:
            deadline = asyncio.get_running_loop().time() + self._settings.send_timeout_s
            self._shipper.load(posting, rows, epoch, deadline)

    async def _judge_again(self) -> None:
        """Ask the interceptor's successor about what its predecessor passed but nobody has; wait until it is there."""
        loop, pause = asyncio.get_running_loop(), _FIRST_PAUSE_S
        deadline = loop.time() + self._settings.interceptor_timeout_s
        while self._shipper.stale_verdicts:
            if loop.time() > deadline:
                self._shipper.abandon(InterceptorUnavailable(_STALE))
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
        if self._judging is not None and self._judging.open:
            self._judging.fail(None, error)
