"""Deferred rows: messages that wait for a slow rule, and later messages of the same sender to the same recipient.

A slow rule gives its verdicts later than other rules, such as a rule that asks a language model.
"""

import asyncio
import logging
from bisect import insort
from collections.abc import Coroutine, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.common.texts import error_in_words
from ray_messaging.errors import Closed, InterceptorUnavailable, MessagingError, OutcomeUnknown
from ray_messaging.interception.verdicts import BatchVerdict
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import INT
from ray_messaging.model.joining import joined_batches
from ray_messaging.sending.in_flight_batch import InFlightBatch, Rows

if TYPE_CHECKING:
    from ray_messaging.sending.send_loop import SendLoop

logger = logging.getLogger(__name__)

# The sender and the recipient of a message. The recipient is an agent, or a channel that belongs to no agent.
Pair = tuple[object, object]
_UNKNOWN = None  # stands for the verdict epoch of a row that has no verdict yet
_FAILED = -2
# The pause between two rounds of requests for verdicts, in s. Rows that are deferred during the pause share a request.
# The interceptor accepts a limited number of open requests, and answers each within a few seconds. With the pause, the
# open requests of one messager stay below this limit.
_GATHER_S = 0.005
# How many rows one request has at most. Its answer arrives as soon as one verdict is known. The rows without a verdict
# are put into a later request.
ROWS = 1024


@dataclass(slots=True, eq=False)
class DeferredRow:
    """A message that waits for a slow rule, or behind such a message of the same sender and recipient.

    `row` is its row in the batch `in_flight`. `epoch` is None until the message has a verdict. Then it is the verdict
    epoch under which the message passed the rules: a number by which the server refuses outdated verdicts.
    """

    in_flight: InFlightBatch
    row: int
    epoch: int | None


class DeferredRequest(NamedTuple):
    """A request for the verdicts of slow rules: a batch, and for each of its rows the deferred row (`places`).

    A deferred row is a message that waits for such a verdict.
    """

    batch: Batch
    places: list[DeferredRow]

    def by_in_flight(self, but: set[int]) -> Iterator[tuple[InFlightBatch, list[tuple[int, DeferredRow]]]]:
        """Yield each batch that has rows in this request, with a list of pairs: index in the request, deferred row.

        Args: `but` has the indices in the request of rows to leave out.
        """
        kept = [(at, place) for at, place in enumerate(self.places) if at not in but]
        for in_flight, found in groupby(kept, lambda each: each[1].in_flight):
            yield in_flight, list(found)


