"""The outbox: while one batch is under way, the next one gathers."""

import asyncio
from collections.abc import Callable, Mapping
from time import monotonic

from ray_messaging.addressing.channels import AgentId
from ray_messaging.common.task_health import TaskHealth
from ray_messaging.config import MessagingConfig
from ray_messaging.errors import Closed, MessagingError
from ray_messaging.interception.client.verdict_client import VerdictClient
from ray_messaging.sending import send_errors as refusals
from ray_messaging.sending.accumulation.gathering import Check, Gathering
from ray_messaging.sending.accumulation.pending_batch import TransactionBatch
from ray_messaging.sending.delivery.in_flight_batch import InFlightBatch
from ray_messaging.sending.delivery.send_loop import SendLoop
from ray_messaging.sending.delivery.transaction_sender import Concluder


class Accumulator(Gathering):
    """Gather messages for a pump, and see all of them to their end."""

    def __init__(
        self,
        shipper: Concluder,
        judge: VerdictClient,
        settings: MessagingConfig,
        settled: Callable[[InFlightBatch], None],
        addresses: Mapping[str, tuple[AgentId | None, str]],
        check: Check,
    ) -> None:
        self._pump = SendLoop(shipper, judge, settings, self.take, self._finish, self._break, self._closed)
        super().__init__(settings, addresses, check, self._pump.wake)
        self._patience_s = settings.send_timeout_s + settings.interceptor_timeout_s  # of whoever closes
        self._settled = settled
        self._bulks = 0
        self._idle: list[asyncio.Future[None]] = []

    @property
    def judge(self) -> VerdictClient:
        """Return who gives verdicts; another one can be set, for the batches from then on."""
        return self._pump.judge

    @judge.setter
    def judge(self, judge: VerdictClient) -> None:
        self._pump.judge = judge

    @property
    def deferred(self) -> int:
        """Return how many messages wait for a slow rule, or behind one that does."""
        return len(self._pump.deferred)

    @property
    def batches(self) -> int:
        """Return how many batches were sent."""
        return self._pump.batches

    def loop(self) -> TaskHealth:
        """Tell how sending is doing; what waits for a slow rule is no work that is left undone."""
        error = "" if self.broken is None else str(self.broken)
        busy = self.rows > self.deferred
        return TaskHealth("outbox", self._pump.alive, busy, monotonic() - self._pump.turned_at, error)

    async def transact(self, bundle: TransactionBatch) -> None:
        """Accept a transaction when there is room; its future tells what becomes of it."""
        self._raise_if_broken()
        if len(bundle):
            await self.enter()
        self._bulks += 1
        bundle.future.add_done_callback(self.concluded)
        self.put(bundle, bundle.nbytes, bundle.future)

    def begun(self) -> None:
        """Note that a send of several parts has begun; `concluded` tells its end."""
        self._bulks += 1

    def concluded(self, _future: object = None) -> None:
        """Note the end of a send of several parts, or of a transaction."""
        self._bulks -= 1
        self._tell_idle()

    @property
    def transactions(self) -> int:
        """Return how many transactions the server has, as far as we were told."""
        return self._pump.transactions

    # -- the end --------------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Wait until all that was accepted has its receipt."""
        if self.rows or self._bulks:
            done = self._loop.create_future()
            self._idle.append(done)
            await done

    async def close(self) -> None:
        """Send what was accepted, then stop; who waits for a slow rule is not waited for without end."""
        try:
            if self.broken is None:
                await self._finish_up()
        finally:
            await self.stop(Closed("this messager is closed: open another one"))

    async def _finish_up(self) -> None:
        """Wait until all has its receipt; what still waits for a slow rule after a while gets an error."""
        try:
            async with asyncio.timeout(self._patience_s):
                await self.flush()
        except TimeoutError:
            self._pump.deferred.give_up(refusals.undecided(self._patience_s))
            self._pump.wake()  # a transaction may wait for them
            await self.flush()

    async def stop(self, why: MessagingError) -> None:
        """Stop at once; what has no receipt yet gets the error."""
        await self._pump.stop(why)
        self._break(why)

    # -- for the pump ---------------------------------------------------------------------------------------------

    def _closed(self, rows: int, nbytes: int) -> None:
        """Make room for what has its receipts: a batch of which some wait for long must not hold others up."""
        self.room.give_back(rows, nbytes)

    def _finish(self, posting: InFlightBatch) -> None:
        self._settled(posting)
        self._tell_idle()

    def _tell_idle(self) -> None:
        if self._idle and self.rows == 0 and self._bulks == 0:
            for done in self._idle:
                if not done.done():
                    done.set_result(None)
            self._idle.clear()

    def _break(self, error: MessagingError) -> None:
        """Give everybody who waits the error."""
        if self.broken is None:
            self.broken = error
        self.room.fail(error)
        while (parcel := self.take()) is not None:
            if isinstance(parcel, TransactionBatch):
                parcel.fail(error)
            if len(parcel):
                self._pump.post(parcel).fail(None, error)
