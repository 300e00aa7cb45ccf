"""Frames: round trips, and only FrameError for any bytes."""

import pickle

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.batches import any_batches, batch_to
from support.extensions import told
from support.frames import rewritten, sealed
from support.typed_tables import values_of

from ray_messaging.errors import FrameError
from ray_messaging.limits_and_timeouts import FRAME_LIMIT
from ray_messaging.model.columns import PayloadColumn
from ray_messaging.model.typed.table import TypedColumns
from ray_messaging.wire.frames import VERSION, Header, decode, encode


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


@pytest.mark.parametrize(
    "header", [b"", b"\xc1", b"\x90", b"\x9b" + b"\xa1\xff" * 11, msgspec.msgpack.encode({"a": 1})]
)
def test_a_header_that_is_none(header):
    with pytest.raises(FrameError):
        decode(sealed(header, len(header)))


def test_other_versions_and_sizes():
    frame = encode(batch_to([]))
    for version in (VERSION - 1, VERSION + 1):
        with pytest.raises(FrameError, match=rf"frame version {version}, and this ray_messaging reads {VERSION} only"):
            decode(frame[:2] + bytes([version]) + frame[3:])

    class Huge(bytes):
        def __len__(self):
            return FRAME_LIMIT + 1

    with pytest.raises(FrameError, match="size"):
        decode(Huge(frame))
    with pytest.raises(FrameError, match="RM"):
        decode(b"XX" + frame[2:])


def of_three(**more):
    return batch_to([1, 2, 3], **more)


@pytest.mark.parametrize("rows", [b"\x03\0\0\0", b"\xff" * 4, b"\0\0\0\0\x07\0\0\0", b"\0", b"\0" * 7], ids=repr)
@pytest.mark.parametrize("where", ["labels", "noted"])
def test_labels_and_notes_of_rows_that_are_not_there(rows, where):
    frame = encode(of_three(labels={"tag": np.array([1], np.uint32)}, noted=np.array([2], np.uint32)))
    with pytest.raises(FrameError, match="row"):
        decode(rewritten(frame, {where: [["tag", rows]] if where == "labels" else rows}))


def test_replaced_payloads_leave_the_others_and_the_original_alone():
    shared = PayloadColumn.of([b"{}", b"[]"], np.array([0, 1, 0], np.uint32))
    for lines in (shared, PayloadColumn.of([b"{}", b"[]", b"{}"])):
        batch = decode(encode(of_three(lines=lines)))
        made = batch.with_payloads({2: b"[7]"})
        for each in (made, decode(encode(made))):
            assert [each.lines.row(row) for row in range(3)] == [b"{}", b"[]", b"[7]"]
        assert [batch.lines.row(row) for row in range(3)] == [b"{}", b"[]", b"{}"]
    assert of_three().with_payloads({0: b"{}"}).lines is None


def test_a_header_that_is_nested_without_end_is_no_frame():
    fields = msgspec.msgpack.encode(Header("s", 0, 0, 0, 0, -1, ("t",), (), (), None, 0.0))
    header = b"\xdc\0" + bytes([fields[2] + 1]) + fields[3:] + b"\x91" * 100_000  # an array of one more
    with pytest.raises(FrameError, match="recursion"):
        decode(sealed(header, len(header)))
