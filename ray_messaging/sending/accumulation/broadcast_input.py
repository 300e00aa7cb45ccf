"""Broadcasts as batches: one row each, with so many hearers together that they fit into one batch in flight."""

import time
from collections.abc import Iterator, Sequence

import numpy as np

from ray_messaging.audiences.book import UNRESOLVED
from ray_messaging.audiences.edges import Edges
from ray_messaging.common.limits import BROADCAST_PAIRS
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import nobody
from ray_messaging.model.extension import Audience, Extension
from ray_messaging.sending.accumulation.bulk_input import ColumnChunk


def unspread_batches(chunks: Sequence[ColumnChunk], audience: Audience, topic: str, step: int | None) -> list[Batch]:
    """Return broadcasts as batches with a row for each, to nobody, one per chunk."""
    now = time.time()
    return [
        Batch(
            sender="",
            epoch=0,
            first=0,
            from_ids=from_ids,
            to_ids=nobody(len(from_ids)),
            rows=len(from_ids),
            topics=(topic,),
            step=step,
            sent_at=now,
            lines=lines,
            extension=Extension(audience=audience),
        )
        for from_ids, _, lines in chunks
    ]


def is_unspread(batch: Batch) -> bool:
    """Tell whether a batch has broadcasts to an audience that is looked up where they are sent."""
    extension = batch.extension
    return extension is not None and extension.audience is not None and extension.audience.version == UNRESOLVED


def within_pairs(broadcasts: Batch, edges: Edges) -> Iterator[Batch]:
    """Yield the rows of a batch that have a hearer, in batches with at most BROADCAST_PAIRS pairs, or one row."""
    counts = edges.counts(broadcasts.from_ids)
    heard = np.flatnonzero(counts)
    ends, low = np.cumsum(counts[heard]), 0
    while low < len(heard):
        before = int(ends[low - 1]) if low else 0
        high = max(low + 1, int(np.searchsorted(ends, before + BROADCAST_PAIRS, side="right")))
        part = broadcasts.take(heard[low:high])
        part.numbers = None
        yield part
        low = high
