"""Frames as senders write them."""

import numpy as np

from benchmarks.work import payload
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn, PayloadColumn, encode_payload

FRAME_ROWS = 4_096


def batch_of(rows: int, first: int = 0) -> Batch:
    """Build a batch of so many messages of about 100 bytes, each with a payload of its own."""
    ids = IdColumn(np.arange(rows))
    lines = PayloadColumn(b"".join(encode_payload(payload(number), 2**20) + b"\n" for number in range(rows)), rows)
    return Batch(
        sender="sample",
        epoch=1,
        first=first,
        from_ids=ids,
        rows=len(ids),
        to_ids=ids,
        topics=("agent-chat",),
        lines=lines,
    )
