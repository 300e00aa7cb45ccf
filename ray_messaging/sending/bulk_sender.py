"""Bulk sends: one call sends many messages."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import partial
from time import time
from typing import TypeVar

import numpy as np

from ray_messaging.audiences.cache import AudienceCache, audience_of, current_audience
from ray_messaging.audiences.folding import spread
from ray_messaging.errors import MessagingError, OutcomeUnknown
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import PayloadColumn
from ray_messaging.model.extension import Extension
from ray_messaging.model.message_ids import MessageIdColumn
from ray_messaging.receipt import Receipt, Receipts
from ray_messaging.sending.accumulator import Accumulator
from ray_messaging.sending.bulk_input import edges_of, within_pairs
from ray_messaging.sending.frame_sender import FrameSender
from ray_messaging.sending.pending_batch import BulkWaiter, PendingBatch

T = TypeVar("T")
_CAUSED = Extension(caused_by=MessageIdColumn.none(0)).kind
# A plain batch of at most this many rows is joined with other messages, because sending a batch takes a fixed time,
# however few rows it has.
_FEW = 64


class BulkSender:
    """The sender for bulk sends: calls with many messages. Each batch is accepted when there is capacity for it."""

    def __init__(self, accumulator: Accumulator, frames: FrameSender, audiences: AudienceCache) -> None:
        self._accumulator = accumulator
        self._frames = frames
        self._audiences = audiences

    async def send(self, batches: Sequence[Batch]) -> Receipts:
        """Send batches; return the receipts of all rows. A batch gets its step and time when it is accepted.

        Raises: PayloadMismatch, before any message is sent, if a schema refuses a payload.
        """
        checked = await self._frames.check(batches)
        return await self._send(batches, partial(self._put_own, checked), sum(batch.rows for batch in batches))

    async def send_together(self, batches: Sequence[Batch]) -> Receipts:
        """Send messages as `send` does, but in one batch with messages that other calls send at the same time."""
        await self._frames.check(batches)
        return await self._send(batches, self._join_own, sum(batch.rows for batch in batches))

    async def send_questions(self, batches: Sequence[PendingBatch]) -> Receipts:
        """Send batches of questions; return the receipts of all rows.

        Raises: PayloadMismatch, before any question is sent, if a schema refuses a payload.
        """
        parts = [batch for pending in batches for batch in pending.parts]
        checked = await self._frames.check(parts)
        return await self._send(batches, partial(self._put, checked), sum(map(len, batches)))

    async def relay(self, batches: Sequence[Batch]) -> Receipts:
        """Send batches that another process has made; return the receipts of all rows, or what `broadcast` returns.

        Batches of broadcasts to an audience whose hearers are not looked up yet are sent by `broadcast`.

        Raises: PayloadMismatch, before any message is sent, if a schema refuses a payload; UnknownName for an audience
        that does not exist.
        """
        if batches and batches[0].unspread:
            return await self.broadcast(batches)
        checked = await self._frames.check(batches)
        receipts = await self._send(batches, partial(self._add, checked), sum(batch.rows for batch in batches))
        return Receipts([(outcome.cut(low, high), 0, high - low) for outcome, low, high in receipts.parts])

    async def broadcast(self, broadcasts: Sequence[Batch]) -> Receipts:
        """Send the message in each row to all agents that hear its sender; return a receipt for each row and hearer.

        Raises: UnknownName for an audience that does not exist; otherwise the same errors as `send`.
        """
        if not broadcasts:
            return Receipts([])
        await self._frames.refresh()  # if an earlier call has changed the audience, the new version must be used
        directory = self._frames.directory
        found = current_audience(directory.audiences, audience_of(broadcasts[0]).name)
        edges = await edges_of(found, broadcasts[0].topics[0], directory.routing, self._audiences)
        for batch in broadcasts:
            assert batch.extension is not None
            batch.extension.audience = found
        parts = [part for batch in broadcasts for part in within_pairs(batch, edges)]
        checked = await self._frames.check(parts)
        pairs = sum(int(edges.counts(batch.from_ids).sum()) for batch in parts)

        def put(part: Batch, call_row: int) -> BulkWaiter:
            return self._put(checked, PendingBatch.of(spread(part, edges)), call_row)

        return await self._send(parts, put, pairs)

    def _put_own(self, checked: int, batch: Batch, call_row: int) -> BulkWaiter:
        batch.step, batch.sent_at = self._accumulator.step, time()
        return self._put(checked, PendingBatch.of(batch), call_row)

    def _join_own(self, batch: Batch, call_row: int) -> BulkWaiter:
        batch.step, batch.sent_at = self._accumulator.step, time()
        return self._accumulator.join(batch, call_row)

    def _add(self, checked: int, batch: Batch, call_row: int) -> BulkWaiter:
        """Accept a batch of another process. If it is small and has only plain messages, join it to the open batch.

        Return an object whose future gets the receipts of the batch.

        Args: `checked` is the version of the schemas by which the batch was checked; `call_row` is the index of the
        batch's first message in the bulk send.
        """
        extension = batch.extension
        # A batch is plain if its messages are not traced, all have the same step or none, and are no questions, answers
        # or broadcasts.
        plain = extension is None or (extension.kind == _CAUSED and extension.ordinal is None)
        plain = plain and batch.trace is None and batch.numbers is None and not isinstance(batch.step, np.ndarray)
        if plain and batch.rows <= _FEW and isinstance(batch.lines, PayloadColumn) and not batch.lines.raw:
            return self._accumulator.join(batch, call_row)
        return self._put(checked, PendingBatch.of(batch), call_row, own=False)

    def _put(self, checked: int, pending: PendingBatch, call_row: int, *, own: bool = True) -> BulkWaiter:
        """Accept a batch without joining it with other messages. Return an object whose future gets the receipts.

        Args: `checked` is the version of the schemas by which the batch was checked. The schemas may have changed while
        the batch waited for capacity. If `own` is true, this process has made the batch, and decides here whether the
        batch is traced.
        """
        tracer, [batch] = self._accumulator.tracer, pending.parts
        # For a batch that another process has made, that process has decided whether the batch is traced.
        pending.trace = tracer.open() if own and batch.trace is None else tracer.follow(batch.trace)
        pending.checked = checked
        waiter = BulkWaiter(0, len(pending), asyncio.get_running_loop().create_future(), call_row)
        pending.bulks.append(waiter)
        self._accumulator.put(pending)
        return waiter

    async def _send(self, batches: Iterable[T], add: Callable[[T, int], BulkWaiter], rows: int) -> Receipts:
        """Accept each batch by calling `add` when there is capacity; return the receipts of all rows."""
        futures: list[asyncio.Future[Receipts]] = []
        call_row, stopped = 0, None
        self._accumulator.bulks += 1
        try:
            for batch in batches:
                try:
                    await self._accumulator.enter()
                except MessagingError as error:
                    # Other callers get the same error object, so this caller's receipts are set on a copy of it.
                    stopped = copy(error)
                    stopped.__cause__ = error.__cause__
                    break
                low, high, future, call_row = add(batch, call_row)
                futures.append(future)
                call_row += high - low
            return await join_receipts(futures, stopped, rows)
        except BaseException:
            for future in futures:
                # The caller was cancelled, so nobody else reads the errors of the batches.
                future.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise
        finally:
            self._accumulator.bulk_done()


async def join_receipts(
    futures: "Sequence[asyncio.Future[Receipts]]", stopped: MessagingError | None, rows: int
) -> Receipts:
    """Wait for all batches of a bulk send; return their receipts, or raise one error for all.

    The error has the receipts of the rows that were sent. If a batch has failed with OutcomeUnknown, that error is
    raised rather than others, because only OutcomeUnknown warns the caller not to send again.

    Args: `stopped` is the error because of which some batches were not accepted, or None. `rows` is the number of rows
    of all batches, accepted or not.
    """
    if len(futures) == 1 and stopped is None:
        return await futures[0]
    results = await asyncio.gather(*futures, return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)] + ([stopped] if stopped else [])
    if not errors:
        return Receipts([part for result in results if isinstance(result, Receipts) for part in result.parts])
    error = next((each for each in errors if isinstance(each, OutcomeUnknown)), errors[0])
    if isinstance(error, MessagingError):
        found: list[Receipt | None] = []
        for result in results:
            found += result if isinstance(result, Receipts) else getattr(result, "receipts", None) or []
        error.receipts = found + [None] * (rows - len(found))
        error.message_ids = [id_ for each in errors for id_ in getattr(each, "message_ids", ())]
    raise error
