"""Frames that an earlier ray_messaging wrote.

`written_before/frames_v1.msgpack` is a msgpack list: `encode` of each of the batches below, by the commit before frames
had a version 2 (cf53eed, 2026-11-21).
"""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn, PayloadColumn
from ray_messaging.wire.frames import decode, encode

FRAMES = msgspec.msgpack.decode(Path(__file__).with_name("written_before").joinpath("frames_v1.msgpack").read_bytes())
COMMON = {"sender": "a", "epoch": 1, "first": 9, "topics": ("agent-chat",)}
INTS = IdColumn(np.array([5, -1, 2**63 - 1]))
MIXED = IdColumn.of([7, "Ann", None])
LINES = [b'{"content":"hi"}', b"{}", b'{"n":[1,2]}']
INDEX = np.array([0, 0, 1], np.uint32)
ODD = np.array([0, 2], np.uint32)
BATCHES = {
    "int ids": Batch(**COMMON, from_ids=INTS, rows=len(INTS), to_ids=INTS, lines=PayloadColumn.of(LINES)),
    "shared lines": Batch(
        **COMMON,
        from_ids=MIXED,
        rows=len(MIXED),
        to_ids=MIXED,
        lines=PayloadColumn.of(LINES[:2], INDEX),
        step=3,
        sent_at=1.5e9,
    ),
    "raw lines": Batch(
        **COMMON, from_ids=MIXED, rows=len(MIXED), to_ids=INTS, lines=PayloadColumn.of([b"\xff\n", b"", b"x"], raw=True)
    ),
    "shared raw": Batch(
        **COMMON, from_ids=INTS, rows=len(INTS), to_ids=MIXED, lines=PayloadColumn.of([b"\n"], INDEX * 0, raw=True)
    ),
    "no lines": Batch(**COMMON, from_ids=INTS, rows=len(INTS), to_ids=MIXED, labels={"odd": ODD, "x": ODD[:1]}),
    "no rows": Batch(**COMMON, from_ids=IdColumn.of([]), rows=0, to_ids=IdColumn.of([]), lines=PayloadColumn.of([])),
    "every column": Batch(
        sender="b",
        epoch=2**61,
        first=0,
        from_ids=MIXED,
        rows=len(MIXED),
        to_ids=MIXED,
        topics=("agent-chat", ":plain"),
        topic=np.array([0, 1, 0], np.uint16),
        numbers=np.array([0, 2, 2**32 - 1], np.uint32),
        step=INTS.values,
        sent_at=np.array([0.0, 1.5e9, 2.0]),
        lines=PayloadColumn.of(LINES),
        labels={"odd": ODD},
        noted=ODD,
    ),
}


def facts(batch):
    """Return everything that a batch says, as Python objects."""
    step, sent_at = (np.broadcast_to(column, len(batch)).tolist() for column in (batch.step, batch.sent_at))
    return {
        "ids": [batch.message_id(row) for row in range(len(batch))],
        "ends": [*zip(batch.from_ids.tolist(), batch.to_ids.tolist(), strict=True)],
        "topics": [batch.topic_of(row) for row in range(len(batch))],
        "step": step,
        "sent_at": sent_at,
        "lines": None if batch.lines is None else [batch.lines.row(row) for row in range(len(batch))],
        "labels": [batch.labels_of(row) for row in range(len(batch))],
        "noted": None if batch.noted is None else batch.noted.tolist(),
        "extension": batch.extension,
    }


@pytest.mark.parametrize(("frame", "batch"), [*zip(FRAMES, BATCHES.values(), strict=True)], ids=BATCHES)
def test_it_decodes_to_the_same_batch_and_is_written_as_it_was(frame, batch):
    assert facts(decode(frame)) == facts(batch)
    assert encode(batch) == frame
