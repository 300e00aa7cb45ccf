"""Frames with a right checksum, and a content that no sender writes: each is refused, and says why."""

import msgspec
import numpy as np
import pytest
from support.batches import batch_to
from support.frames import rewritten, sealed

from ray_messaging.default_limits_and_leases import FRAME_LIMIT
from ray_messaging.errors import FrameError
from ray_messaging.model.batch import CONTEXT_BYTES, TracePoint
from ray_messaging.model.extension import AudiencePairs, Extension, InHand
from ray_messaging.model.message_ids import MessageIdColumn
from ray_messaging.model.typed.input import columns
from ray_messaging.wire.frames import VERSION, Header, decode, encode

SPAN = bytes(range(CONTEXT_BYTES))
EVERY_COLUMN = Extension(
    attempt=2,
    deliver=np.array([5, 5, 9]),
    ordinal=np.arange(3, dtype=np.uint32),
    in_reply_to=MessageIdColumn.of(["4-0-7", None, "s-1-8"]),
    expects_answer=np.array([False, True, False]),
    reply_mailbox="town.east",
    audience=AudiencePairs("friends", 3),
    behind={1: (InHand("east", "s-1-8", "ann", 1), InHand("west", "4-0-7", None, 0))},
    failed=True,
    caused_by=MessageIdColumn.of([None, "s-1-9", "4-0-7"]),
)
OFFERS = columns(price=[1.5, 2.5], text=["né", ""], open=[True, False])
FRAMES = {
    "plain": encode(batch_to([1, 2, 3])),
    "extended": encode(batch_to([1, 2, 3], step=4, extension=EVERY_COLUMN)),
    "typed": encode(batch_to([0, 1], lines=OFFERS)),
    "traced": encode(batch_to([1, 2], trace=TracePoint(SPAN, 0.0))),
    "labelled": encode(batch_to([1, 2, 3], labels={"tag": np.array([1], np.uint32)}, noted=np.array([2], np.uint32))),
}
NO_ROWS = [b"\x03\0\0\0", b"\xff" * 4, b"\0\0\0\0\x07\0\0\0", b"\0", b"\0" * 7]


@pytest.mark.parametrize(
    ("kind", "change", "says"),
    [
        ("plain", {"step": 2**63}, "header"),  # the log could not take it
        ("plain", {"step": str(-(2**63) - 1)}, "header"),
        ("plain", {"flags": 2**17}, "columns"),
        *(("plain", {"flags": 1 << flag}, "its header names none of these") for flag in range(9, 14)),
        *(
            ("traced", {"trace": span}, "trace context has a wrong length|header")
            for span in (b"x", SPAN + b"x", "text", None)
        ),
        *(("labelled", {"labels": [["tag", rows]]}, "row") for rows in NO_ROWS),
        *(("labelled", {"noted": rows}, "row") for rows in NO_ROWS),
        ("extended", {"flags": 2**14 + 2**8}, "JSON lines and typed columns"),
        ("extended", {"payload_columns": [["x", "float64", 0]]}, "describes typed columns"),
        ("extended", {"flags": 2**9}, "its header names none of these"),
        ("extended", {"flags": 2**20 + 2**8}, "flags name unknown columns"),
        ("extended", {"flags": 2**16 + 2**8}, "represent pairs"),
        ("extended", {"fold": [b"x", 2, b""]}, "represent pairs"),
        ("extended", {"flags": 0}, "frame states|each of its rows|says that it has none|names messages|pairs"),
        ("extended", {"attempt": -1}, "header"),
        ("extended", {"deliver": 2**63}, "header"),
        ("extended", {"audience": ["friends"]}, "header"),
        ("extended", {"reply_texts": ["4-0-"]}, "refers to a message"),
        ("extended", {"reply_texts": []}, "refers to a message"),
        ("extended", {"cause_texts": ["4-0-"]}, "refers to a message"),
        ("extended", {"cause_texts": []}, "refers to a message"),
        ("extended", {"behind": [[3, []]]}, "refers to rows"),
        ("extended", {"behind": [[1, [["east", 7, None, 1]]]]}, "header"),
        ("typed", {"payload_columns": []}, "no typed column"),
        ("typed", {"payload_columns": [["a", "float64", 0], ["a", "float64", 0]]}, "two with the same name"),
        ("typed", {"payload_columns": [["a", "float16", 0]]}, "'a' has the type 'float16'.*does not know"),
        ("typed", {"payload_columns": [["a", "string", 2]]}, "does not know"),
        ("typed", {"payload_columns": [["a", "float64", 2**30]]}, "ends within"),
        ("typed", {"payload_columns": [["a", "float64", 0]]}, "further bytes"),
        ("typed", {"payload_columns": [["", "float64", 0]]}, "header"),
        ("typed", {"lines": 1}, "JSON lines and typed columns"),
        ("typed", {"lines": -1}, "JSON lines and typed columns"),
        ("typed", {"flags": 2**14 | 2**6}, "JSON lines and typed columns"),
        ("typed", {"flags": 2**14 | 2**9}, "its header names none of these"),
        ("typed", {"rows": 3}, "JSON lines and typed columns"),
        ("typed", {"rows": 2**40, "lines": 2**40}, "rows is impossible"),
    ],
    ids=str,
)
def test_a_header_that_says_what_cannot_be(kind, change, says):
    with pytest.raises(FrameError, match=says):
        decode(rewritten(FRAMES[kind], change))


