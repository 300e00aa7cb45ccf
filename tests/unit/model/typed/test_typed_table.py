"""Typed columns: rows taken, joined and replaced, and their JSON."""

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.typed_tables import tables, values_of

from ray_messaging.model.columns import PayloadColumn
from ray_messaging.model.joining import joined_payloads
from ray_messaging.model.typed.input import columns
from ray_messaging.model.typed.typed_table import TypedColumns

PRICES = np.array([1.5, math.nan, -2.0])
OFFERS = columns(
    price=PRICES, text=["a", "né", ""], at=np.arange(6, dtype="int16").reshape(3, 2), open=[True, False, True]
)


def test_a_row_is_a_dict_and_its_json_line_has_null_for_nan():
    assert OFFERS.payload(0) == {"price": 1.5, "text": "a", "at": [0, 1], "open": True}
    assert math.isnan(OFFERS.payload(1)["price"])
    assert OFFERS.row(1) == '{"price":null,"text":"né","at":[2,3],"open":false}'.encode()
    assert OFFERS.list == [OFFERS.row(row) for row in range(3)]
    assert OFFERS.json.list == OFFERS.list
    assert OFFERS.payloads(2) == [OFFERS.payload(2)]


def test_its_repr_has_no_payloads():
    assert repr(OFFERS) == (
        "TypedColumns(3 payloads, price: float64, text: string, at: int16 vectors of 2, open: bool)"
    )


@given(st.data())
def test_rows_are_taken_as_values_are(data):
    rows = data.draw(st.integers(0, 8))
    table = data.draw(tables(rows))
    some = data.draw(st.lists(st.integers(0, max(0, rows - 1)), max_size=rows))
    taken = table.take(np.array(some, np.intp))
    assert taken.list == [table.row(row) for row in some]
    taken.pack()
    assert taken.list == [table.row(row) for row in some]
    assert len(taken) == len(some)
    low = data.draw(st.integers(0, rows))
    high = data.draw(st.integers(low, rows))
    assert values_of(table.part(low, high)) == values_of(table.take(np.arange(low, high)))
    assert table.part(low, high).list == table.list[low:high]


@given(st.data())
def test_sizes_are_those_of_the_values(data):
    rows = data.draw(st.integers(0, 8))
    table = data.draw(tables(rows))
    wanted = [
        sum(
            column.value(row).encode().__len__() + 4
            if column.type.name == "string"
            else column.to_numpy()[row : row + 1].nbytes
            for column in table.columns.values()
        )
        for row in range(rows)
    ]
    assert table.weights.tolist() == wanted
    assert table.volumes.tolist() == np.cumsum(wanted).tolist()
    strings = sum(kind.name == "string" for kind in table.schema.values())
    assert table.nbytes == sum(wanted) + 4 * strings


@given(st.data())
def test_tables_of_one_schema_are_joined_as_such(data):
    table = data.draw(tables(7))
    bounds = sorted(data.draw(st.sets(st.integers(1, 6), max_size=3)))
    parts = [table.part(low, high) for low, high in zip([0, *bounds], [*bounds, 7], strict=True)]
    joined = joined_payloads(parts, [*map(len, parts)])
    assert isinstance(joined, TypedColumns)
    assert values_of(joined) == values_of(table)


def test_other_payloads_are_joined_as_json():
    others = columns(price=[1, 2])
    lines = PayloadColumn.of([b"{}"], np.zeros(2, np.uint32))
    joined = joined_payloads([OFFERS, others, lines], [3, 2, 2])
    assert joined.by_row == [*OFFERS.list, *others.list, b"{}", b"{}"]


def test_a_row_is_replaced_where_it_fits():
    changed = {
        1: b'{"price":3,"text":"x","at":[7,-8],"open":true}',
        2: b'{"text":"y","price":null,"at":[0,0],"open":false}',
    }
    found = OFFERS.replaced(changed, 3)
    assert isinstance(found, TypedColumns)
    assert found.schema == OFFERS.schema
    assert found.payload(1) == {"price": 3.0, "text": "x", "at": [7, -8], "open": True}
    assert math.isnan(found.payload(2)["price"])
    assert found.row(0) == OFFERS.row(0)
    assert OFFERS.payload(2)["text"] == ""


@pytest.mark.parametrize(
    "line",
    [
        b'{"price":"1","text":"x","at":[7,8],"open":true}',
        b'{"price":1,"text":5,"at":[7,8],"open":true}',
        b'{"price":1,"text":"x","at":[7],"open":true}',
        b'{"price":1,"text":"x","at":7,"open":true}',
        b'{"price":1,"text":"x","at":[7,40000],"open":true}',
        b'{"price":1,"text":"x","at":[7,8.5],"open":true}',
        b'{"price":1,"text":"x","at":[7,8],"open":1}',
        b'{"price":1,"text":"x","at":[7,8]}',
        b'{"price":1,"text":"x","at":[7,8],"open":true,"more":1}',
        b"[1]",
        b'{"price":9007199254740993,"text":"x","at":[7,8],"open":true}',
        b'{"price":1%s,"text":"x","at":[7,8],"open":true}' % (b"0" * 400),
    ],
)
def test_with_a_row_that_does_not_fit_all_are_json(line):
    found = OFFERS.replaced({2: line}, 3)
    assert isinstance(found, PayloadColumn)
    assert found.list == [OFFERS.row(0), OFFERS.row(1), line]


def test_columns_are_arrow_without_a_copy():
    found = OFFERS.to_arrow()
    assert [str(kind) for kind in found.schema.types] == ["double", "string", "fixed_size_list<item: int16>[2]", "bool"]
    assert found.column("text").to_pylist() == ["a", "né", ""]
    assert found.column("at").to_pylist() == [[0, 1], [2, 3], [4, 5]]
    assert found.column("price").buffers()[1].address == OFFERS.columns["price"].to_numpy().ctypes.data
    assert columns(found).list == OFFERS.list
    assert columns(pa.Table.from_batches([found, found])).list == OFFERS.list * 2
    assert columns(found.slice(1)).list == OFFERS.list[1:]


def test_arrays_are_numpys():
    assert OFFERS.columns["text"].to_numpy().tolist() == ["a", "né", ""]
    assert OFFERS.columns["text"].to_numpy().dtype == object
    assert OFFERS.columns["at"].to_numpy().shape == (3, 2)
    with pytest.raises(ValueError, match="read-only"):
        OFFERS.columns["price"].to_numpy()[0] = 5