class DeferredRows:
    """The rows that wait for a slow rule, and later rows that must not overtake them.

    Each pair of sender and recipient has a queue, in which a row waits for the rows before it.
    """

    def __init__(self, loop: "SendLoop") -> None:
        self.pairs: dict[Pair, list[DeferredRow]] = {}
        self.moved: set[Pair] = set()  # pairs of sender and recipient whose first waiting row may have a verdict now
        self._loop = loop
        self._places: dict[tuple[InFlightBatch, int], DeferredRow] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._unasked: list[DeferredRow] = []
        self._asking: asyncio.Task[None] | None = None
        self._over: MessagingError | None = None

    def __len__(self) -> int:
        return len(self._places)

    def hold(self, in_flight: InFlightBatch, rows: Rows | None, deferred: set[int], epoch: int) -> Rows | None:
        """Queue deferred rows, and rows that must wait behind deferred rows; return the rows that need not wait.

        A return value of None stands for all rows.

        Args: `rows` are the rows that were judged (None: all). `deferred` are those that wait for a slow rule. `epoch`
        is the verdict epoch of the rows with a verdict, a number by which the server refuses outdated verdicts.
        """
        if deferred and self._over is not None:
            in_flight.fail(np.array(sorted(deferred), np.intp), self._over)
            deferred = set()
        if not deferred and not self.pairs:
            return rows
        held: list[int] = []
        batch = in_flight.batch
        for row in self._candidates(batch, rows, deferred):
            pair = _pair(batch, row)
            queue = self.pairs.get(pair)
            if row in in_flight.outcome.blocks or (queue is None and row not in deferred):
                continue
            place = DeferredRow(in_flight, row, _UNKNOWN if row in deferred else epoch)
            # Most rows go to the end of their queue. But an earlier row may be judged again, because another
            # interceptor has taken over. It must come before later rows in the queue.
            insort(self.pairs.setdefault(pair, []), place, key=_order)
            self._places[in_flight, row] = place
            held.append(row)
            if row in deferred:
                self._unasked.append(place)
        self._move(in_flight, held)
        self._ask_soon()
        if not held:
            return rows
        free = np.zeros(len(batch), np.bool_)
        free[in_flight.open_rows if rows is None else rows] = True
        free[held] = False
        return np.flatnonzero(free)

    def _candidates(self, batch: Batch, rows: Rows | None, deferred: set[int]) -> list[int]:
        """Return the rows that may have to wait behind an earlier message of the same sender and recipient, in order.

        Args: `rows` are the rows to choose from (None: all). `deferred` are rows that wait for a slow rule.
        """
        if len(batch) <= len(self.pairs):  # if there are few rows, it is faster to look up each row
            return list(range(len(batch))) if rows is None else rows.tolist()
        ids = batch.to_ids
        receivers = {to_id for _, to_id in self.pairs} | {ids[row] for row in deferred}
        numbers = [to_id for to_id in receivers if isinstance(to_id, int)]
        maybe = np.isin(ids.values, np.array(numbers, np.int64))
        if ids.kinds is not None:
            maybe |= ids.kinds != INT
        found = np.flatnonzero(maybe)
        chosen: list[int] = (found if rows is None else np.intersect1d(found, rows)).tolist()
        return chosen

    def take_ready(self) -> list[tuple[InFlightBatch, Rows, int]]:
        """Return the rows that may be sent now, in order, with the verdict epoch under which they passed the rules.

        By this epoch the server sees whether the verdicts are outdated.
        """
        if not self.moved:
            return []
        moved, self.moved = self.moved, set()
        ready: list[DeferredRow] = []
        for pair in moved:
            queue = self.pairs.get(pair, [])
            count = next((at for at, place in enumerate(queue) if place.epoch is _UNKNOWN), len(queue))
            ready += queue[:count]
            del queue[:count]
            if not queue:
                self.pairs.pop(pair, None)
        for place in ready:
            del self._places[place.in_flight, place.row]
        ready.sort(key=_order)
        return [
            (in_flight, np.array([place.row for place in places], np.intp), epoch or 0)
            for (in_flight, epoch), places in groupby(ready, key=lambda place: (place.in_flight, place.epoch))
        ]

    # -- asking for verdicts --------------------------------------------------------------------------------------

    def _ask_soon(self) -> None:
        if self._unasked and (self._asking is None or self._asking.done()):
            self._asking = self._spawn(self._ask_all())

    async def _ask_all(self) -> None:
        """Ask for the verdicts on all rows that are in no request yet, in as few requests as possible."""
        while self._unasked:
            places, self._unasked = self._unasked, []
            for request in _requests(places):
                self._spawn(self._request(request))
            await asyncio.sleep(_GATHER_S)

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name="ray_messaging deferred verdicts")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _request(self, request: DeferredRequest) -> None:
        """Make one request. Rows that get no verdict from it are put into a later request."""
        try:
            verdict = await self._wait(request.batch)
            for in_flight, places in request.by_in_flight(verdict.deferred):
                rows = [place.row for _, place in places]
                in_flight.apply(verdict.moved({at: place.row for at, place in places}), np.array(rows, np.intp))
                self._resolve(in_flight, rows, verdict.epoch)
            self._unasked += [request.places[at] for at in sorted(verdict.deferred)]
            self._ask_soon()
        except MessagingError as error:
            self._fail_all(request, error)
        except Exception as error:
            logger.exception("waiting for the verdicts of a slow rule failed")
            why = error_in_words(error)
            self._fail_all(request, OutcomeUnknown(f"waiting for a slow rule failed ({why}): please report this"))

    async def _wait(self, batch: Batch) -> BatchVerdict:
        """Wait for verdicts of the current interceptor. If a new interceptor replaces it, ask the new one."""
        while True:
            client = self._loop.verdict_client
            try:
                return await client.wait(batch)
            except (InterceptorUnavailable, Closed):
                if self._loop.verdict_client is client:
                    raise

    def _resolve(self, in_flight: InFlightBatch, rows: list[int], epoch: int) -> None:
        for row in rows:
            self._places[in_flight, row].epoch = epoch
        self._move(in_flight, rows)

    def _fail_all(self, request: DeferredRequest, error: MessagingError) -> None:
        for in_flight, places in request.by_in_flight(set()):
            rows = [place.row for _, place in places if place.epoch is _UNKNOWN]
            self._resolve(in_flight, rows, _FAILED)  # so the rows leave their queues
            in_flight.fail(np.array(rows, np.intp), error)

    def _move(self, in_flight: InFlightBatch, rows: list[int]) -> None:
        """Let the next `take_ready` look into the queues of these rows for rows that may be sent.

        The rows are new in their queues, or have just got a verdict. Even a row that may be sent stays in its queue
        until `take_ready` is called, because an earlier row of the queue may be judged again, and may have to wait.
        """
        if rows:
            self.moved.update(_pair(in_flight.batch, row) for row in rows)
            self._loop.wake()

    # -- closing --------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Cancel all requests for verdicts that are under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def give_up(self, error: MessagingError) -> None:
        """Give an error to all rows that wait here, and to all rows that are deferred later."""
        self._over = error
        self.abandon(error)

    def abandon(self, error: MessagingError) -> None:
        """Give an error to all rows that wait here, and cancel the requests for verdicts."""
        for task in self._tasks:
            task.cancel()
        self._asking = None
        self._unasked.clear()
        places, self._places = self._places, {}
        self.pairs.clear()
        self.moved.clear()
        for in_flight, row in places:
            in_flight.fail(np.array([row], np.intp), error)


