"""MaxLength."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.rules import batch_of, blocked, judged, one_by_one

from ray_messaging.interception.rules import MaxLength
from ray_messaging.model.columns import PayloadColumn


@given(st.lists(st.text(max_size=9), min_size=1), st.integers(2, 30))
def test_at_once_and_one_by_one(texts, limit):
    batch, rule = batch_of([(None, 2)] * len(texts), texts), MaxLength(limit)
    assert judged(rule, batch) == one_by_one(rule, batch)
    assert blocked(rule, batch) == [row for row, line in enumerate(batch.lines.list) if len(line) > limit]


def test_lines_that_messages_share():
    batch = batch_of([(1, 2)] * 3)
    batch.lines = PayloadColumn.of([b"{}", b'{"x":1}'], np.array([1, 0, 1], np.uint32))
    assert blocked(MaxLength(6), batch) == [0, 2]
    assert judged(MaxLength(6), batch)[0].reason == "payload of 7 bytes, the limit is 6"
