"""Data frames hold the numbers that were given, also beside missing ones."""

import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from ray_messaging.common.tables import data_frame

NUMBERS = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(),
    st.sampled_from([2**53, 2**53 + 1, -(2**53) - 1, 2**63, 10**400]),
    st.floats(allow_nan=False),
)
COLUMN = st.lists(st.one_of(st.none(), NUMBERS)) | st.lists(st.none() | st.integers(-(2**63), 2**63 - 1))


@given(COLUMN, st.booleans())
def test_numbers_of_a_column_are_those_that_were_given(values, is_id):
    frame = data_frame({"x": values}, ids=["x"] if is_id else [])
    assert [None if pd.isna(value) else value for value in frame["x"]] == values


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_ids_are_int64_of_pandas(values):
    assert data_frame({"x": values}, ids=["x"])["x"].dtype == pd.Int64Dtype()
