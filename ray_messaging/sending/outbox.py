"""The outbox: while one batch is under way, the next one gathers."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

from ray_messaging.channels import AgentId
from ray_messaging.config import MessagingConfig
from ray_messaging.errors import Closed, MessagingError, TransitError
from ray_messaging.frames import Batch
from ray_messaging.interception.verdicts import Judge
from ray_messaging.receipt import Receipt, Receipts
from ray_messaging.sending.bulk import ColumnChunk
from ray_messaging.sending.parcel import BATCH_ROWS, Columns, Draft, Entry, Many, Parcel, Relayed
from ray_messaging.sending.posting import Posting
from ray_messaging.sending.pump import Pump
from ray_messaging.sending.shipper import Shipper

logger = logging.getLogger(__name__)


# A batch that nothing overlaps is sent in halves from this size on.
_SPLIT_ROWS = 256


class Outbox:
    """Gather messages, have each batch judged, and ship it; one batch is under way at a time, which keeps the order."""

    def __init__(
        self, shipper: Shipper, judge: Judge, settings: MessagingConfig, settled: Callable[[Posting], None]
    ) -> None:
        self.step: int | None = None
        self._settings = settings
        self._settled = settled
        self._parcels: deque[Parcel] = deque()
        self.rows = 0  # accepted, but without a receipt yet
        self._loop = asyncio.get_running_loop()
        self._open: Draft | None = None
        self._room: deque[asyncio.Future[None]] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._broken: MessagingError | None = None
        self._pump = Pump(shipper, judge, settings, self._next, self._finish, self._break)

    @property
    def judge(self) -> Judge:
        """Return who gives verdicts; another one can be set, for the batches from then on."""
        return self._pump.judge

    @judge.setter
    def judge(self, judge: Judge) -> None:
        self._pump.judge = judge

    @property
    def batches(self) -> int:
        """Return how many batches were sent."""
        return self._pump.batches

    def check(self) -> None:
        """Raise why nothing can be sent any more, if so."""
        if self._broken is not None:
            raise self._broken.with_traceback(None)

    @property
    def full(self) -> bool:
        """Tell whether senders must wait for room."""
        return self.rows >= self._settings.outbox_messages

    async def room(self) -> None:
        """Wait until the outbox is below its limit; those who wait go in turn."""
        while self.full:
            self.check()
            turn = asyncio.get_running_loop().create_future()
            self._room.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                self._admit()  # whose turn came at that very moment must not keep it
                raise
        self.check()
        self._admit()

    def _admit(self) -> None:
        """Let the next one who waits for room go on, if there is some; it lets in the one after it."""
        while self._room and not self.full:
            turn = self._room.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _draft(self) -> Draft:
        """Return the parcel that messages are gathered in."""
        draft = self._open
        if draft is None or len(draft) >= BATCH_ROWS or draft.step != self.step:
            draft = self._open = Draft(self.step)
            self._parcels.append(draft)
        return draft

    def append(
        self, from_id: AgentId | None, to_id: AgentId | None, topic: str, line: bytes
    ) -> "asyncio.Future[Receipt]":
        """Accept one message; the future gives its receipt."""
        if self._broken is not None:
            self.check()
        future: asyncio.Future[Receipt] = self._loop.create_future()
        draft = self._open
        # A full draft, one of another step, and one under way are no longer open.
        if draft is None or len(draft.rows) >= BATCH_ROWS or draft.step != self.step:
            draft = self._draft()
        draft.rows.append((from_id, to_id, topic, line, time.time(), future))
        self.rows += 1
        self._pump.wake()
        return future

    async def gather(self, entries: Sequence[Entry]) -> Receipts:
        """Accept messages to many, each batch of them when there is room; return their receipts."""
        futures: list[asyncio.Future[Receipts]] = []
        at = 0
        while at < len(entries):
            if self.full:
                await self.room()
            self.check()
            now, draft = time.time(), self._draft()
            low = len(draft)
            while at < len(entries) and len(draft) < BATCH_ROWS:
                draft.extend(entries[at], now)
                at += 1
            futures.append(asyncio.get_running_loop().create_future())
            draft.manies.append(Many(low, len(draft), futures[-1]))
            self._accept(draft, len(draft) - low)
        return await _joined(futures)

    async def put_columns(self, chunks: Sequence[ColumnChunk], topic: str) -> Receipts:
        """Accept columns, each chunk when there is room; return their receipts."""
        futures: list[asyncio.Future[Receipts]] = []
        for chunk in chunks:
            if self.full:
                await self.room()
            self.check()
            futures.append(asyncio.get_running_loop().create_future())
            self._accept(
                Columns(self.step, chunk.from_ids, chunk.to_ids, topic, chunk.lines, time.time(), futures[-1]),
                len(chunk.from_ids),
            )
        return await _joined(futures)

    async def relay(self, batches: Sequence[Batch]) -> Receipts:
        """Accept batches that another process has gathered, each when there is room; return their receipts."""
        futures: list[asyncio.Future[Receipts]] = []
        for batch in batches:
            if self.full:
                await self.room()
            self.check()
            futures.append(asyncio.get_running_loop().create_future())
            self._accept(Relayed(batch, futures[-1]), len(batch))
        return await _joined(futures)

    def _accept(self, parcel: Parcel, rows: int) -> None:
        if parcel is not self._open:
            # What comes one by one from now on goes behind it.
            self._open = None
            self._parcels.append(parcel)
        self.rows += rows
        self._pump.wake()

    async def flush(self) -> None:
        """Wait until all that was accepted has its receipt."""
        if self.rows:
            done = asyncio.get_running_loop().create_future()
            self._idle.append(done)
            await done

    async def close(self) -> None:
        """Send what was accepted, then stop."""
        if self._broken is None:
            await self.flush()
        await self.stop(Closed("this messager is closed: open another one"))

    async def stop(self, why: MessagingError) -> None:
        """Stop at once; what has no receipt yet gets the error."""
        await self._pump.stop(why)
        self._break(why)

    def _next(self, idle: bool) -> Parcel | None:  # noqa: FBT001 - the pump's question
        """Give the pump its next parcel; `idle` says that nothing else is under way."""
        if not self._parcels:
            return None
        parcel = self._parcels[0]
        if idle and parcel is self._open and len(parcel) >= _SPLIT_ROWS and not parcel.manies:
            # Everybody waits for this one batch: in halves, one is judged while the other one is written, and those
            # whose receipts are there go on meanwhile.
            return self._open.split()
        if parcel is self._open:
            self._open = None
        return self._parcels.popleft()

    def _finish(self, posting: Posting) -> None:
        self.rows -= len(posting.batch)
        self._settled(posting)
        self._admit()
        if self.rows == 0:
            for done in self._idle:
                if not done.done():
                    done.set_result(None)
            self._idle.clear()

    def _break(self, error: MessagingError) -> None:
        """Give everybody who waits the error."""
        if self._broken is None:
            self._broken = error
        while (parcel := self._next(idle=False)) is not None:
            self._pump.post(parcel).fail(None, error)
        for waiting in (*self._room, *self._idle):
            if not waiting.done():
                waiting.set_exception(error)


async def _joined(futures: "Sequence[asyncio.Future[Receipts]]") -> Receipts:
    """Wait for all parts of a bulk send; the first error speaks for it, with the receipts of every part."""
    if len(futures) == 1:
        return await futures[0]
    results = await asyncio.gather(*futures, return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)]
    if not errors:
        return Receipts([part for result in results if isinstance(result, Receipts) for part in result.parts])
    error = errors[0]
    if isinstance(error, TransitError):
        found: list[Receipt | None] = []
        for result in results:
            found += result if isinstance(result, Receipts) else getattr(result, "receipts", None) or []
        error.receipts = found
        error.message_ids = [id_ for each in errors for id_ in getattr(each, "message_ids", ())]
    raise error
