"""Columns of ids."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_messaging.errors import InvalidAddress
from ray_messaging.model.columns import IdColumn

INT64 = st.integers(-(2**63), 2**63 - 1)
NAME = st.text("abcé _", min_size=1, max_size=5)
MIXED = st.lists(st.one_of(INT64, NAME, st.none()), max_size=20)


@given(MIXED)
def test_a_column_holds_the_given_ids(ids):
    checked = [IdColumn.checked(form(ids), none=True) for form in (list, iter, tuple)]
    for column in (IdColumn.of(ids), *checked):
        assert column.tolist() == column.to_numpy().tolist() == ids
        assert [column[row] for row in range(len(column))] == ids
        assert (column.kinds is None) == all(isinstance(agent_id, int) for agent_id in ids)


@given(MIXED, st.data())
def test_some_rows_name_no_more_than_they_are(ids, data):
    rows = data.draw(st.lists(st.integers(0, max(0, len(ids) - 1)), max_size=len(ids)))
    column = IdColumn.of(ids)
    part = column.take(np.array(rows, np.intp))
    assert part.tolist() == [ids[row] for row in rows]
    assert column.take(slice(1, 3)).tolist() == ids[1:3]
    again = part.take(np.arange(len(rows))[::-1])
    assert again.tolist() == [ids[row] for row in reversed(rows)]
    used = {agent_id for agent_id in part.tolist() if isinstance(agent_id, str)}
    assert {*part.strings} == (used if len(rows) < len(column.strings) else {*column.strings})
    assert again.width <= part.width <= column.width


@given(st.lists(INT64, max_size=20))
def test_integer_columns(ids):
    assert IdColumn.checked(np.array(ids, np.int64)).tolist() == ids
    assert IdColumn.of(ids).to_numpy().dtype == np.int64


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint32, np.uint64, ">i8", object, str])
def test_every_kind_of_array(dtype):
    assert IdColumn.checked(np.array([1, 2, 3], dtype)).tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "bad",
    [5, "text", b"bytes", None, [None], [1.5], [True], [2**63], np.array([2**63], np.uint64), np.array([[1], [2]]),
     np.ma.array([5, 6], mask=[0, 1]), np.array([1.5]), np.array([True]), np.array(5), [[1]], [b"x"], ["a\n"],
     [float("nan")]],
    ids=repr,
)  # fmt: skip
def test_invalid_id_columns_are_refused(bad):
    with pytest.raises(InvalidAddress):
        IdColumn.checked(bad)


@pytest.mark.parametrize("agent_id", [5, "ann", None])
def test_constants(agent_id):
    assert IdColumn.constant(agent_id, 3).tolist() == [agent_id] * 3
    assert IdColumn.constant(agent_id, 0).tolist() == []


def test_id_columns_are_read_only():
    """A rule in the sender's process cannot change the sent messages."""
    made = [*map(IdColumn.checked, (np.arange(3), [1, 2], ["a", 2])), IdColumn.constant(7, 3), IdColumn.of([1, None])]
    for column in made:
        with pytest.raises(ValueError, match="read-only"):
            column.values[0] = 9
