"""Messages that wait for a slow rule, and later ones of the same pairs, which must not overtake them."""

import asyncio
import logging
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from ray_messaging.errors import InterceptorUnavailable, MessagingError, OutcomeUnknown
from ray_messaging.frames import Batch
from ray_messaging.ids import INT
from ray_messaging.interception.verdicts import Judge, Verdicts
from ray_messaging.sending.posting import Posting, Rows

logger = logging.getLogger(__name__)

# Who sends, and to whom: an agent, or a plain channel.
Pair = tuple[object, object]
_FAILED = -2
_UNKNOWN = None  # the epoch of a verdict that is not there yet


@dataclass(slots=True)
class _Place:
    """One row in the queue of its pair; `epoch` is that of the interceptor that passed it."""

    posting: Posting
    row: int
    epoch: int | None


def _order(place: _Place) -> tuple[int, int]:
    return place.posting.batch.first, place.row


class Deferred:
    """Hold rows back until they may go; `released` is told when there are some."""

    def __init__(self, judge: Callable[[], Judge], released: Callable[[], None]) -> None:
        self._judge = judge
        self._released = released
        self._pairs: dict[Pair, list[_Place]] = {}
        self._places: dict[tuple[Posting, int], _Place] = {}
        self._moved: set[Pair] = set()  # pairs of which the first may have its verdict
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._places)

    def hold(self, posting: Posting, rows: Rows | None, deferred: set[int], epoch: int) -> Rows | None:
        """Hold back rows that were deferred, and those behind one of their pair; return the others (None: all).

        Args: rows are those that were judged (None: all), under `epoch`.
        """
        if not deferred and not self._pairs:
            return rows
        held: list[int] = []
        waiting: list[int] = []
        batch = posting.batch
        for row in self._candidates(batch, rows, deferred):
            pair = _pair(batch, row)
            queue = self._pairs.get(pair)
            if row in posting.stopped or (queue is None and row not in deferred):
                continue
            place = _Place(posting, row, _UNKNOWN if row in deferred else epoch)
            # At the end, but for rows that a successor of the interceptor judges once more.
            insort(self._pairs.setdefault(pair, []), place, key=_order)
            self._places[posting, row] = place
            held.append(row)
            if row in deferred:
                waiting.append(row)
        self._move(posting, held)
        if waiting:
            task = asyncio.create_task(self._wait(posting, waiting), name="ray_messaging deferred verdicts")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if not held:
            return rows
        free = np.zeros(len(batch), np.bool_)
        free[posting.open_rows if rows is None else rows] = True
        free[held] = False
        return np.flatnonzero(free)

    def _candidates(self, batch: Batch, rows: Rows | None, deferred: set[int]) -> list[int]:
        """Return the rows, in order, that may belong to a pair that waits."""
        if len(batch) <= len(self._pairs):  # it is cheaper to look up each
            return list(range(len(batch))) if rows is None else rows.tolist()
        ids = batch.to_ids
        receivers = {to_id for _, to_id in self._pairs} | {ids[row] for row in deferred}
        numbers = [to_id for to_id in receivers if isinstance(to_id, int)]
        maybe = np.isin(ids.values, np.array(numbers, np.int64))
        if ids.kinds is not None:
            maybe |= ids.kinds != INT
        found = np.flatnonzero(maybe)
        chosen: list[int] = (found if rows is None else np.intersect1d(found, rows)).tolist()
        return chosen

    def take_ready(self) -> list[tuple[Posting, Rows, int]]:
        """Return the rows that may go now, with the epoch of the interceptor that passed them, in their order."""
        moved, self._moved = self._moved, set()
        ready: list[_Place] = []
        for pair in moved:
            queue = self._pairs.get(pair, [])
            count = next((at for at, place in enumerate(queue) if place.epoch is _UNKNOWN), len(queue))
            ready += queue[:count]
            del queue[:count]
            if not queue:
                self._pairs.pop(pair, None)
        for place in ready:
            del self._places[place.posting, place.row]
        ready.sort(key=_order)
        return [
            (posting, np.array([place.row for place in places], np.intp), epoch or 0)
            for (posting, epoch), places in groupby(ready, key=lambda place: (place.posting, place.epoch))
        ]

    async def _wait(self, posting: Posting, rows: list[int]) -> None:
        """Ask until every row has its verdict."""
        try:
            while rows:
                verdicts = await self._ask(posting.batch.take(np.array(rows, np.intp)))
                judgement = verdicts.judgement(len(rows))
                known = [row for at, row in enumerate(rows) if at not in judgement.deferred]
                if known:
                    posting.apply(judgement.moved(rows), np.array(known, np.intp))
                    self._resolve(posting, known, verdicts.epoch)
                    rows = [row for at, row in enumerate(rows) if at in judgement.deferred]
        except MessagingError as error:
            self._fail(posting, rows, error)
        except Exception as error:
            logger.exception("deferred verdicts could not be awaited")
            self._fail(posting, rows, OutcomeUnknown(f"deferred verdicts failed ({error}): please report this"))

    async def _ask(self, batch: Batch) -> Verdicts:
        """Ask whoever judges now, and his successor where he is gone."""
        while True:
            judge = self._judge()
            try:
                return await judge.wait(batch)
            except InterceptorUnavailable:
                if self._judge() is judge:
                    raise

    def _resolve(self, posting: Posting, rows: list[int], epoch: int) -> None:
        for row in rows:
            self._places[posting, row].epoch = epoch
        self._move(posting, rows)

    def _fail(self, posting: Posting, rows: list[int], error: MessagingError) -> None:
        for row in rows:
            self._places[posting, row].epoch = _FAILED  # it leaves its queue, and finds its row closed
        posting.fail(np.array(rows, np.intp), error)
        self._move(posting, rows)

    def _move(self, posting: Posting, rows: list[int]) -> None:
        """Look at the queues of some rows when what is ready is taken.

        Until then everything stays in its queue: a row that leaves it must be on its way before any later one of its
        pair is, and an earlier one may be judged once more, and have to wait, in between.
        """
        if rows:
            self._moved.update(_pair(posting.batch, row) for row in rows)
            self._released()

    async def close(self) -> None:
        """Stop waiting."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def abandon(self, error: MessagingError) -> None:
        """Give everybody whose messages wait the error."""
        for task in self._tasks:
            task.cancel()
        places, self._places = self._places, {}
        self._pairs.clear()
        self._moved.clear()
        for posting, row in places:
            posting.fail(np.array([row], np.intp), error)


def _pair(batch: Batch, row: int) -> Pair:
    to_id = batch.to_ids[row]
    return batch.from_ids[row], (to_id if to_id is not None else f":{batch.topic_of(row)}")
