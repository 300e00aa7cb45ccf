"""The outbox: while one batch is under way, the next one gathers."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import partial
from time import monotonic, time

from ray_messaging.channels import AgentId
from ray_messaging.config import MessagingConfig
from ray_messaging.errors import Closed, MessagingError
from ray_messaging.frames import Batch
from ray_messaging.interception.verdicts import Judge
from ray_messaging.loops import Loop
from ray_messaging.receipt import Receipt, Receipts
from ray_messaging.sending import refusals
from ray_messaging.sending.bulk import ColumnChunk, entry_chunks
from ray_messaging.sending.concluding import Concluder
from ray_messaging.sending.joined import joined
from ray_messaging.sending.parcel import (
    BATCH_ROWS,
    LARGE_LINE,
    ROW_CELLS,
    Bundle,
    Columns,
    Draft,
    Entry,
    Many,
    Parcel,
    Relayed,
)
from ray_messaging.sending.posting import Posting
from ray_messaging.sending.pump import Pump
from ray_messaging.sending.room import Room

_FULL = BATCH_ROWS * ROW_CELLS  # cells

Accept = Callable[[], "asyncio.Future[Receipts]"]


class Outbox:
    """Gather messages in parcels for the pump, in order, as long as there is room."""

    def __init__(
        self, shipper: Concluder, judge: Judge, settings: MessagingConfig, settled: Callable[[Posting], None]
    ) -> None:
        self._step: int | None = None
        self.room = Room(settings.outbox_messages, settings.outbox_bytes)
        self._patience_s = settings.send_timeout_s + settings.interceptor_timeout_s  # of whoever closes
        self._settled = settled
        self._parcels: deque[Parcel] = deque()
        self._open: Draft | None = None
        self._loop = asyncio.get_running_loop()
        self._new_future: Callable[[], asyncio.Future[Receipt]] = self._loop.create_future
        self._bulks = 0
        self._idle: list[asyncio.Future[None]] = []
        self._broken: MessagingError | None = None
        self._pump = Pump(shipper, judge, settings, self._next, self._finish, self._break, self._closed)

    @property
    def judge(self) -> Judge:
        """Return who gives verdicts; another one can be set, for the batches from then on."""
        return self._pump.judge

    @judge.setter
    def judge(self, judge: Judge) -> None:
        self._pump.judge = judge

    @property
    def step(self) -> int | None:
        """Return the simulation step that is stamped on what is accepted."""
        return self._step

    @step.setter
    def step(self, step: int | None) -> None:
        if step != self._step:
            self._step = step
            self._open = None  # a draft has one step

    @property
    def deferred(self) -> int:
        """Return how many messages wait for a slow rule, or behind one that does."""
        return len(self._pump.deferred)

    @property
    def batches(self) -> int:
        """Return how many batches were sent."""
        return self._pump.batches

    def loop(self) -> Loop:
        """Tell how sending is doing; what waits for a slow rule is no work that is left undone."""
        error = "" if self._broken is None else str(self._broken)
        busy = self.room.rows > self.deferred
        return Loop("outbox", self._pump.alive, busy, monotonic() - self._pump.turned_at, error)

    def _check(self) -> None:
        """Raise why nothing can be sent any more, if so."""
        if self._broken is not None:
            raise self._broken.with_traceback(None)

    # -- accepting ------------------------------------------------------------------------------------------------

    def append(
        self, from_id: AgentId | None, to_id: AgentId | None, topic: str, line: bytes
    ) -> "asyncio.Future[Receipt]":
        """Accept one message; the future gives its receipt. Whoever finds no room waits for it before."""
        size = len(line) + 1
        draft = self._open
        # A full draft, one of another step, and one under way are no longer open, nor is any when sending has stopped.
        if draft is None or size > LARGE_LINE:
            self._check()
            draft = self._draft(size)
            self._pump.wake()  # it sleeps only while no draft is open
        future = self._new_future()
        cells = draft.cells
        cells += (from_id, to_id, topic, line, time(), future)
        if len(cells) >= _FULL:
            self._open = None
        room = self.room
        room.rows += 1
        room.nbytes += size
        return future

    async def gather(self, entries: Sequence[Entry]) -> Receipts:
        """Accept messages to many, each batch of them when there is room; return their receipts."""
        rows = sum(len(entry.to_ids) for entry in entries)
        return await self._each((partial(self._gather, chunk) for chunk in entry_chunks(entries)), rows)

    async def put_columns(self, chunks: Sequence[ColumnChunk], topic: str) -> Receipts:
        """Accept columns, each chunk when there is room; return their receipts."""
        rows = sum(len(chunk.from_ids) for chunk in chunks)
        return await self._each((partial(self._put_chunk, chunk, topic) for chunk in chunks), rows)

    async def relay(self, batches: Sequence[Batch]) -> Receipts:
        """Accept batches that another process has gathered, each when there is room; return their receipts."""
        return await self._each((partial(self._relay, batch) for batch in batches), sum(map(len, batches)))

    def _gather(self, entries: Sequence[Entry]) -> "asyncio.Future[Receipts]":
        now, large = time(), max(len(entry.line) + 1 for entry in entries)
        draft = self._draft(sum(len(entry.line) + 1 for entry in entries) if large > LARGE_LINE else 0)
        low = len(draft)
        for entry in entries:
            draft.extend(entry, now)
            self.room.nbytes += len(entry.line) + 1
        future: asyncio.Future[Receipts] = self._loop.create_future()
        draft.manies.append(Many(low, len(draft), future))
        self.room.rows += len(draft) - low
        if len(draft) >= BATCH_ROWS:
            self._open = None
        self._pump.wake()
        return future

    def _put_chunk(self, chunk: ColumnChunk, topic: str) -> "asyncio.Future[Receipts]":
        future: asyncio.Future[Receipts] = self._loop.create_future()
        senders, receivers, lines = chunk
        parcel = Columns(self.step, senders, receivers, topic, lines, time(), future)
        return self._put(parcel, lines.nbytes, future)

    def _relay(self, batch: Batch) -> "asyncio.Future[Receipts]":
        future: asyncio.Future[Receipts] = self._loop.create_future()
        return self._put(Relayed(batch, future), 0 if batch.lines is None else batch.lines.nbytes, future)

    async def transact(self, bundle: Bundle) -> None:
        """Accept a transaction when there is room; its future tells what becomes of it."""
        self._check()
        if len(bundle) and self.room.crowded:
            await self.room.wait()
            self._check()
        self._open = None
        self._bulks += 1
        bundle.future.add_done_callback(self._concluded)
        self._parcels.append(bundle)
        self.room.rows += len(bundle)
        self.room.nbytes += bundle.nbytes
        self._pump.wake()

    def _concluded(self, _future: "asyncio.Future[Receipts]") -> None:
        self._bulks -= 1
        self._tell_idle()

    @property
    def transactions(self) -> int:
        """Return how many transactions the server has, as far as we were told."""
        return self._pump.transactions

    def _put(self, parcel: Parcel, nbytes: int, future: "asyncio.Future[Receipts]") -> "asyncio.Future[Receipts]":
        self._open = None  # what comes one by one from now on goes behind it
        self._parcels.append(parcel)
        self.room.rows += len(parcel)
        self.room.nbytes += nbytes
        self._pump.wake()
        return future

    def _draft(self, large: int) -> Draft:
        """Return the parcel that messages are gathered in; `large` counts bytes of payloads that are not small."""
        draft = self._open
        if draft is None or not draft.holds(large):
            draft = self._open = Draft(self.step)
            self._parcels.append(draft)
        draft.large += large
        return draft

    async def _each(self, accepts: Iterable[Accept], rows: int) -> Receipts:
        """Accept the parts of a bulk send, each when there is room; return the receipts of its rows."""
        futures: list[asyncio.Future[Receipts]] = []
        stopped: MessagingError | None = None
        self._bulks += 1
        try:
            for accept in accepts:
                try:
                    if self.room.crowded:
                        await self.room.wait()
                    self._check()
                except MessagingError as error:
                    # Others get the same error: what is known of these rows goes on one of their own.
                    stopped = copy(error)
                    stopped.__cause__ = error.__cause__
                    break
                futures.append(accept())
            return await joined(futures, stopped, rows)
        finally:
            self._bulks -= 1
            self._tell_idle()
            for future in futures:
                # Who was cancelled does not ask any more what became of the rest.
                future.add_done_callback(lambda done: done.cancelled() or done.exception())

    # -- the end --------------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Wait until all that was accepted has its receipt."""
        if self.room.rows or self._bulks:
            done = self._loop.create_future()
            self._idle.append(done)
            await done

    async def close(self) -> None:
        """Send what was accepted, then stop; who waits for a slow rule is not waited for without end."""
        try:
            if self._broken is None:
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

    def _next(self) -> Parcel | None:
        """Give the pump its next parcel; what comes from now on goes behind it."""
        if not self._parcels:
            return None
        parcel = self._parcels.popleft()
        if parcel is self._open:
            self._open = None
        return parcel

    def _closed(self, rows: int, nbytes: int) -> None:
        """Make room for what has its receipts: a batch of which some wait for long must not hold others up."""
        self.room.give_back(rows, nbytes)

    def _finish(self, posting: Posting) -> None:
        self._settled(posting)
        self._tell_idle()

    def _tell_idle(self) -> None:
        if self.room.rows == 0 and self._bulks == 0:
            for done in self._idle:
                if not done.done():
                    done.set_result(None)
            self._idle.clear()

    def _break(self, error: MessagingError) -> None:
        """Give everybody who waits the error."""
        if self._broken is None:
            self._broken = error
        self.room.fail(error)
        while (parcel := self._next()) is not None:
            if isinstance(parcel, Bundle):
                parcel.fail(error)
            if len(parcel):
                self._pump.post(parcel).fail(None, error)
