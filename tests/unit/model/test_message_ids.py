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


@given(st.lists(LISTS, min_size=1, max_size=4), st.data())
def test_ids_come_back_joined_and_in_any_rows(parts, data):
    columns, ids = [MessageIdColumn.of(some) for some in parts], [each for some in parts for each in some]
    assert [(column.tolist(), len(column)) for column in columns] == [(some, len(some)) for some in parts]
    whole, joined = MessageIdColumn.of(ids), MessageIdColumn.joined(columns)
    assert whole.tolist() == joined.tolist() == ids
    rows = data.draw(st.lists(st.integers(0, len(ids) - 1))) if ids else []
    taken, of_joined = (column.take(np.array(rows, np.intp)) for column in (whole, joined))
    assert taken.tolist() == of_joined.tolist() == [ids[row] for row in rows]
    assert len(taken.texts) <= max(1, len(set(ids)))


@pytest.mark.parametrize(
    "ids", [[f"a-3-{n}" for n in range(100)], [f"4-0-{n}" for n in range(100)]], ids=["plain", "step"]
)
def test_ids_of_one_sender_or_step_share_their_text(ids):
    column = MessageIdColumn.of(ids)
    assert len(column.texts) == 1
    assert column.places is None
