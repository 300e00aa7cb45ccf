"""Bulk sends: sends of many messages in one call."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import partial
from time import time

import numpy as np

from ray_messaging.audiences.cache import UNRESOLVED, AudienceCache, audience_of, current_audience, name_of
from ray_messaging.audiences.edges import Edges
from ray_messaging.audiences.folding import spread
from ray_messaging.errors import MessagingError, OutcomeUnknown
from ray_messaging.message import cause_here
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import PayloadColumn
from ray_messaging.model.extension import AudiencePairs, Extension
from ray_messaging.model.message_ids import MessageIdColumn
from ray_messaging.receipt import Receipt, Receipts
from ray_messaging.sending.accumulator import Accumulator
from ray_messaging.sending.bulk_input import (
    ColumnChunk,
    edges_of,
    entry_chunks,
    is_unspread,
    payloads_of,
    unspread_batches,
    within_pairs,
)
from ray_messaging.sending.frame_sender import FrameSender
from ray_messaging.sending.pending_batch import BulkWaiter, EncodedBatch, Entry, caused_by_one
from ray_messaging.sending.schema_checks import check_current

AddPart = Callable[[], "asyncio.Future[Receipts]"]
_CAUSED = Extension(caused_by=MessageIdColumn.none(0)).kind
# Plain batches of at most this many rows become parts of other batches, because even a small batch takes time of its
# own.
_FEW = 64


class BulkSender:
    """One send of many messages, in parts: each part is a batch, and is accepted when there is capacity for it."""

    def __init__(self, accumulator: Accumulator, frames: FrameSender, audiences: AudienceCache) -> None:
        self._accumulator = accumulator
        self._frames = frames
        self._audiences = audiences
        self._rows = 0  # the number of rows that were accepted
        self._new_future: Callable[[], asyncio.Future[Receipts]] = asyncio.get_running_loop().create_future

    async def send_entries(self, entries: Sequence[Entry]) -> Receipts:
        """Send messages, each to one or more recipients; return their receipts.

        Raises: PayloadMismatch, before any message is sent, if a schema refuses a payload.
        """
        await check_current(self._frames, lambda: payloads_of(entries))
        rows = sum(len(entry.to_ids) for entry in entries)
        return await self._send((partial(self._accumulator.extend, chunk) for chunk in entry_chunks(entries)), rows)

    async def send_columns(self, chunks: Sequence[ColumnChunk], topic: str) -> Receipts:
        """Send messages given as columns; return their receipts. Raises the same errors as `send_entries`."""
        await check_current(self._frames, lambda: (chunk.batch((topic,), None, 0.0) for chunk in chunks))
        rows = sum(len(chunk.from_ids) for chunk in chunks)
        cause = cause_here()
        return await self._send((partial(self._put_columns, chunk, topic, cause) for chunk in chunks), rows)

    async def send_batches(self, batches: Sequence[EncodedBatch]) -> Receipts:
        """Send batches; return their receipts. Raises the same errors as `send_entries`."""
        await check_current(self._frames, lambda: (pending.batch for pending in batches))
        for batch in batches:
            batch.checked = self._frames.directory.schemas.version
        parts = (partial(self._put_own, batch) for batch in batches)
        return await self._send(parts, sum(map(len, batches)))

    async def relay(self, batches: Sequence[Batch]) -> Receipts:
        """Send batches that another process has built; return their receipts.

        Raises: the same errors as `send_entries`.
        """
        if batches and is_unspread(batches[0]):
            return await self._broadcast(batches)
        await check_current(self._frames, lambda: batches)
        receipts = await self._send((partial(self._put_relayed, batch) for batch in batches), sum(map(len, batches)))
        return Receipts([(outcome.cut(low, high), 0, high - low) for outcome, low, high in receipts.parts])

    async def broadcast(self, audience: object, chunks: list[ColumnChunk], topic: str, step: int | None) -> Receipts:
        """Send the message in each row to its sender's hearers; return a receipt for each pair, by row, then hearer.

        Raises: UnknownName for an audience that does not exist; otherwise the same errors as `send_entries`.
        """
        named = AudiencePairs(name_of(audience), UNRESOLVED)
        return await self._broadcast(unspread_batches(chunks, named, topic, step))

    async def _broadcast(self, broadcasts: Sequence[Batch]) -> Receipts:
        if not broadcasts:
            return Receipts([])
        await self._frames.refresh()  # if an earlier call has changed the audience, its new version must be used
        directory = self._frames.directory
        found = current_audience(directory.audiences, audience_of(broadcasts[0]).name)
        edges = await edges_of(found, broadcasts[0].topics[0], directory.routing, self._audiences)
        for batch in broadcasts:
            assert batch.extension is not None
            batch.extension.audience = found
        parts = [part for batch in broadcasts for part in within_pairs(batch, edges)]
        await check_current(self._frames, lambda: parts)
        pairs = sum(int(edges.counts(batch.from_ids).sum()) for batch in parts)
        return await self._send((partial(self._put_spread, batch, edges) for batch in parts), pairs)

    def _put_columns(self, chunk: ColumnChunk, topic: str, cause: str | None) -> "asyncio.Future[Receipts]":
        extension = caused_by_one(cause, len(chunk.from_ids))
        batch = chunk.batch((topic,), self._accumulator.step, time(), extension)
        return self._put_own(EncodedBatch(batch=batch, checked=self._frames.directory.schemas.version))

    def _put_spread(self, broadcasts: Batch, edges: Edges) -> "asyncio.Future[Receipts]":
        pairs = self._encoded(spread(broadcasts, edges))
        return self._put_own(pairs) if broadcasts.trace is None else self._put(pairs)

    def _put_relayed(self, batch: Batch) -> "asyncio.Future[Receipts]":
        extension, lines = batch.extension, batch.lines
        # A batch is plain if its messages are not traced, belong to no step, and are no questions, answers or
        # broadcasts.
        plain = extension is None or (extension.kind == _CAUSED and extension.ordinal is None)
        plain = plain and batch.trace is None and not isinstance(batch.step, np.ndarray)
        if plain and batch.rows <= _FEW and isinstance(lines, PayloadColumn) and lines.index is None and not lines.raw:
            first, self._rows = self._rows, self._rows + batch.rows
            return self._accumulator.join(batch, first)
        return self._put(self._encoded(batch))

    def _encoded(self, batch: Batch) -> EncodedBatch:
        trace = self._accumulator.tracer.follow(batch.trace)
        return EncodedBatch(batch=batch, checked=self._frames.directory.schemas.version, trace=trace)

    def _put_own(self, pending: EncodedBatch) -> "asyncio.Future[Receipts]":
        pending.trace = self._accumulator.tracer.open()
        return self._put(pending)

    def _put(self, pending: EncodedBatch) -> "asyncio.Future[Receipts]":
        future = self._new_future()
        pending.call_row = self._rows
        self._rows += len(pending)
        pending.bulks.append(BulkWaiter(0, len(pending), future))
        self._accumulator.put(pending, pending.nbytes)
        return future

    async def _send(self, parts: Iterable[AddPart], rows: int) -> Receipts:
        """Call each part's function when there is capacity; return the receipts of all rows."""
        futures: list[asyncio.Future[Receipts]] = []
        stopped: MessagingError | None = None
        self._accumulator.bulk_begun()
        try:
            for add in parts:
                try:
                    await self._accumulator.enter()
                except MessagingError as error:
                    # Other callers get the same error object, so the receipts of these rows are set on a copy.
                    stopped = copy(error)
                    stopped.__cause__ = error.__cause__
                    break
                futures.append(add())
            return await join_receipts(futures, stopped, rows)
        finally:
            self._accumulator.bulk_done()
            for future in futures:
                # A cancelled caller no longer reads the errors of the other parts.
                future.add_done_callback(lambda done: done.cancelled() or done.exception())


async def join_receipts(
    futures: "Sequence[asyncio.Future[Receipts]]", stopped: MessagingError | None, rows: int
) -> Receipts:
    """Wait for all parts of a bulk send; return their receipts, or raise one error for all parts.

    The error has the receipts of the rows that were sent. If some parts have an OutcomeUnknown, the first of these
    errors is raised, because only OutcomeUnknown warns the caller not to send again.
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
