"""Series: aggregates do not depend on the groups, nothing is rounded, and what cannot be kept is refused."""

import math
from collections import Counter
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_messaging import Count, Mean
from ray_messaging.eventlog.series_tables import series_table
from ray_messaging.model.series import UnfitValue, encode_aggregates, encode_rows, float_columns
from ray_messaging.transports.step_values import Collected, CollectedKind

NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53)


def table_of(parts, step=3):
    return series_table(
        [Collected(str(place), CollectedKind.SERIES, step, f"group{place}", part) for place, part in enumerate(parts)]
    )


def dealt(values, groups):
    return [part for number in range(groups) if len(part := values[number::groups])]


def aggregated(aggregate, values, groups):
    (row,) = table_of([encode_aggregates([aggregate], [part]) for part in dealt(values, groups)]).to_pylist()
    return {name: value for name, value in row.items() if name != "step"}


@given(st.lists(NUMBERS, min_size=1), st.integers(1, 8))
def test_a_mean_is_rounded_once_whatever_the_groups(values, groups):
    expected = float(sum(map(Fraction, values)) / len(values))
    assert aggregated(Mean("x"), values, groups) == {"x": expected}
    assert aggregated(Mean("x"), np.array(values, np.float64), groups) == {"x": expected}


@given(st.lists(st.sampled_from([1.5, math.inf, -math.inf, math.nan]), min_size=1), st.integers(1, 8))
def test_a_mean_of_numbers_that_are_not_finite_is_that_of_python(values, groups):
    assert aggregated(Mean("x"), values, groups)["x"] == pytest.approx(sum(values) / len(values), nan_ok=True)


@given(
    st.sampled_from([st.booleans(), st.integers(-3, 3), st.sampled_from("SIR")]).flatmap(
        lambda one: st.lists(one, min_size=1)
    )
)
def test_counts_are_those_of_python_whatever_the_groups(values):
    expected = {f"x={value}": count for value, count in Counter(values).items()}
    for groups in (1, 3):
        assert aggregated(Count("x"), values, groups) == expected
        assert aggregated(Count("x"), np.array(values), groups) == expected


@given(st.data(), st.lists(st.text(max_size=3), min_size=1, max_size=5, unique=True))
def test_rows_are_split_into_columns_only_if_all_are_floats_by_the_same_keys(data, names):
    numbers = data.draw(st.lists(st.tuples(*[st.floats()] * len(names)), min_size=1, max_size=20))
    rows = [dict(zip(names, some, strict=True)) for some in numbers]
    like = partial(dict.fromkeys, names)
    assert np.array_equal(np.array(float_columns(rows, like)).T, numbers, equal_nan=True)
    other = data.draw(st.integers() | st.booleans() | st.none() | st.text() | st.sampled_from([[0.5], np.float64(0.5)]))
    for odd in (rows[0] | {names[-1]: other}, rows[0] | {"further": 0.5}):
        at = data.draw(st.integers(0, len(rows)))
        assert float_columns([*rows[:at], odd, *rows[at:]], like) is None


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ([1, None], 1),
        ([1.5, "two"], 1),
        ([True, 1], 1),
        ([0.5, 2**53 + 1], 1),
        ([2**70], 0),
        (["a", "\ud800"], 1),
        ([1, [2]], 1),
        (np.array([1, 2**60]), 1),
        (np.array([[1, 2]]), None),
        (np.array([1j]), None),
        (np.array([1], np.longdouble), None),
    ],
)
def test_what_cannot_be_kept_exactly_is_refused_with_its_place(values, place):
    with pytest.raises(UnfitValue, match="collect returned x=") as caught:
        encode_rows(np.arange(len(values)), {"x": values})
    assert caught.value.place == place


@pytest.mark.parametrize("name", ["step", "agent", "agent_name", "", 5, "\ud800"])
def test_a_column_has_a_name_of_its_own(name):
    with pytest.raises(UnfitValue, match="name it by a text"):
        encode_rows(np.arange(1), {name: [1]})
