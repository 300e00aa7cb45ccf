"""Frames with typed columns: aligned views, and only FrameError for any bytes; `test_frames` has their round trips."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.batches import batch_to
from support.extensions import extensions
from support.frames import rewritten, sealed
from support.typed_tables import tables

from ray_messaging.errors import FrameError
from ray_messaging.model.typed.input import columns
from ray_messaging.wire.frames import decode, encode


def batch_of(lines, **more):
    return batch_to(range(len(lines)), lines=lines, **more)


@given(st.integers(0, 8).flatmap(tables), st.data())
def test_columns_are_views_at_multiples_of_eight_bytes(table, data):
    frame = encode(batch_of(table, extension=data.draw(st.none() | extensions(len(table)))))
    start = np.frombuffer(frame, np.uint8).ctypes.data
    for column in decode(frame).lines.columns.values():
        for buffer in column.buffers:
            if buffer.size:
                assert (buffer.ctypes.data - start) % 8 == 0
                assert 0 < buffer.ctypes.data - start < len(frame)


OFFERS = batch_of(columns(price=[1.5, 2.5], text=["né", ""], open=[True, False]))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"payload_columns": []}, "no column"),
        ({"payload_columns": [["a", "float64", 0], ["a", "float64", 0]]}, "two of one name"),
        ({"payload_columns": [["a", "float16", 0]]}, "'a' has the type 'float16'.*does not know"),
        ({"payload_columns": [["a", "string", 2]]}, "does not know"),
        ({"payload_columns": [["a", "float64", 2**30]]}, "ends within"),
        ({"payload_columns": [["a", "float64", 0]]}, "another length"),
        ({"payload_columns": [["", "float64", 0]]}, "header"),
        ({"lines": 1}, "lines and columns"),
        ({"lines": -1}, "lines and columns"),
        ({"flags": 2**14 | 2**6}, "lines and columns"),
        ({"flags": 2**14 | 2**9}, "extension that it has not"),
        ({"rows": 3}, "lines and columns"),
        ({"rows": 2**40, "lines": 2**40}, "rows is impossible"),
    ],
    ids=str,
)
def test_columns_that_cannot_be_read(change, says):
    with pytest.raises(FrameError, match=says):
        decode(rewritten(encode(OFFERS), change))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b"\1\0", b"\2\0", "'open' has a bool"),
        ("né".encode(), b"n\xff\xff", "no UTF-8"),
        (np.array([0, 3, 3], "<i4").tobytes(), np.array([0, 2, 3], "<i4").tobytes(), "cuts a character"),
        (np.array([0, 3, 3], "<i4").tobytes(), np.array([0, 4, 3], "<i4").tobytes(), "impossible bounds"),
        (np.array([0, 3, 3], "<i4").tobytes(), np.array([1, 3, 3], "<i4").tobytes(), "impossible bounds"),
        (np.array([0, 3, 3], "<i4").tobytes(), np.array([0, 3, -1], "<i4").tobytes(), "impossible bounds"),
    ],
    ids=str,
)
def test_impossible_values(old, new, says):
    frame = encode(OFFERS)
    at = frame.rindex(old)
    body = frame[12:at] + new + frame[at + len(old) :]
    with pytest.raises(FrameError, match=says):
        decode(sealed(body, int.from_bytes(frame[8:12], "little")))


@pytest.mark.parametrize(("agent", "small"), [(-(2**31), True), (-(2**31) - 1, False), (2**31, False)])
def test_ids_take_four_bytes_where_all_fit(agent, small):
    table = columns(a=[1, 2])
    found = [[1, 2], [agent, 7]]
    frames = [encode(batch_to(b, a, lines=table)) for a, b in (found, found[::-1], found[:1] * 2)]
    assert (len(frames[0]) == len(frames[1]) == len(frames[2])) is small
    assert decode(frames[0]).to_ids.tolist() == decode(frames[1]).from_ids.tolist() == [agent, 7]


def test_typed_columns_are_no_extension_and_may_be_left_out():
    assert decode(encode(OFFERS)).extension is None
    assert decode(encode(OFFERS, with_payload=False)).lines is None
