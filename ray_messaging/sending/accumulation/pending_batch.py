"""What gathers while a batch is under way: rows, and the futures of those who wait for their receipts."""

import asyncio
from collections.abc import Sequence
from struct import pack
from typing import Any, NamedTuple

import numpy as np

from ray_messaging.addressing.channels import AgentId
from ray_messaging.common.limits import BATCH_BYTES, BATCH_ROWS
from ray_messaging.errors import MessagingError, PayloadTooLarge, TransactionError
from ray_messaging.model.batch import Batch
from ray_messaging.model.id_column import IdColumn
from ray_messaging.model.payload_column import PayloadColumn
from ray_messaging.receipt import Receipt, Receipts
from ray_messaging.transports.base import Conclusion

LARGE_LINE = BATCH_BYTES // BATCH_ROWS


class Entry(NamedTuple):
    """One payload for one or more recipients (None: the channel is no agent's)."""

    from_id: AgentId | None
    to_ids: list[AgentId | None]
    topic: str
    line: bytes


class BulkWaiter(NamedTuple):
    """Somebody who waits for the receipts of the rows from `low` to `high`."""

    low: int
    high: int
    future: "asyncio.Future[Receipts]"


class PendingBatch:
    """Be rows that will go as one batch.

    `singles` holds a future per row for messages sent one by one (None for rows of a bulk send; empty where there is
    none), `manies` those who wait for bulk sends; `alone`: each row has a future of its own.
    """

    __slots__ = ("alone", "manies", "singles", "step")

    def __init__(self, step: int | None) -> None:
        self.step = step
        self.singles: Sequence[asyncio.Future[Receipt] | None] = ()
        self.alone = False
        self.manies: list[BulkWaiter] = []

    def __len__(self) -> int:
        raise NotImplementedError

    def seal(self, sender: str, epoch: int, first: int) -> Batch:
        """Build the batch."""
        raise NotImplementedError


# From_id, to_id, topic, payload, time, and the future of who waits for this one message alone (or None).
ROW_CELLS = 6
_LINE_CELL = 3
_COLUMNS = [slice(cell, None, ROW_CELLS) for cell in range(ROW_CELLS)]


class RowBatch(PendingBatch):
    """Be a parcel that messages are appended to, one by one; columns are made of them when it is sealed.

    The cells of all rows stand in one list, one row behind the other: slices of it are its columns, and no row needs an
    object of its own. `counted` is how many cells have been accounted for, `nbytes` what their payloads take.
    """

    __slots__ = ("_shared", "cells", "counted", "large", "nbytes")

    def __init__(self, step: int | None) -> None:
        super().__init__(step)
        self.cells: list[Any] = []
        self.alone = True
        self.counted = self.nbytes = 0
        self.large = 0
        self._shared = False

    def __len__(self) -> int:
        return len(self.cells) // ROW_CELLS

    def lines(self, cell: int) -> list[bytes]:
        """Return the payloads from a row on that begins at a cell."""
        return self.cells[cell + _LINE_CELL :: ROW_CELLS]

    def holds(self, large: int) -> bool:
        """Tell whether so many bytes of payloads that are not small fit in, too."""
        return self.large == 0 or self.large + large <= BATCH_BYTES

    def extend(self, entry: Entry, now: float) -> None:
        """Add one payload for some recipients; a bulk send waits for them."""
        from_id, to_ids, topic, line = entry
        self.alone = False
        self._shared |= len(to_ids) > 1
        for to_id in to_ids:
            self.cells += (from_id, to_id, topic, line, now, None)

    def seal(self, sender: str, epoch: int, first: int) -> Batch:
        """Build the batch."""
        from_ids, to_ids, topics, lines, times, self.singles = map(self.cells.__getitem__, _COLUMNS)
        table, topic = (topics[0],), None
        if topics.count(topics[0]) < len(topics):
            places = {name: place for place, name in enumerate(dict.fromkeys(topics))}
            table, topic = tuple(places), np.array([places[name] for name in topics], np.uint16)
        return Batch(
            sender=sender,
            epoch=epoch,
            first=first,
            from_ids=IdColumn.of(from_ids),
            to_ids=IdColumn.of(to_ids),
            topics=table,
            topic=topic,
            step=self.step,
            sent_at=times[0] if len(times) == 1 else np.frombuffer(pack(f"={len(times)}d", *times), np.float64),
            lines=once(lines) if self._shared else PayloadColumn.of(lines, nbytes=self.nbytes or -1),
            rows=len(lines),
        )


