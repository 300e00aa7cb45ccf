"""Frames with an extension that this library cannot read are refused; `test_frames` has their round trips."""

import numpy as np
import pytest
from support.batches import batch_to
from support.frames import rewritten, sealed

from ray_messaging.errors import FrameError
from ray_messaging.model.extension import Audience, Extension, InHand
from ray_messaging.model.message_ids import MessageIdColumn
from ray_messaging.wire.frames import decode, encode


def of_three(**more):
    return batch_to([1, 2, 3], **more)


def answers():
    """Return a frame with every column of an extension."""
    return encode(
        of_three(
            step=4,
            extension=Extension(
                attempt=2,
                deliver=np.array([5, 5, 9]),
                ordinal=np.arange(3, dtype=np.uint32),
                in_reply_to=MessageIdColumn.of(["4-0-7", None, "s-1-8"]),
                expects_answer=np.array([False, True, False]),
                reply_mailbox="town.east",
                audience=Audience("friends", 3),
                behind={1: (InHand("east", "s-1-8", "ann", 1), InHand("west", "4-0-7", None, 0))},
                failed=True,
                caused_by=MessageIdColumn.of([None, "s-1-9", "4-0-7"]),
            ),
        )
    )


def test_a_plain_frame_is_no_byte_longer():
    assert len(encode(of_three(extension=Extension()))) > len(encode(of_three()))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"flags": 2**14 + 2**8}, "lines and columns"),
        ({"payload_columns": [["x", "float64", 0]]}, "describes columns"),
        ({"flags": 2**9}, "extension that it has not"),
        ({"flags": 2**19 + 2**8}, "columns that there are not"),
        ({"flags": 2**16 + 2**8}, "stands for pairs"),
        ({"fold": [b"x", 2, b""]}, "stands for pairs"),
        ({"flags": 0}, "another length|match its rows|does not announce|names messages|pairs"),
        ({"attempt": -1}, "header"),
        ({"deliver": 2**63}, "header"),
        ({"audience": ["friends"]}, "header"),
        ({"reply_texts": ["4-0-"]}, "refers to a message"),
        ({"reply_texts": []}, "refers to a message"),
        ({"cause_texts": ["4-0-"]}, "refers to a message"),
        ({"cause_texts": []}, "refers to a message"),
        ({"behind": [[3, []]]}, "names rows"),
        ({"behind": [[1, [["east", 7, None, 1]]]]}, "header"),
    ],
    ids=str,
)
def test_an_extension_that_cannot_be_read(change, says):
    with pytest.raises(FrameError, match=says):
        decode(rewritten(answers(), change))


@pytest.mark.parametrize("flag", [9, 10, 11, 12, 13])
def test_a_plain_frame_with_flags_of_an_extension(flag):
    with pytest.raises(FrameError, match="extension that it has not"):
        decode(rewritten(encode(of_three()), {"flags": 1 << flag}))


@pytest.mark.parametrize(("at", "value", "says"), [(-1, 2, "yes or no"), (-16 - 12, 254, "impossible number")])
def test_extension_columns_with_impossible_values(at, value, says):
    batch = decode(answers())
    batch.extension.caused_by = None  # `expects_answer` is the last column then
    frame = bytearray(encode(batch))
    length = int.from_bytes(frame[8:12], "little")
    ends = len(frame)
    frame[ends + at] = value
    if says != "yes or no":
        frame[ends - 15 - 24 : ends - 15] = np.full(3, -2, "<i8").tobytes()
    with pytest.raises(FrameError, match=says):
        decode(sealed(bytes(frame[12:]), length))
