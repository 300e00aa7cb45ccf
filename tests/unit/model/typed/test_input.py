"""Typed columns of arrays, lists, Arrow and pandas; what cannot be sent is refused with its column and row."""

import math
from datetime import datetime
from enum import Enum

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ray_messaging.errors import InvalidColumns
from ray_messaging.model.typed.input import columns, is_array, is_table, table_of


class Side(str, Enum):  # noqa: UP042 - not a StrEnum, whose text is its value
    BUY = "buy"


TRAVEL = [
    ([1, 2], "int64", [1, 2]),
    ([1, 2.5], "float64", [1.0, 2.5]),
    ((True, False), "bool", [True, False]),
    (range(2), "int64", [0, 1]),
    ([Side.BUY, "sell"], "string", ["buy", "sell"]),
    (np.array([Side.BUY], object), "string", ["buy"]),
    ([np.str_("a\0")], "string", ["a\0"]),
    ([np.True_, False], "bool", [True, False]),
    (["a", "b"], "string", ["a", "b"]),
    ([], "float64", []),
    ([[1, 2], [3, 4]], "int64 vectors of 2", [[1, 2], [3, 4]]),
    (np.array([1, 2], ">u4"), "uint32", [1, 2]),
    (np.arange(6)[::3], "int64", [0, 3]),
    (np.array(["a", "ü"]), "string", ["a", "ü"]),
    (np.array(["a", "ü"], object), "string", ["a", "ü"]),
    (np.array([], object), "string", []),
    (np.array([[1, 2], [3, 4]], object), "int64 vectors of 2", [[1, 2], [3, 4]]),
    (pd.Series([1, 2], dtype=object), "int64", [1, 2]),
    (pd.Series([1, 2.5], dtype=object), "float64", [1.0, 2.5]),
    (pd.Series([True, False], dtype=object), "bool", [True, False]),
    (pd.Series([1.5, None]), "float64", [1.5, math.nan]),
    (pd.Series(["x", "y"]), "string", ["x", "y"]),
    (pd.Series([1, 2], dtype="Int64"), "int64", [1, 2]),
    (pd.Series(pd.Categorical(["u", "v"])), "string", ["u", "v"]),
    (pa.array([1, None], pa.float32()), "float32", [1.0, math.nan]),
    (pa.array([True, False]), "bool", [True, False]),
    (pa.chunked_array([["a"], ["bc"]]), "string", ["a", "bc"]),
    (pa.chunked_array([], pa.int8()), "int8", []),
    (pa.array(["a", "bc", "d"], pa.large_string())[1:], "string", ["bc", "d"]),
    (pa.array([], pa.string()), "string", []),
    (pa.array(["q", "q"]).dictionary_encode(), "string", ["q", "q"]),
    (pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int8(), 2))[1:], "int8 vectors of 2", [[3, 4], [5, 6]]),
    (pa.array([[1, 2, 0], [3, 4], [5, 6]], pa.list_(pa.int8()))[1:], "int8 vectors of 2", [[3, 4], [5, 6]]),
    (pa.chunked_array([[[1.0]], [[2.0]]], pa.large_list(pa.float32())), "float32 vectors of 1", [[1.0], [2.0]]),
]
REFUSED = [
    ([1, "a"], r"has 'a' \(str\) and row 0 has 1: use one type", 1),
    ([True, 2], "int.*row 0 has True.*one type", 1),
    (["a", None], "no value: give it one", 1),
    ([1, None], "no value: give it one", 1),
    ([object], "type.*cannot be sent: use int8", 0),
    ([1.5, None], "no value", 1),
    (pd.Series([2**53 + 1, None, 3], dtype="Int64"), "no value", 1),
    (pd.Series(pd.Categorical([7, None])), "no value", 1),
    (np.ma.array([1.0, 2.0], mask=[0, 1]), "no value", 1),
    (pd.Series(["x", None]), "no value", 1),
    (np.array(["x", np.nan], object), "no value", 1),
    (pd.Series([1, np.nan], dtype=object), "no value", 1),
    (np.array([1, 2**70], object), "can hold all numbers.*send strs", 1),
    (pa.array([1, None]), "no value", 1),
    (pa.array([[1, None], [3, 4]], pa.list_(pa.int8(), 2)), "a missing number", 0),
    (pa.array(["a", None]), "no value", 1),
    ([[1], [1, 2]], "one type of numbers, and of one length", 1),
    ([np.str_("a"), float("nan")], "no value: give it one", 1),
    ([np.str_("a"), 1], "one type", 1),
    ([np.True_, 2], "one type", 1),
    ([1, np.ma.masked], "no value: give it one", 1),
    ([[np.True_, 2]], "vectors of one type", 0),
    ([np.array([1, 2]), np.array([True, False])], "vectors of one type", 1),
    ([np.ma.array([1, 2], mask=[0, 1])], "a vector with a missing number", 0),
    ([b"x"], "cannot be sent", None),
    ([1, 2**70], "can hold all numbers.*send strs", 1),
    ([2**53 + 1, 1.5], "row 1 has 1.5 .float. and row 0 has 9007199254740993", 1),
    ([[1, 1.5], [2**53 + 1, 1.5]], "vectors of one type", 0),
    ([[1, 2], [True, 2]], "vectors of one type", 1),
    ([datetime(2026, 1, 1)], "datetime.*isoformat", 0),  # noqa: DTZ001 - a naive one
    (np.array(["2026-01-01"] * 4, "M8[ns]")[::2], "datetime64.*as_string", None),
    ([1j], "complex128 cannot be sent", None),
    (np.array(["2020-01-01"], "M8[D]"), "datetime64.*cannot be sent", None),
    (np.zeros(2, np.float16), "float16 cannot be sent", None),
    (np.zeros((2, 0)), "an array of the shape", None),
    (np.zeros((2, 1, 1)), "an array of the shape", None),
    (np.array([["a"]]), "shape", None),
    (np.array(5), "an array of the shape", None),
    (pa.array([[1], [1, 2]]), "list.*cannot be sent", None),
    (pa.array([[1], None]), "no value", 1),
    (pa.array([["a"]]), "list.*cannot be sent", None),
    (pa.array([1], pa.timestamp("s")), "timestamp.*cannot be sent", None),
    (5, "value for each row", None),
    ("text", "value for each row", None),
    ({"a": 1}, "value for each row", None),
    (["ok", "\ud800"], "not valid Unicode", 1),
    ([1, 10**5000], "row 1 has <int of about 5,001 digits>, and neither int64 nor uint64", 1),
    ([1, pd.NaT], "row 1 has no value", 1),
]


