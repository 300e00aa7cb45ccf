"""What one request for deferred verdicts asks about: rows of any batches of this messager."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.model.batch import Batch
from ray_messaging.model.id_column import IdColumn
from ray_messaging.sending.accumulation.pending_batch import once
from ray_messaging.sending.delivery.in_flight_batch import InFlightBatch

UNKNOWN = None  # the epoch of a verdict that is not there yet
# An answer comes as soon as one of its rows is known, and the others are asked about again.
ROWS = 1024


@dataclass(slots=True, eq=False)
class DeferredRow:
    """One row in the queue of its pair; `epoch` is that of the interceptor that passed it."""

    posting: InFlightBatch
    row: int
    epoch: int | None


def order(place: DeferredRow) -> tuple[int, int]:
    """Return what places are ordered by: as their messages were accepted."""
    return place.posting.batch.first, place.row


class DeferredQuestion(NamedTuple):
    """A batch, and the places that its rows have."""

    batch: Batch
    places: list[DeferredRow]

    def by_posting(self, but: set[int]) -> Iterator[tuple[InFlightBatch, list[tuple[int, DeferredRow]]]]:
        """Yield each posting with its rows in this batch and their places, without some rows."""
        kept = [(at, place) for at, place in enumerate(self.places) if at not in but]
        for posting, found in groupby(kept, lambda each: each[1].posting):
            yield posting, list(found)


def joined(places: Iterable[DeferredRow]) -> Iterator[DeferredQuestion]:
    """Yield few batches of all those rows: of one sender's epoch each, with a step or without, and not too large."""
    alike = groupby(sorted(places, key=lambda place: (_kind(place), order(place))), _kind)
    for found in map(list, map(itemgetter(1), alike)):
        while found:
            first = found[0].posting.batch.first
            near = [place for place in found[:ROWS] if place.posting.batch.first - first < 2**31]
            del found[: len(near)]
            rows = groupby(near, lambda place: place.posting)
            parts = [posting.batch.take(np.array([place.row for place in part], np.intp)) for posting, part in rows]
            yield DeferredQuestion(parts[0] if len(parts) == 1 else _gathered(parts), near)


def _kind(place: DeferredRow) -> tuple[int, bool]:
    return place.posting.batch.epoch, place.posting.batch.step is None


def _gathered(parts: list[Batch]) -> Batch:
    """Build one batch of several; the messages keep their numbers."""
    first = parts[0]
    topics = {name: place for place, name in enumerate(dict.fromkeys(name for part in parts for name in part.topics))}
    lines = [part.lines.row(row) for part in parts if part.lines is not None for row in range(len(part))]
    steps = [np.broadcast_to(np.asarray(part.step, np.int64), len(part)) for part in parts if part.step is not None]
    return Batch(
        sender=first.sender,
        epoch=first.epoch,
        first=first.first,
        from_ids=IdColumn.of([from_id for part in parts for from_id in part.from_ids.tolist()]),
        to_ids=IdColumn.of([to_id for part in parts for to_id in part.to_ids.tolist()]),
        topics=tuple(topics),
        topic=np.array([topics[part.topic_of(row)] for part in parts for row in range(len(part))], np.uint16),
        numbers=np.concatenate([_numbers(part) + np.uint32(part.first - first.first) for part in parts]),
        step=np.concatenate(steps) if steps else None,
        sent_at=np.concatenate([np.broadcast_to(np.asarray(part.sent_at, np.float64), len(part)) for part in parts]),
        lines=once(lines) if lines else None,
    )


def _numbers(part: Batch) -> NDArray[np.uint32]:
    return np.arange(len(part), dtype=np.uint32) if part.numbers is None else part.numbers
