"""Frames of traced batches: they carry a span, and are else as ever."""

import pickle

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.batches import batch_to
from support.extensions import extensions
from support.frames import rewritten

from ray_messaging.errors import FrameError
from ray_messaging.model.batch import CONTEXT_BYTES, Origin, TracePoint
from ray_messaging.model.columns import PayloadColumn
from ray_messaging.model.extension import Extension
from ray_messaging.wire.frames import decode, encode

SPAN = bytes(range(CONTEXT_BYTES))


def of_two(**more):
    return batch_to([1, 2], lines=PayloadColumn.of([b"{}", b"[]"]), **more)


@given(span=st.binary(min_size=CONTEXT_BYTES, max_size=CONTEXT_BYTES), extension=st.none() | extensions(2))
def test_the_span_arrives_and_nothing_else_changes(span, extension):
    # A span needs the frame of an extension: an empty one is not told from none.
    assume(extension is None or encode(of_two(extension=extension)) != encode(of_two(extension=Extension())))
    batch = of_two(trace=TracePoint(span, 0.0), extension=extension)
    found = decode(encode(batch))
    assert found.trace.sent == span
    assert found.trace.since > 0
    assert (found.extension is None) == (extension is None)
    found.trace = found.frame = batch.trace = None
    assert encode(found) == encode(batch)


def test_a_frame_without_a_span_is_no_byte_longer():
    assert len(encode(of_two(trace=TracePoint(SPAN, 0.0)))) <= len(encode(of_two())) + 64
    extended = encode(of_two(extension=Extension(attempt=3)))
    assert len(encode(of_two(extension=Extension(attempt=3), trace=TracePoint(SPAN, 0.0)))) > len(extended)


def test_a_pickle_and_some_rows_keep_span_and_fetch():
    batch = decode(encode(of_two(trace=TracePoint(SPAN, 0.0))))
    batch.origin, batch.trace = Origin("west", "1-0"), batch.trace._replace(fetched=SPAN[::-1])
    for found in (pickle.loads(pickle.dumps(batch)).trace, batch.take(np.array([1])).trace):
        assert (found.sent, found.fetched) == (SPAN, SPAN[::-1])


@pytest.mark.parametrize("span", [b"x", SPAN + b"x", "text", None])
def test_a_span_of_another_length_is_refused(span):
    with pytest.raises(FrameError):
        decode(rewritten(encode(of_two(trace=TracePoint(SPAN, 0.0))), {"trace": span}))
