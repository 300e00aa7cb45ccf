"""Frames: round trips, and refused ones of damaged bytes."""

import pickle

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.batches import any_batches, batch_to
from support.extensions import extensions, told
from support.typed_tables import tables, values_of

from ray_messaging.errors import FrameError
from ray_messaging.model.batch import CONTEXT_BYTES, Origin, TracePoint
from ray_messaging.model.columns import PayloadColumn
from ray_messaging.model.extension import Extension
from ray_messaging.model.typed.input import columns
from ray_messaging.model.typed.typed_table import TypedColumns
from ray_messaging.wire.frames import VERSION, decode, encode


def said(batch):
    """Return what a batch says, as values that can be compared."""
    columns = ("from_ids", "to_ids", "topic", "numbers", "step", "sent_at", "noted", "labels")
    lines = [] if batch.lines is None else [batch.lines.row(row) for row in range(len(batch))]
    return (
        (batch.sender, batch.epoch, batch.first, batch.topics),
        {name: listed(getattr(batch, name)) for name in columns},
        [(batch.message_id(row), batch.topic_of(row)) for row in range(len(batch))],
        values_of(batch.lines) if isinstance(batch.lines, TypedColumns) else (batch.lines is None, lines),
        told(batch.extension),
    )


def listed(value):
    if isinstance(value, dict):
        return {name: listed(part) for name, part in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value


@given(any_batches())
def test_round_trip(batch):
    frame = encode(batch)
    assert encode(batch) == frame
    assert encode(decode(frame)) == frame
    assert frame[2] == VERSION
    assert frame in pickle.dumps(batch)
    pickled = [pickle.loads(pickle.dumps(each)) for each in (batch, decode(frame))]
    for copy in (decode(frame), decode(frame, checked=True), *pickled):
        assert said(copy) == said(batch)
    bare = decode(encode(batch, with_payload=False))
    batch.lines = None
    assert said(bare) == said(batch)


@given(any_batches(), st.data())
def test_some_rows(batch, data):
    rows = data.draw(st.lists(st.integers(0, max(0, len(batch) - 1)), max_size=len(batch)))
    taken, of_decoded = (each.take(np.array(rows, np.intp)) for each in (batch, decode(encode(batch))))
    for copy in (taken, decode(encode(taken)), pickle.loads(pickle.dumps(of_decoded))):
        assert of_rows(copy, range(len(rows))) == of_rows(batch, rows)
        assert told(copy.extension) == told(batch.extension, rows)


def of_rows(batch, rows):
    from_ids, noted = batch.from_ids.tolist(), [] if batch.noted is None else batch.noted.tolist()
    return [
        (
            from_ids[row],
            batch.message_id(row),
            batch.topic_of(row),
            batch.labels_of(row),
            row in noted,
            None if batch.lines is None else batch.lines.row(row),
        )
        for row in rows
    ]


@given(any_batches(), st.data())
def test_one_changed_byte(batch, data):
    frame = bytearray(encode(batch))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] ^= data.draw(st.integers(1, 255))
    if at == 3:  # the spare byte says nothing
        return
    with pytest.raises(FrameError):
        decode(bytes(frame))


@given(any_batches(), st.data())
def test_a_frame_cut_short_or_prolonged(batch, data):
    frame = encode(batch)
    with pytest.raises(FrameError):
        decode(frame[: data.draw(st.integers(0, len(frame) - 1))])
    with pytest.raises(FrameError):
        decode(frame + data.draw(st.binary(min_size=1, max_size=9)))


def test_replaced_payloads_leave_the_others_and_the_original_alone():
    shared = PayloadColumn.of([b"{}", b"[]"], np.array([0, 1, 0], np.uint32))
    for lines in (shared, PayloadColumn.of([b"{}", b"[]", b"{}"])):
        batch = decode(encode(batch_to([1, 2, 3], lines=lines)))
        made = batch.with_payloads({2: b"[7]"})
        for each in (made, decode(encode(made))):
            assert [each.lines.row(row) for row in range(3)] == [b"{}", b"[]", b"[7]"]
        assert [batch.lines.row(row) for row in range(3)] == [b"{}", b"[]", b"{}"]
    assert batch_to([1, 2, 3]).with_payloads({0: b"{}"}).lines is None


@given(st.integers(0, 8).flatmap(tables), st.data())
def test_typed_columns_are_views_at_multiples_of_eight_bytes(table, data):
    frame = encode(batch_to(range(len(table)), lines=table, extension=data.draw(st.none() | extensions(len(table)))))
    start = np.frombuffer(frame, np.uint8).ctypes.data
    for column in decode(frame).lines.columns.values():
        for buffer in column.buffers:
            if buffer.size:
                assert (buffer.ctypes.data - start) % 8 == 0
                assert 0 < buffer.ctypes.data - start < len(frame)


@pytest.mark.parametrize(("agent", "small"), [(-(2**31), True), (-(2**31) - 1, False), (2**31, False)])
def test_ids_take_four_bytes_where_all_fit(agent, small):
    table = columns(a=[1, 2])
    found = [[1, 2], [agent, 7]]
    frames = [encode(batch_to(b, a, lines=table)) for a, b in (found, found[::-1], found[:1] * 2)]
    assert (len(frames[0]) == len(frames[1]) == len(frames[2])) is small
    assert decode(frames[0]).to_ids.tolist() == decode(frames[1]).from_ids.tolist() == [agent, 7]


# -- frames of traced batches -----------------------------------------------------------------------------------------


def traced(span, **more):
    return batch_to([1, 2], lines=PayloadColumn.of([b"{}", b"[]"]), trace=TracePoint(span, 0.0), **more)


@given(span=st.binary(min_size=CONTEXT_BYTES, max_size=CONTEXT_BYTES), extension=st.none() | extensions(2))
def test_a_span_arrives_and_nothing_else_changes(span, extension):
    assume(
        told(extension) != told(Extension())
    )  # a span needs the frame of an extension: an empty one is not told from none
    batch = traced(span, extension=extension)
    found = decode(encode(batch))
    assert found.trace.sent == span
    assert found.trace.since > 0
    assert (found.extension is None) == (extension is None)
    found.trace = found.frame = batch.trace = None
    assert encode(found) == encode(batch)


def test_a_pickle_and_some_rows_keep_span_and_fetch():
    span = bytes(range(CONTEXT_BYTES))
    batch = decode(encode(traced(span)))
    batch.origin, batch.trace = Origin("west", "1-0"), batch.trace._replace(fetched=span[::-1])
    for found in (pickle.loads(pickle.dumps(batch)).trace, batch.take(np.array([1])).trace):
        assert (found.sent, found.fetched) == (span, span[::-1])
