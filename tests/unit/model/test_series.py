"""Series: aggregates do not depend on the groups, nothing is rounded, and what cannot be kept is refused."""

import math
from collections import Counter
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ray_messaging import Count, Gini, Max, Mean, Min, Quantile, Share, Sum
from ray_messaging.eventlog.series_tables import series_table
from ray_messaging.model.series import encode_aggregates, encode_rows
from ray_messaging.model.series_columns import UnfitValue, float_columns
from ray_messaging.transports.step_values import Collected, CollectedKind

NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53)


def table_of(parts, step=3):
    return series_table(
        [Collected(str(place), CollectedKind.SERIES, step, f"group{place}", part) for place, part in enumerate(parts)]
    )


def dealt(values, groups):
    return [part for number in range(groups) if len(part := values[number::groups])]


def encoded(aggregate, values, living=None):
    return encode_aggregates({aggregate.name: aggregate.partial(values, living)})


def aggregated(aggregate, values, groups):
    (row,) = table_of([encoded(aggregate, part) for part in dealt(values, groups)]).to_pylist()
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


@given(st.lists(NUMBERS, min_size=1), st.integers(1, 8))
@example([-1e308, -1e308], 1)
def test_a_sum_is_rounded_once_and_whole_for_whole_numbers(values, groups):
    expected = sum(map(Fraction, values))
    (found,) = aggregated(Sum("x"), values, groups).values()
    try:
        assert found == float(expected)
    except OverflowError:
        assert found == (math.inf if expected > 0 else -math.inf)
    whole = [round(value % 1000) for value in values]
    assert aggregated(Sum("x"), whole, groups) == {"x": sum(whole)}


@given(st.lists(NUMBERS, min_size=1), st.integers(1, 8), st.floats(0, 1))
def test_least_greatest_and_quantile_are_those_of_the_sorted_numbers(values, groups, q):
    ordered = sorted(values)
    assert aggregated(Min("x"), values, groups) == {"x": ordered[0]}
    assert aggregated(Max("x"), values, groups) == {"x": ordered[-1]}
    (found,) = aggregated(Quantile("x", q), values, groups).values()
    place = q * (len(values) - 1)
    low, high = (Fraction(ordered[round_(place)]) for round_ in (math.floor, math.ceil))
    assert found == float(low + (high - low) * Fraction(place % 1))


@given(st.lists(st.floats(0, 1e300) | st.integers(0, 2**53), min_size=1, max_size=30), st.integers(1, 8))
def test_gini_is_the_mean_difference_by_twice_the_mean(values, groups):
    exact = [Fraction(value) for value in values]
    total = 2 * len(exact) * sum(exact)
    expected = float(sum(abs(one - other) for one in exact for other in exact) / total) if total else 0.0
    assert aggregated(Gini("x"), values, groups) == {"x": expected}


AGGREGATES = [Sum("x"), Mean("x"), Min("x"), Max("x"), Quantile("x", 0.3), Gini("x")]


@given(
    st.lists(st.floats(0) | st.sampled_from([-0.0, math.nan, 7]), min_size=1, max_size=9),
    st.sampled_from(AGGREGATES),
    st.randoms(use_true_random=False),
)
def test_an_aggregate_is_the_same_to_the_bit_in_any_order_and_layout(values, aggregate, random):
    shuffled = random.sample(values, len(values))
    one, four = repr(aggregated(aggregate, values, 1)), repr(aggregated(aggregate, shuffled, 4))
    assert one == four


@pytest.mark.parametrize(
    ("aggregate", "values", "expected"),
    [
        (Quantile("x", 0.5), [-math.inf, math.inf], math.nan),
        (Quantile("x", 0.5), [0.0, math.inf], math.inf),
        (Quantile("x", 1), [1, 2, 3], 3),
        (Gini("x"), [0, 0, 0], 0.0),
        (Gini("x"), [0, 0, 0, 1], 0.75),
        (Gini("x"), [1.0, math.inf], math.nan),
        (Min("x"), [True, False], 0),
        (Sum("x"), [True, False, True], 2),
        (Sum("x"), [2**53] * 3, float(3 * 2**53)),
        (Sum("x"), [1e308] * 3, math.inf),
    ],
)
def test_the_edges_of_aggregates(aggregate, values, expected):
    for groups in (1, 2):
        (found,) = aggregated(aggregate, values, groups).values()
        assert found == pytest.approx(expected, rel=0, abs=0, nan_ok=True)
        assert type(found) is type(expected)


@given(st.lists(st.sampled_from("SIR"), min_size=1), st.integers(1, 8))
def test_shares_are_counts_by_the_number_of_agents(values, groups):
    expected = {f"x={value}": count / len(values) for value, count in Counter(values).items()}
    assert aggregated(Share("x"), values, groups) == expected


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
    with pytest.raises(UnfitValue, match=r"collect returned .*x") as caught:
        encode_rows(np.arange(len(values)), {"x": values})
    assert caught.value.place == place


@pytest.mark.parametrize("name", ["step", "agent", "agent_name", "", 5, "\ud800"])
def test_a_column_has_a_name_of_its_own(name):
    with pytest.raises(UnfitValue, match="a column name must be a str"):
        encode_rows(np.arange(1), {name: [1]})