@pytest.mark.parametrize(("at", "value", "says"), [(-1, 2, "neither 0 nor 1"), (-16 - 12, 254, "impossible number")])
def test_extension_columns_with_impossible_values(at, value, says):
    batch = decode(FRAMES["extended"])
    batch.extension.caused_by = None  # `expects_answer` is the last column then
    frame = bytearray(encode(batch))
    length = int.from_bytes(frame[8:12], "little")
    ends = len(frame)
    frame[ends + at] = value
    if says != "neither 0 nor 1":
        frame[ends - 15 - 24 : ends - 15] = np.full(3, -2, "<i8").tobytes()
    with pytest.raises(FrameError, match=says):
        decode(sealed(bytes(frame[12:]), length))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b"\1\0", b"\2\0", "'open' has a bool"),
        ("né".encode(), b"n\xff\xff", "not UTF-8"),
        (np.array([0, 3, 3], "<i4").tobytes(), np.array([0, 2, 3], "<i4").tobytes(), "ends within a character"),
        (np.array([0, 3, 3], "<i4").tobytes(), np.array([0, 4, 3], "<i4").tobytes(), "impossible bounds"),
        (np.array([0, 3, 3], "<i4").tobytes(), np.array([1, 3, 3], "<i4").tobytes(), "impossible bounds"),
        (np.array([0, 3, 3], "<i4").tobytes(), np.array([0, 3, -1], "<i4").tobytes(), "impossible bounds"),
    ],
    ids=str,
)
def test_typed_columns_with_impossible_values(old, new, says):
    frame = FRAMES["typed"]
    at = frame.rindex(old)
    body = frame[12:at] + new + frame[at + len(old) :]
    with pytest.raises(FrameError, match=says):
        decode(sealed(body, int.from_bytes(frame[8:12], "little")))


@pytest.mark.parametrize(
    "header", [b"", b"\xc1", b"\x90", b"\x9b" + b"\xa1\xff" * 11, msgspec.msgpack.encode({"a": 1})]
)
def test_a_header_that_is_none(header):
    with pytest.raises(FrameError):
        decode(sealed(header, len(header)))


def test_a_header_that_is_nested_without_end_is_no_frame():
    fields = msgspec.msgpack.encode(Header("s", 0, 0, 0, 0, -1, ("t",), (), (), None, 0.0))
    header = b"\xdc\0" + bytes([fields[2] + 1]) + fields[3:] + b"\x91" * 100_000  # an array of one more
    with pytest.raises(FrameError, match=r"recursion|truncated|Stack overflow"):
        decode(sealed(header, len(header)))


def test_other_versions_and_sizes():
    frame = FRAMES["plain"]
    for version in (VERSION - 1, VERSION + 1):
        with pytest.raises(
            FrameError, match=rf"has the format {version}, but this ray_messaging reads only the format {VERSION}"
        ):
            decode(frame[:2] + bytes([version]) + frame[3:])

    class Huge(bytes):
        def __len__(self):
            return FRAME_LIMIT + 1

    with pytest.raises(FrameError, match="bytes, but must have"):
        decode(Huge(frame))
    with pytest.raises(FrameError, match="RM"):
        decode(b"XX" + frame[2:])
