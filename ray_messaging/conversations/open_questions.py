"""The questions of one messager that wait for their answers."""

from bisect import bisect_right
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from ray_messaging.message import Slice
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn
from ray_messaging.model.message_ids import MessageIdColumn

Rows = NDArray[np.intp]


class Asker(Protocol):
    """The object that waits for the answers to some questions."""

    def take(self, places: Rows, batch: Batch, rows: Rows) -> NDArray[np.bool_]:
        """Take answers to the questions at some places; return which of them are the first and in time, bool (n,)."""

    @property
    def done(self) -> bool:
        """Tell whether it waits for no more answers."""


class Asked(msgspec.Struct, eq=False):
    """The questions of one batch: their numbers begin with `first`; the first one is at `place` of its asker."""

    first: int
    to_ids: IdColumn
    asker: Asker
    place: int


class OpenQuestions:
    """The questions that wait, by the numbers in their ids.

    An answer counts if it comes from the agent that was asked, unless `from_any`.
    """

    def __init__(self, *, from_any: bool = False) -> None:
        self._from_any = from_any
        self._texts: set[str] = set()  # of ids, without the numbers
        self._asked: list[Asked] = []  # by number
        self._firsts: list[int] = []

    def __len__(self) -> int:
        return sum(len(asked.to_ids) for asked in self._asked)

    def add(self, batch: Batch, asker: Asker, place: int = 0) -> None:
        """Wait for the answers to a batch, which was just numbered; its first question has a place at its asker."""
        self._drop_done()
        self._texts.add(f"{batch.sender}-{batch.epoch}-")
        at = bisect_right(self._firsts, batch.first)
        self._firsts.insert(at, batch.first)
        self._asked.insert(at, Asked(batch.first, batch.to_ids, asker, place))

    def _drop_done(self) -> None:
        if any(asked.asker.done for asked in self._asked):
            self._asked = [asked for asked in self._asked if not asked.asker.done]
            self._firsts = [asked.first for asked in self._asked]

    def answer(self, found: Slice) -> Rows:
        """Give askers their answers; return the rows of the batch that are none, or come late."""
        rows = np.arange(found.low, found.high)
        extension = found.batch.extension
        replies = None if extension is None else extension.in_reply_to
        if replies is None or not self._asked:
            return rows
        known = self._known(replies, rows)
        numbers = replies.numbers[rows]
        taken = np.zeros(len(rows), np.bool_)
        ranges = np.searchsorted(np.array(self._firsts), numbers, side="right") - 1
        for at in np.unique(ranges[known]).tolist():
            if at >= 0:
                mine = np.flatnonzero(known & (ranges == at))
                taken[mine] = self._answer(self._asked[at], numbers[mine], found.batch, rows[mine])
        return rows[~taken]

    def _known(self, replies: MessageIdColumn, rows: Rows) -> NDArray[np.bool_]:
        """Tell which rows answer questions with our name."""
        ours = np.array([text in self._texts for text in replies.texts], np.bool_)
        return np.broadcast_to(ours[0], len(rows)) if replies.places is None else ours[replies.places[rows]]

    def _answer(self, asked: Asked, numbers: NDArray[np.int64], batch: Batch, rows: Rows) -> NDArray[np.bool_]:
        places = (numbers - asked.first).astype(np.intp)
        counts = places < len(asked.to_ids)
        if not self._from_any:
            counts[counts] = _equal(batch.from_ids.take(rows[counts]), asked.to_ids.take(places[counts]))
        counts[counts] = asked.asker.take(asked.place + places[counts], batch, rows[counts])
        return counts


def _equal(left: IdColumn, right: IdColumn) -> NDArray[np.bool_]:
    """Compare ids row by row."""
    if left.kinds is None and right.kinds is None:
        return np.equal(left.values, right.values)
    return np.array([one == other for one, other in zip(left.tolist(), right.tolist(), strict=True)], np.bool_)
