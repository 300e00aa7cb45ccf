"""The design of a study: rows, replicates and seeds."""

import numpy as np
import pandas as pd
import pytest

from ray_messaging.errors import ConfigError
from ray_messaging.studies.design import design_of


def test_a_dict_of_lists_is_the_product_and_others_are_rows():
    product = design_of({"chance": np.array([0.1, 0.2]), "rule": ["none", "cap"], "n": 5}, 2, 0)
    rows = [run.row for run in product[::2]]
    assert rows == [{"chance": chance, "rule": rule, "n": 5} for chance in (0.1, 0.2) for rule in ("none", "cap")]
    assert [run.replicate for run in product] == [0, 1] * 4
    assert all(type(row["chance"]) is float for row in rows)
    listed = design_of([{"n": 1, "m": 2}, {"m": 4, "n": 3}], 1, 0)
    framed = design_of(pd.DataFrame({"n": [1, 3], "m": [2, 4]}), 1, 0)
    assert [run.row for run in listed] == [run.row for run in framed] == [{"n": 1, "m": 2}, {"n": 3, "m": 4}]


def test_a_larger_design_has_the_runs_of_a_smaller_one():
    small = design_of({"n": [1, 2]}, 2, 7)
    large = design_of({"n": [0, 1, 2]}, 5, 7)
    assert {*map(repr, small)} < {*map(repr, large)}
    assert len({run.key for run in large}) == 15
    assert len({run.seed for run in large}) == 5
    assert {run.seed for run in large}.isdisjoint(run.seed for run in design_of({"n": [0]}, 5, 8))
    assert len({run.key for run in design_of({"n": [1, 1.0, True, "1"]}, 1, 0)}) == 4


def test_seeds_stay_as_they_are():
    """They are a promise: a study goes on with another version of this library."""
    assert [run.seed for run in design_of([{}], 3, 0)] == [2012574599, 923165722, 3305446378]
    assert [run.key for run in design_of({"n": [1]}, 1, 0)] == ["6770fc3b40ca700d20aa233a"]


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"seed": [1]}, "'seed' has the same name as a column"),
        ({"a b": [1]}, "'a b' is not a valid name"),
        ({"n": []}, "has no value"),
        ([], "is empty"),
        (pd.DataFrame({"n": []}), "without a row"),
        (7, "must be a dict of lists"),
        ([{"n": 1}, {"m": 1}], "row 1 of parameters= has 'm', and row 0 has 'n'"),
        ({"n": [1, 1]}, "rows 0 and 1 .* are equal: to repeat runs, use replicates="),
        ({"n": [1.0, float("nan")]}, "row 1 of parameters= has n=nan"),
        (pd.DataFrame([[1, 2]], columns=["n", "n"]), "two columns of parameters= have the name 'n'"),
        ({"text": b"ab"}, "row 0 of parameters= has text=b'ab'"),
        ({"rule": [print]}, "row 0 of parameters= has rule=.*use a name"),
    ],
)
def test_bad_parameters_are_named(parameters, said):
    with pytest.raises(ConfigError, match=said):
        design_of(parameters, 1, 0)


@pytest.mark.parametrize("replicates", [0, True, 1.5, "3"])
def test_bad_replicates_are_named(replicates):
    with pytest.raises(ConfigError, match="replicates="):
        design_of({"n": [1]}, replicates, 0)
    with pytest.raises(ConfigError, match="seed=None"):
        design_of({"n": [1]}, 1, None)
