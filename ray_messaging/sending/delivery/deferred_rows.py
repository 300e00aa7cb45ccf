"""Messages that wait for a slow rule, and later ones of the same pairs, which must not overtake them."""

import asyncio
import logging
from bisect import insort
from collections.abc import Callable, Coroutine
from itertools import groupby

import numpy as np

from ray_messaging.errors import Closed, InterceptorUnavailable, MessagingError, OutcomeUnknown
from ray_messaging.interception.client.verdict_client import VerdictClient
from ray_messaging.interception.wire.verdicts import VerdictReply
from ray_messaging.model.batch import Batch
from ray_messaging.model.id_column import INT
from ray_messaging.sending.delivery.deferred_questions import UNKNOWN, DeferredQuestion, DeferredRow, joined, order
from ray_messaging.sending.delivery.in_flight_batch import InFlightBatch, Rows

logger = logging.getLogger(__name__)

# Who sends, and to whom: an agent, or a plain channel.
Pair = tuple[object, object]
_FAILED = -2
# Rows that are deferred within so many seconds are asked about together. An answer takes a few seconds at most, so this
# bounds how many requests of one messager wait, too: the interceptor's lane has a limit.
_GATHER_S = 0.005


class DeferredRows:
    """Hold rows back until they may go; `released` is told when there are some."""

    def __init__(self, judge: Callable[[], VerdictClient], released: Callable[[], None]) -> None:
        self._judge = judge
        self._released = released
        self._pairs: dict[Pair, list[DeferredRow]] = {}
        self._places: dict[tuple[InFlightBatch, int], DeferredRow] = {}
        self._moved: set[Pair] = set()  # pairs of which the first may have its verdict
        self._tasks: set[asyncio.Task[None]] = set()
        self._unasked: list[DeferredRow] = []
        self._asking: asyncio.Task[None] | None = None
        self._over: MessagingError | None = None

    def __len__(self) -> int:
        return len(self._places)

    def hold(self, posting: InFlightBatch, rows: Rows | None, deferred: set[int], epoch: int) -> Rows | None:
        """Hold back rows that were deferred, and those behind one of their pair; return the others (None: all).

        Args: rows are those that were judged (None: all), under `epoch`.
        """
        if deferred and self._over is not None:
            posting.fail(np.array(sorted(deferred), np.intp), self._over)
            deferred = set()
        if not deferred and not self._pairs:
            return rows
        held: list[int] = []
        batch = posting.batch
        for row in self._candidates(batch, rows, deferred):
            pair = _pair(batch, row)
            queue = self._pairs.get(pair)
            if row in posting.stopped or (queue is None and row not in deferred):
                continue
            place = DeferredRow(posting, row, UNKNOWN if row in deferred else epoch)
            # At the end, but for rows that a successor of the interceptor judges once more.
            insort(self._pairs.setdefault(pair, []), place, key=order)
            self._places[posting, row] = place
            held.append(row)
            if row in deferred:
                self._unasked.append(place)
        self._move(posting, held)
        self._ask_soon()
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

    def take_ready(self) -> list[tuple[InFlightBatch, Rows, int]]:
        """Return the rows that may go now, with the epoch of the interceptor that passed them, in their order."""
        if not self._moved:
            return []
        moved, self._moved = self._moved, set()
        ready: list[DeferredRow] = []
        for pair in moved:
            queue = self._pairs.get(pair, [])
            count = next((at for at, place in enumerate(queue) if place.epoch is UNKNOWN), len(queue))
            ready += queue[:count]
            del queue[:count]
            if not queue:
                self._pairs.pop(pair, None)
        for place in ready:
            del self._places[place.posting, place.row]
        ready.sort(key=order)
        return [
            (posting, np.array([place.row for place in places], np.intp), epoch or 0)
            for (posting, epoch), places in groupby(ready, key=lambda place: (place.posting, place.epoch))
        ]

    def _ask_soon(self) -> None:
        if self._unasked and (self._asking is None or self._asking.done()):
            self._asking = self._spawn(self._ask_all())

    async def _ask_all(self) -> None:
        """Ask about all rows that nobody asks about right now: together, so that requests stay few."""
        while self._unasked:
            places, self._unasked = self._unasked, []
            for part in joined(places):
                self._spawn(self._wait(part))
            await asyncio.sleep(_GATHER_S)

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name="ray_messaging deferred verdicts")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _wait(self, asked: DeferredQuestion) -> None:
        """Ask about rows once; those that have no verdict yet are asked about with whatever has come meanwhile."""
        try:
            verdicts = await self._ask(asked.batch)
            judgement = verdicts.batch_verdict(len(asked.batch))
            for posting, places in asked.by_posting(judgement.deferred):
                rows = [place.row for _, place in places]
                posting.apply(judgement.picked([at for at, _ in places], rows), np.array(rows, np.intp))
                self._resolve(posting, rows, verdicts.epoch)
            self._unasked += [asked.places[at] for at in sorted(judgement.deferred)]
            self._ask_soon()
        except MessagingError as error:
            self._fail_all(asked, error)
        except Exception as error:
            logger.exception("deferred verdicts could not be awaited")
            self._fail_all(asked, OutcomeUnknown(f"deferred verdicts failed ({error}): please report this"))

    async def _ask(self, batch: Batch) -> VerdictReply:
        """Ask whoever judges now, and his successor where he is gone."""
        while True:
            judge = self._judge()
            try:
                return await judge.wait(batch)
            except (InterceptorUnavailable, Closed):
                if self._judge() is judge:
                    raise

    def _resolve(self, posting: InFlightBatch, rows: list[int], epoch: int) -> None:
        for row in rows:
            self._places[posting, row].epoch = epoch
        self._move(posting, rows)

    def _fail_all(self, asked: DeferredQuestion, error: MessagingError) -> None:
        for posting, places in asked.by_posting(set()):
            rows = [place.row for _, place in places if place.epoch is UNKNOWN]
            self._resolve(posting, rows, _FAILED)  # they leave their queues, and find their rows closed
            posting.fail(np.array(rows, np.intp), error)

    def _move(self, posting: InFlightBatch, rows: list[int]) -> None:
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

    def give_up(self, error: MessagingError) -> None:
        """Wait for no slow rule any more: neither with those who wait now, nor with any that comes."""
        self._over = error
        self.abandon(error)

    def abandon(self, error: MessagingError) -> None:
        """Give everybody whose messages wait the error."""
        for task in self._tasks:
            task.cancel()
        self._asking = None
        self._unasked.clear()
        places, self._places = self._places, {}
        self._pairs.clear()
        self._moved.clear()
        for posting, row in places:
            posting.fail(np.array([row], np.intp), error)


def _pair(batch: Batch, row: int) -> Pair:
    to_id = batch.to_ids[row]
    return batch.from_ids[row], (to_id if to_id is not None else f":{batch.topic_of(row)}")
