"""Tables for notebooks never make markup of values, and are short."""

import re
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_messaging.common.notebook import SHOWN, html_table
from ray_messaging.common.tables import utc_times

TAG = re.compile(r"</?(div|p|b|table|thead|tbody|tr|th|td)( class=\"dataframe\"| style=\"text-align: (left|right)\")?>")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.datetimes(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(title=st.text(), name=st.text(), values=st.lists(VALUES, max_size=SHOWN))
def test_no_value_becomes_markup(title, name, values):
    left = TAG.sub("", html_table(title, {name: values}, len(values)))
    assert "<" not in left
    assert ">" not in left
    assert left.isprintable()


def test_a_table_names_the_rows_that_it_leaves_out():
    text = html_table("1,000 things", {"n": range(SHOWN)}, 1000)
    assert text.count("<tr>") == SHOWN + 1
    assert "... and 980 more" in text
    assert "more" not in html_table("20 things", {"n": range(SHOWN)}, SHOWN)
    assert "<table" not in html_table("no things", {"n": []}, 0)


@pytest.mark.parametrize("value", ["x" * 2**20, b"x" * 2**20, {"text": "x" * 2**20}], ids=["text", "bytes", "payload"])
def test_a_long_value_is_cut(value):
    assert 60 < len(TAG.sub("", html_table("", {"value": [value]}, 1))) < 120


def test_values_look_as_they_were_written():
    columns = {"payload": [b'{"mood": 0.5}'], "labels": [["calm"]], "at": [datetime(2026, 1, 2, 3, 4, 5, 6000, UTC)]}
    text = TAG.sub("|", html_table("", columns, 1))
    assert "|{&quot;mood&quot;: 0.5}|" in text
    assert "|[&quot;calm&quot;]|" in text
    assert "|2026-01-02 03:04:05.006|" in text


def test_a_value_that_is_no_json_is_shown_by_its_repr():
    ring = []
    ring.append(ring)
    assert "[[...]]" in html_table("", {"value": [ring]}, 1)


def test_times_are_in_utc_and_null_where_there_is_no_date():
    times = utc_times(np.array([0.0, 1.5, np.nan, 1e300, -1e300]))
    assert str(times.type) == "timestamp[us, tz=UTC]"
    assert [time and time.timestamp() for time in times.to_pylist()] == [0.0, 1.5, None, None, None]
