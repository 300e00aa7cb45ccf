"""Batches of messages: with a value for all that a test does not say, and any that a sender may make."""

import msgspec
import numpy as np
from hypothesis import strategies as st

from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn, PayloadColumn
from ray_messaging.wire.frames import encode
from support.extensions import INT64, TEXT, extensions
from support.typed_tables import tables

ID = st.one_of(INT64, st.integers(0, 5), TEXT, st.none())
TOPIC = TEXT | TEXT.map(":{}".format)
TIME = st.floats(0, 1e10)
PAYLOADS = ("none", "own", "shared", "raw", "raw shared", "typed")


def batch_to(to_ids, from_ids=None, **facts):
    """Build a batch of a message to each of some agents, by default from these agents."""
    to_ids = IdColumn.of([*to_ids])
    from_ids = to_ids if from_ids is None else IdColumn.of([*from_ids])
    said = {"sender": "s", "epoch": 1, "first": 0, "topics": ("agent-chat",)} | facts
    return Batch(from_ids=from_ids, to_ids=to_ids, rows=len(to_ids), **said)


def frame_of(to_ids, line=None):
    """Return a frame with a message to each of some agents, all with one payload or without any."""
    lines = None if line is None else PayloadColumn.of([line] * len(to_ids))
    return encode(batch_to(to_ids, lines=lines))


@st.composite
def any_batches(draw, least=0, payloads=PAYLOADS, times=TIME):
    """Draw a batch of at least so many rows, with some kind of payloads."""
    rows = draw(st.integers(least, 12))

    def column(strategy):
        return draw(st.lists(strategy, min_size=rows, max_size=rows))

    topics = tuple(draw(st.lists(TOPIC, min_size=1, max_size=3, unique=True)))
    several = draw(st.booleans())
    ints = draw(st.booleans())
    kind = draw(st.sampled_from(payloads))
    shared = "shared" in kind
    count = draw(st.integers(1, 4)) if shared else rows
    raw = "raw" in kind
    payload = st.binary(max_size=20) if raw else st.dictionaries(TEXT, ID, max_size=2).map(msgspec.json.encode)
    lines = draw(st.lists(payload, min_size=count, max_size=count))
    index = np.array(column(st.integers(0, count - 1)), np.uint32) if shared else None
    of_kind = {"none": st.none(), "typed": tables(rows)}
    column_of_lines = draw(of_kind.get(kind, st.just(PayloadColumn.of(lines, index, raw=raw))))
    return Batch(
        sender=draw(TEXT),
        epoch=draw(st.integers(0, 2**62 - 1)),
        first=draw(st.integers(0, 2**62 - 1)),
        from_ids=IdColumn.of(column(INT64 if ints else ID)),
        rows=rows,
        to_ids=IdColumn.of(column(INT64 if ints else ID)),
        topics=topics,
        topic=np.array(column(st.integers(0, len(topics) - 1)), np.uint16) if several else None,
        numbers=draw(st.sampled_from([None, np.array(column(st.integers(0, 2**32 - 1)), np.uint32)])),
        step=draw(st.sampled_from([None, 7, -(2**63), np.array(column(INT64), np.int64)])),
        sent_at=draw(st.sampled_from([0.0, draw(times), np.array(column(times), np.float64)])),
        lines=column_of_lines,
        labels=draw(st.dictionaries(TEXT, chosen(rows, least=1), max_size=3)) if rows else {},
        noted=draw(st.none() | chosen(rows, least=1)) if rows else None,
        extension=draw(st.none() | extensions(rows)),
    )


def chosen(rows, *, least):
    """Choose some rows, in order."""
    found = st.sets(st.integers(0, rows - 1), min_size=least)
    return found.map(lambda places: np.array(sorted(places), np.uint32))