def _pair(batch: Batch, row: int) -> Pair:
    to_id = batch.to_ids[row]
    return batch.from_ids[row], (to_id if to_id is not None else f":{batch.topic_of(row)}")


def _order(place: DeferredRow) -> tuple[int, int]:
    """Return the sort key of rows: the order in which their messages were accepted."""
    return place.in_flight.batch.first, place.row


# -- requests ---------------------------------------------------------------------------------------------------------


def _requests(places: Iterable[DeferredRow]) -> Iterator[DeferredRequest]:
    """Yield requests for verdicts on these deferred rows, as few requests as possible.

    All rows of one request have the same epoch of the sender (not of a verdict). Either all rows have a step, or none
    has one. All extensions have the same columns, so that they can be joined.
    """
    alike = groupby(sorted(places, key=lambda place: (_kind(place), _order(place))), _kind)
    for found in map(list, map(itemgetter(1), alike)):
        while found:
            first = found[0].in_flight.batch.first
            near = [place for place in found[:ROWS] if place.in_flight.batch.first - first < 2**31]
            del found[: len(near)]
            rows = groupby(near, lambda place: place.in_flight)
            parts = [one.batch.take(np.array([place.row for place in part], np.intp)) for one, part in rows]
            yield DeferredRequest(parts[0] if len(parts) == 1 else _joined(parts), near)


def _kind(place: DeferredRow) -> tuple[object, ...]:
    batch = place.in_flight.batch
    return batch.epoch, batch.step is None, () if batch.extension is None else batch.extension.kind


def _joined(parts: list[Batch]) -> Batch:
    """Join batches into one batch, in which the messages keep their numbers."""
    made, first = joined_batches(parts), parts[0]
    made.sender, made.epoch, made.first = first.sender, first.epoch, first.first
    made.numbers = np.concatenate([_numbers(part) + np.uint32(part.first - first.first) for part in parts])
    return made


def _numbers(part: Batch) -> NDArray[np.uint32]:
    return np.arange(len(part), dtype=np.uint32) if part.numbers is None else part.numbers
