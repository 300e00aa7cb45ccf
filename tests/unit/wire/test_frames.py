"""Frames: round trips, and only FrameError for any bytes."""

import pickle

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.batches import batch_to
from support.extensions import INT64, TEXT, extensions
from support.forged_frames import sealed
from support.typed_tables import tables

from ray_messaging.errors import FrameError
from ray_messaging.limits_and_timeouts import FRAME_LIMIT
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn, PayloadColumn
from ray_messaging.model.extension import Extension
from ray_messaging.model.message_ids import MessageIdColumn
from ray_messaging.wire.frames import VERSION, Header, decode, encode

ID = st.one_of(INT64, TEXT, st.none())


@st.composite
def batches(draw):
    rows = draw(st.integers(0, 12))

    def column(strategy):
        return draw(st.lists(strategy, min_size=rows, max_size=rows))

    topics = tuple(draw(st.lists(TEXT, min_size=1, max_size=3, unique=True)))
    several = draw(st.booleans())
    ints = draw(st.booleans())
    kind = draw(st.sampled_from(["none", "own", "shared", "raw", "raw shared", "typed"]))
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
        sent_at=draw(st.sampled_from([0.0, 1.5e9, np.array(column(st.floats(0, 1e10)), np.float64)])),
        lines=column_of_lines,
        labels=draw(st.dictionaries(TEXT, chosen(rows, least=1), max_size=3)) if rows else {},
        noted=draw(st.none() | chosen(rows, least=1)) if rows else None,
        extension=draw(st.none() | extensions(rows)),
    )


def chosen(rows, *, least):
    """Choose some rows, in order."""
    found = st.sets(st.integers(0, rows - 1), min_size=least)
    return found.map(lambda places: np.array(sorted(places), np.uint32))


def same(one, two):
    if isinstance(one, np.ndarray):
        return isinstance(two, np.ndarray) and one.tolist() == two.tolist()
    return one == two


def assert_same(one, two):
    for name in ("sender", "epoch", "first", "topics", "topic", "numbers", "step", "sent_at"):
        assert same(getattr(one, name), getattr(two, name)), name
    assert one.from_ids.tolist() == two.from_ids.tolist()
    assert one.to_ids.tolist() == two.to_ids.tolist()
    assert {name: rows.tolist() for name, rows in one.labels.items()} == {
        name: rows.tolist() for name, rows in two.labels.items()
    }
    assert same(one.noted, two.noted)
    assert_same_extension(one.extension, two.extension)
    assert (one.lines is None) == (two.lines is None)
    for row in range(len(one)):
        assert one.message_id(row) == two.message_id(row)
        assert one.topic_of(row) == two.topic_of(row)
        if one.lines is not None:
            assert one.lines.row(row) == two.lines.row(row)


def assert_same_extension(one, two):
    assert (one is None) == (two is None)
    if one is None:
        return
    for name in ("attempt", "deliver", "ordinal", "expects_answer", "reply_mailbox", "audience", "behind", "failed"):
        assert same(getattr(one, name), getattr(two, name)), name
    assert listed(one.in_reply_to) == listed(two.in_reply_to)


def listed(column):
    return None if column is None else column.tolist()


@given(batches())
def test_round_trip(batch):
    frame = encode(batch)
    assert encode(batch) == frame
    assert_same(batch, decode(frame))
    assert encode(decode(frame)) == frame
    assert frame[2] == VERSION
    assert encode(batch) in pickle.dumps(batch)
    assert_same(batch, pickle.loads(pickle.dumps(batch)))
    assert_same(batch, pickle.loads(pickle.dumps(decode(frame))))


@given(batches())
def test_without_payloads(batch):
    found = decode(encode(batch, with_payload=False))
    assert found.lines is None
    assert found.to_ids.tolist() == batch.to_ids.tolist()


@given(batches(), st.data())
def test_some_rows(batch, data):
    rows = data.draw(st.lists(st.integers(0, max(0, len(batch) - 1)), max_size=len(batch)))
    taken = batch.take(np.array(rows, np.intp))
    for copy in (taken, decode(encode(taken))):
        assert copy.from_ids.tolist() == [batch.from_ids.tolist()[row] for row in rows]
        assert [copy.message_id(n) for n in range(len(rows))] == [batch.message_id(row) for row in rows]
        assert [copy.topic_of(n) for n in range(len(rows))] == [batch.topic_of(row) for row in rows]
        assert_same_extension(copy.extension, picked(batch.extension, rows))
        assert [copy.labels_of(n) for n in range(len(rows))] == [batch.labels_of(row) for row in rows]
        noted = set() if batch.noted is None else set(batch.noted.tolist())
        assert [n in (() if copy.noted is None else copy.noted) for n in range(len(rows))] == [
            row in noted for row in rows
        ]
        if batch.lines is not None:
            assert [copy.lines.row(n) for n in range(len(rows))] == [batch.lines.row(row) for row in rows]


def picked(extension, rows):
    """Return an extension of some rows, built value by value."""
    if extension is None:
        return None
    columns = {}
    for name in ("deliver", "ordinal", "expects_answer"):
        column = getattr(extension, name)
        columns[name] = column
        if isinstance(column, np.ndarray):
            columns[name] = np.array([column[row] for row in rows], column.dtype)
    replies = extension.in_reply_to
    return Extension(
        attempt=extension.attempt,
        reply_mailbox=extension.reply_mailbox,
        audience=extension.audience,
        behind={at: extension.behind[row] for at, row in enumerate(rows) if row in extension.behind},
        failed=extension.failed,
        in_reply_to=None if replies is None else MessageIdColumn.of([replies[row] for row in rows]),
        **columns,
    )


@given(batches())
def test_some_rows_of_what_was_decoded_pickle(batch):
    decoded = decode(encode(batch))
    taken = decoded.take(np.arange(len(batch))[::-1])
    assert_same(taken, pickle.loads(pickle.dumps(taken)))


@given(batches(), st.data())
def test_one_changed_byte(batch, data):
    frame = bytearray(encode(batch))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] ^= data.draw(st.integers(1, 255))
    if at == 3:  # the spare byte says nothing
        return
    with pytest.raises(FrameError):
        decode(bytes(frame))


@given(batches(), st.data())
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
@pytest.mark.parametrize("where", [11, 12])
def test_labels_and_notes_of_rows_that_are_not_there(rows, where):
    frame = encode(of_three(labels={"tag": np.array([1], np.uint32)}, noted=np.array([2], np.uint32)))
    length = int.from_bytes(frame[8:12], "little")
    fields = msgspec.msgpack.decode(frame[12 : 12 + length])
    fields[where] = [["tag", rows]] if where == 11 else rows
    header = msgspec.msgpack.encode(fields)
    with pytest.raises(FrameError):
        decode(sealed(header + frame[12 + length :], len(header)))


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
