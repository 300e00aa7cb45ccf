"""What gathers while a batch is under way: rows, and the futures of those who wait for their receipts."""

import asyncio
from array import array
from typing import NamedTuple

import numpy as np

from ray_messaging.channels import AgentId
from ray_messaging.frames import Batch
from ray_messaging.ids import Ids
from ray_messaging.lines import Lines
from ray_messaging.receipt import Receipt, Receipts

# A batch has at most so many rows: a few frames, so that asking and writing take turns often enough.
BATCH_ROWS = 16_384


class Many(NamedTuple):
    """Somebody who waits for the receipts of the rows from `low` to `high`."""

    low: int
    high: int
    future: "asyncio.Future[Receipts]"


class Parcel:
    """Be rows that will go as one batch.

    `singles` holds a future per row for messages sent one by one (None for rows of a bulk send; empty where there is
    none), `manies` those who wait for bulk sends.
    """

    __slots__ = ("manies", "singles", "step")

    def __init__(self, step: int | None) -> None:
        self.step = step
        self.singles: list[asyncio.Future[Receipt] | None] = []
        self.manies: list[Many] = []

    def __len__(self) -> int:
        raise NotImplementedError

    def seal(self, sender: str, epoch: int, first: int) -> Batch:
        """Build the batch."""
        raise NotImplementedError


class Draft(Parcel):
    """Be a parcel that messages are appended to, one by one."""

    __slots__ = ("_from_ids", "_index", "_lines", "_times", "_to_ids", "_topic", "_topics")

    def __init__(self, step: int | None) -> None:
        super().__init__(step)
        self._from_ids: list[AgentId | None] = []
        self._to_ids: list[AgentId | None] = []
        self._topics: dict[str, int] = {}
        self._topic: list[int] = []
        self._lines: list[bytes] = []
        self._index: list[int] | None = None
        self._times: list[float] = []

    def __len__(self) -> int:
        return len(self._from_ids)

    def append(
        self,
        from_id: AgentId | None,
        to_id: AgentId | None,
        topic: str,
        line: bytes,
        now: float,
        future: "asyncio.Future[Receipt]",
    ) -> None:
        """Add one message, and who waits for its receipt."""
        self._from_ids.append(from_id)
        self._to_ids.append(to_id)
        self._topic.append(self._topics.setdefault(topic, len(self._topics)))
        if self._index is not None:
            self._index.append(len(self._lines))
        self._lines.append(line)
        self._times.append(now)
        self.singles.append(future)

    def extend(
        self, from_id: AgentId | None, to_ids: list[AgentId] | list[AgentId | None], topic: str, line: bytes, now: float
    ) -> None:
        """Add one payload for some recipients; a bulk send waits for them."""
        rows = len(to_ids)
        self._from_ids += [from_id] * rows
        self._to_ids += to_ids
        self._topic += [self._topics.setdefault(topic, len(self._topics))] * rows
        if rows != 1 and self._index is None:
            self._index = list(range(len(self._lines)))
        if self._index is not None:
            self._index += [len(self._lines)] * rows
        self._lines.append(line)
        self._times += [now] * rows
        self.singles += [None] * rows

    def seal(self, sender: str, epoch: int, first: int) -> Batch:
        """Build the batch."""
        return Batch(
            sender=sender,
            epoch=epoch,
            first=first,
            from_ids=Ids.of(self._from_ids),
            to_ids=Ids.of(self._to_ids),
            topics=tuple(self._topics),
            topic=None if len(self._topics) == 1 else np.array(self._topic, np.uint16),
            step=self.step,
            sent_at=self._times[0] if len(self._times) == 1 else np.frombuffer(array("d", self._times), np.float64),
            lines=Lines.of(self._lines, None if self._index is None else np.array(self._index, np.uint32)),
        )


class Columns(Parcel):
    """Be a parcel of whole columns."""

    __slots__ = ("_from_ids", "_lines", "_now", "_to_ids", "_topic")

    def __init__(
        self,
        step: int | None,
        from_ids: Ids,
        to_ids: Ids,
        topic: str,
        lines: Lines,
        now: float,
        future: "asyncio.Future[Receipts]",
    ) -> None:
        super().__init__(step)
        self._from_ids = from_ids
        self._to_ids = to_ids
        self._topic = topic
        self._lines = lines
        self._now = now
        self.manies.append(Many(0, len(from_ids), future))

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


class Relayed(Parcel):
    """Be a parcel that another process has gathered and encoded."""

    __slots__ = ("_batch",)

    def __init__(self, batch: Batch, future: "asyncio.Future[Receipts]") -> None:
        super().__init__(None)
        self._batch = batch
        self.manies.append(Many(0, len(batch), future))

    def __len__(self) -> int:
        return len(self._batch)

    def seal(self, sender: str, epoch: int, first: int) -> Batch:
        """Put our name and numbers on the batch."""
        batch = self._batch
        batch.sender, batch.epoch, batch.first, batch.frame = sender, epoch, first, None
        return batch
