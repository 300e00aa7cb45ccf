"""Sends of many messages: in parts, each accepted when there is room, with one answer for all of them."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import partial
from time import time

from ray_messaging.errors import MessagingError
from ray_messaging.model.batch import Batch
from ray_messaging.receipt import Receipts
from ray_messaging.sending.accumulation.accumulator import Accumulator
from ray_messaging.sending.accumulation.bulk_input import ColumnChunk, entry_chunks
from ray_messaging.sending.accumulation.joined_receipts import joined
from ray_messaging.sending.accumulation.pending_batch import ColumnBatch, EncodedBatch, Entry

Accept = Callable[[], "asyncio.Future[Receipts]"]


class BulkSender:
    """Send much by an outbox, a batch at a time."""

    def __init__(self, outbox: Accumulator) -> None:
        self._outbox = outbox
        self._new_future: Callable[[], asyncio.Future[Receipts]] = asyncio.get_running_loop().create_future

    async def send_entries(self, entries: Sequence[Entry]) -> Receipts:
        """Send messages, each to one or to many; return their receipts."""
        rows = sum(len(entry.to_ids) for entry in entries)
        return await self._each((partial(self._outbox.extend, chunk) for chunk in entry_chunks(entries)), rows)

    async def send_columns(self, chunks: Sequence[ColumnChunk], topic: str) -> Receipts:
        """Send columns; return their receipts."""
        rows = sum(len(chunk.from_ids) for chunk in chunks)
        return await self._each((partial(self._put_chunk, chunk, topic) for chunk in chunks), rows)

    async def relay(self, batches: Sequence[Batch]) -> Receipts:
        """Send batches that another process has gathered; return their receipts."""
        return await self._each((partial(self._relay, batch) for batch in batches), sum(map(len, batches)))

    def _put_chunk(self, chunk: ColumnChunk, topic: str) -> "asyncio.Future[Receipts]":
        future, (senders, receivers, lines) = self._new_future(), chunk
        parcel = ColumnBatch(self._outbox.step, senders, receivers, topic, lines, time(), future)
        return self._outbox.put(parcel, lines.nbytes, future)

    def _relay(self, batch: Batch) -> "asyncio.Future[Receipts]":
        future = self._new_future()
        return self._outbox.put(EncodedBatch(batch, future), 0 if batch.lines is None else batch.lines.nbytes, future)

    async def _each(self, accepts: Iterable[Accept], rows: int) -> Receipts:
        """Have the parts accepted, each when there is room; return the receipts of their rows."""
        futures: list[asyncio.Future[Receipts]] = []
        stopped: MessagingError | None = None
        self._outbox.begun()
        try:
            for accept in accepts:
                try:
                    await self._outbox.enter()
                except MessagingError as error:
                    # Others get the same error: what is known of these rows goes on one of their own.
                    stopped = copy(error)
                    stopped.__cause__ = error.__cause__
                    break
                futures.append(accept())
            return await joined(futures, stopped, rows)
        finally:
            self._outbox.concluded()
            for future in futures:
                # Who was cancelled does not ask any more what became of the rest.
                future.add_done_callback(lambda done: done.cancelled() or done.exception())
