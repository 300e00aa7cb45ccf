"""Columns of message ids: each comes back as it was."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_messaging.model.message_ids import MessageIdColumn

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
NUMBERS = st.integers(-5, 2**70)
IDS = st.one_of(
    st.none(),
    TEXTS,
    st.builds("{}-{}-{}".format, TEXTS, NUMBERS, NUMBERS),
    st.builds("{}-{}-{}".format, NUMBERS, NUMBERS, TEXTS),
    st.sampled_from(["5-3-7", "5-3--7", "5-3-07", "5-3-", "5-3-0", "-", "--", "7", "5-3-²", "a-1-999999999999999999"]),
)
LISTS = st.lists(IDS, max_size=12)


@given(LISTS)
def test_ids_come_back(ids):
    column = MessageIdColumn.of(ids)
    assert column.tolist() == ids
    assert len(column) == len(ids)


@given(LISTS, st.data())
def test_some_rows(ids, data):
    rows = data.draw(st.lists(st.integers(0, len(ids) - 1))) if ids else []
    taken = MessageIdColumn.of(ids).take(np.array(rows, np.intp))
    assert taken.tolist() == [ids[row] for row in rows]
    assert len(taken.texts) <= max(1, len(set(ids)))


@given(st.lists(LISTS, min_size=1, max_size=4))
def test_joined(parts):
    assert MessageIdColumn.joined([MessageIdColumn.of(ids) for ids in parts]).tolist() == [
        id_ for ids in parts for id_ in ids
    ]


@pytest.mark.parametrize(
    "ids", [[f"a-3-{n}" for n in range(100)], [f"4-0-{n}" for n in range(100)]], ids=["plain", "step"]
)
def test_ids_of_one_sender_or_step_share_their_text(ids):
    column = MessageIdColumn.of(ids)
    assert len(column.texts) == 1
    assert column.places is None