class TransactionBatch(RowBatch):
    """Be a transaction: rows that go whole or not at all, with what it concludes (None: nothing, it only asks).

    `future` tells the receipts. `number` is the transaction's, once it may be on its way.
    """

    __slots__ = ("conclusion", "future", "number")

    def __init__(self, step: int | None) -> None:
        super().__init__(step)
        self.conclusion: Conclusion | None = None
        self.future: asyncio.Future[Receipts] = asyncio.get_running_loop().create_future()
        # Who was cancelled does not ask any more.
        self.future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.number: int | None = None

    def add(self, entries: Sequence[Entry], now: float) -> None:
        """Queue payloads for their recipients; raise TransactionError, PayloadTooLarge before any is queued."""
        rows = len(self) + sum(len(entry.to_ids) for entry in entries)
        nbytes = self.nbytes + sum(len(line) + 1 for line in {id(entry.line): entry.line for entry in entries}.values())
        if rows > BATCH_ROWS:
            raise TransactionError(
                f"a transaction sends at most {BATCH_ROWS:,} messages, this one would send {rows:,}: fetch fewer at a "
                "time, so that each transaction sends less"
            )
        if nbytes > BATCH_BYTES:
            raise PayloadTooLarge(
                f"a transaction sends at most {BATCH_BYTES:,} bytes of payload, this one would send {nbytes:,}: fetch "
                "fewer messages at a time, or send references to the data",
                size=nbytes,
                limit=BATCH_BYTES,
            )
        self._shared |= len({id(entry.line) for entry in entries}) < len(entries)
        for entry in entries:
            self.extend(entry, now)
        self.nbytes = nbytes

    def fail(self, error: MessagingError) -> None:
        """Tell whoever waits why nothing of it was written, or that nobody knows."""
        if not self.future.done():
            self.future.set_exception(error)


def once(lines: Sequence[bytes]) -> PayloadColumn:
    """Keep a payload that goes to many once: they share the very object."""
    places: dict[int, int] = {}
    index = [places.setdefault(id(line), len(places)) for line in lines]
    found = dict(zip(map(id, lines), lines, strict=True))
    return PayloadColumn.of([found[key] for key in places], np.array(index, np.uint32))


class ColumnBatch(PendingBatch):
    """Be a parcel of whole columns."""

    __slots__ = ("_from_ids", "_lines", "_now", "_to_ids", "_topic")

    def __init__(
        self,
        step: int | None,
        from_ids: IdColumn,
        to_ids: IdColumn,
        topic: str,
        lines: PayloadColumn,
        now: float,
        future: "asyncio.Future[Receipts]",
    ) -> None:
        super().__init__(step)
        self._from_ids = from_ids
        self._to_ids = to_ids
        self._topic = topic
        self._lines = lines
        self._now = now
        self.manies.append(BulkWaiter(0, len(from_ids), future))

    def __len__(self) -> int:
        return len(self._from_ids)

    def seal(self, sender: str, epoch: int, first: int) -> Batch:
        """Build the batch."""
        return Batch(
            sender=sender,
            epoch=epoch,
            first=first,
            from_ids=self._from_ids,
            to_ids=self._to_ids,
            topics=(self._topic,),
            step=self.step,
            sent_at=self._now,
            lines=self._lines,
        )


class EncodedBatch(PendingBatch):
    """Be a parcel that another process has gathered and encoded."""

    __slots__ = ("_batch",)

    def __init__(self, batch: Batch, future: "asyncio.Future[Receipts]") -> None:
        super().__init__(None)
        self._batch = batch
        self.manies.append(BulkWaiter(0, len(batch), future))

    def __len__(self) -> int:
        return len(self._batch)

    def seal(self, sender: str, epoch: int, first: int) -> Batch:
        """Put our name and numbers on the batch."""
        batch = self._batch
        batch.sender, batch.epoch, batch.first, batch.frame = sender, epoch, first, None
        batch.labels, batch.noted = {}, None  # these are for rules to give, and for us
        return batch