@pytest.mark.parametrize(("values", "kind", "found"), TRAVEL, ids=map(str, range(len(TRAVEL))))
def test_a_column_of_what_users_have(values, kind, found):
    table = columns(x=values)
    assert str(table.schema["x"]) == kind
    made = table.columns["x"].tolist()
    assert repr(made) == repr(found)
    assert len(table) == len(found)


@pytest.mark.parametrize(("values", "says", "row"), REFUSED, ids=map(str, range(len(REFUSED))))
def test_what_cannot_travel_names_its_column_and_row(values, says, row):
    with pytest.raises(InvalidColumns, match=says) as caught:
        columns(fine=[1], x=values)
    assert (caught.value.column, caught.value.row) == ("x", row)
    assert "'x'" in str(caught.value)


def test_columns_need_names_of_their_own_one_length_and_one_at_least():
    with pytest.raises(InvalidColumns, match="at least one column"):
        columns()
    with pytest.raises(InvalidColumns, match="at least one column"):
        columns(pd.DataFrame())
    with pytest.raises(InvalidColumns, match="but 'a' has 2, 'b' has 3, 'c' has 2") as caught:
        columns(a=[1, 2], b=[1, 2, 3], c=[1, 2])
    assert caught.value.column == "b"
    with pytest.raises(InvalidColumns, match="two columns have the name 'a'"):
        columns(pa.table([[1], [2]], names=["a", "a"]))
    with pytest.raises(InvalidColumns, match="two columns have the name 'a'"):
        columns({"a": [1]}, a=[1])
    with pytest.raises(InvalidColumns, match="must be a non-empty str, not 0"):
        columns(pd.DataFrame([[1, 2]]))
    with pytest.raises(InvalidColumns, match="cannot take an object of type 'list'"):
        columns([1, 2])


def test_tables_and_frames_are_recognised():
    frame = pd.DataFrame({"a": [1, 2]}, index=[7, 9])
    for table in (frame, pa.table({"a": [1, 2]}), pa.record_batch({"a": [1, 2]}), columns(a=[1, 2])):
        assert is_table(table)
        assert table_of(table).list == [b'{"a":1}', b'{"a":2}']
    assert not is_table({"a": [1, 2]})
    assert not is_table([{"a": 1}])
    assert all(map(is_array, (np.zeros(1), pd.Series([1]), pa.array([1]), pa.chunked_array([[1]]))))
    assert not any(map(is_array, ([1], np.float64(1), np.array(1), "a")))


def test_a_later_change_of_the_array_changes_nothing():
    values = np.array([1, 2])
    table = columns(a=values)
    values[0] = 9
    assert table.payload(0) == {"a": 1}
    assert columns(table, b=[3, 4]).payload(1) == {"a": 2, "b": 4}
