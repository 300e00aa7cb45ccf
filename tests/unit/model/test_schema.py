"""Schemas: what a type allows passes as JSON and as typed columns, anything else is refused with its row and field."""

import dataclasses
from typing import Annotated, Literal, TypedDict

import msgspec
import numpy as np
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as some

from ray_messaging.errors import ConfigError
from ray_messaging.model.columns import PayloadColumn
from ray_messaging.model.json_types import described
from ray_messaging.model.schema import Schema
from ray_messaging.model.typed.input import columns


class Place(pydantic.BaseModel):
    x: int
    y: int = 0


class Offer(pydantic.BaseModel):
    price: Annotated[float, pydantic.Field(ge=0, lt=100)]
    n: Annotated[int, pydantic.Field(multiple_of=2)] = 2
    side: Literal["buy", "sell"] = "buy"
    note: Annotated[str, pydantic.Field(min_length=2, pattern="^[a-z]+$")] | None = None
    place: Place | None = None
    tags: Annotated[list[int], pydantic.Field(max_length=2)] = []
    extra: dict[str, float] = {}


class Bid(msgspec.Struct, forbid_unknown_fields=True):
    price: float
    at: tuple[float, float] = (0.0, 0.0)


@dataclasses.dataclass
class Deal:
    price: float
    parts: list[float] = dataclasses.field(default_factory=list)


class Typed(TypedDict):
    price: int


def schema_of(kind):
    return Schema(described(kind))


def misfits(kind, *payloads):
    lines = PayloadColumn.encode([*payloads], 10**6)
    return [(misfit.row, misfit.field) for misfit in schema_of(kind).misfits(lines)]


@pytest.mark.parametrize(
    ("kind", "payload", "field"),
    [
        (Offer, {}, "price"),
        (Offer, {"price": "1"}, "price"),
        (Offer, {"price": 100}, "price"),
        (Offer, {"price": 1, "n": 3}, "n"),
        (Offer, {"price": 1, "n": 1.5}, "n"),
        (Offer, {"price": 1, "side": "lend"}, "side"),
        (Offer, {"price": 1, "note": "x"}, "note"),
        (Offer, {"price": 1, "note": "XX"}, "note"),
        (Offer, {"price": 1, "place": {"y": 1}}, "place.x"),
        (Offer, {"price": 1, "tags": [1, "2"]}, "tags.1"),
        (Offer, {"price": 1, "tags": [1, 2, 3]}, "tags"),
        (Bid, {"price": 1, "more": 1}, "more"),
        (Bid, {"price": 1, "at": [1]}, "at"),
        (Deal, {"price": None}, "price"),
        (Typed, {"price": 1.5}, "price"),
        ({"type": "object", "properties": {"a b": {"type": "null"}}, "required": ["a b"]}, {"a b": 1}, "a b"),
    ],
)
def test_what_does_not_fit_is_named(kind, payload, field):
    good = {"a b": None} if isinstance(kind, dict) else {"price": 1}
    assert misfits(kind, good, payload, good) == [(1, field)]


def test_what_fits_passes():
    full = {"price": 1.5, "n": 4, "side": "sell", "note": "ab", "place": {"x": 1}, "tags": [1], "extra": {"a": 1}}
    assert misfits(Offer, {"price": 0}, full, {"price": 1, "unknown": [1]}, {"price": 1, "note": None}) == []
    assert misfits(Bid, {"price": 1, "at": [1, 2.5]}) == []


def test_each_row_that_shares_a_line_is_named():
    lines = PayloadColumn.of([b'{"price":1}', b'{"price":"x"}'], np.array([1, 0, 1], np.uint32))
    assert [misfit.row for misfit in schema_of(Deal).misfits(lines)] == [0, 2]


@given(
    some.builds(
        Offer,
        price=some.floats(0, 99),
        n=some.integers(-10, 10).map(lambda n: 2 * n),
        side=some.sampled_from(["buy", "sell"]),
        note=some.none() | some.from_regex("^[a-z]{2,5}$", fullmatch=True),
        place=some.none() | some.builds(Place, x=some.integers(-9, 9), y=some.integers(-9, 9)),
        tags=some.lists(some.integers(-9, 9), max_size=2),
        extra=some.dictionaries(some.text(some.characters(exclude_categories=["Cs"]), max_size=3), some.floats(-9, 9)),
    )
)
def test_whatever_a_model_can_be_fits_its_schema(offer):
    assert not [*schema_of(Offer).misfits(PayloadColumn.encode([offer], 10**6))]


@pytest.mark.parametrize(
    ("kind", "table", "found"),
    [
        (Offer, {"price": [1.5, 2]}, []),
        (Offer, {"price": np.array([1, 2], np.uint8), "n": [2, 4], "note": ["ab", "cd"]}, []),
        (Offer, {"price": [1.5, 100.0]}, [(1, "price")]),
        (Offer, {"price": ["1", "2"]}, [(None, "price")]),
        (Offer, {"price": [True, False]}, [(None, "price")]),
        (Offer, {"n": [2, 4]}, [(None, "price")]),
        (Offer, {"price": [1.0], "n": [1.0]}, [(None, "n")]),
        (Offer, {"price": [1.0], "tags": np.ones((1, 2), int)}, []),
        (Offer, {"price": [1.0], "tags": np.ones((1, 3), int)}, [(None, "tags")]),
        (Offer, {"price": [1.0], "place": ["here"]}, [(None, "place")]),
        (Offer, {"price": [1.0, 2.0], "side": ["lend", "buy"]}, [(0, "side")]),
        (Offer, {"price": [1.0, 2.0], "note": ["ab", "AB"]}, [(1, "note")]),
        (Bid, {"price": [1.0], "at": np.ones((1, 2))}, []),
        (Bid, {"price": [1.0], "at": np.ones((1, 3))}, [(None, "at")]),
        (Bid, {"price": [1.0], "other": [1]}, [(None, "other")]),
        (Deal, {"price": [np.nan], "parts": np.ones((1, 3), np.float32)}, []),
        (Typed, {"price": np.array([1], np.int8)}, []),
        (Typed, {"price": [1.0]}, [(None, "price")]),
    ],
)
def test_columns_are_checked_by_type_and_by_value_where_the_schema_says_more(kind, table, found):
    assert [(misfit.row, misfit.field) for misfit in schema_of(kind).misfits(columns(table))] == found


class Chain(msgspec.Struct):
    next: "Chain | None" = None


class Row(msgspec.Struct, array_like=True):
    price: float


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (int, "does not describe JSON objects"),
        (list[int], "does not describe JSON objects"),
        (Row, "does not describe JSON objects"),
        (object(), "has no JSON Schema"),
        (Chain, "contains itself"),
        ({"type": "object", "not": {}}, "^the schema has the keyword 'not', which senders cannot check"),
        ({"type": "object", "properties": {"a": {"$ref": "http://elsewhere"}}}, "does not define"),
        ({"type": "object", "properties": {"a": {"enum": [1.5]}}}, "senders can check only strs, ints and None"),
        (
            {"type": "object", "properties": {"a": {"type": "date"}}},
            "the schema of field 'a' has the type 'date': write one of JSON's types",
        ),
        (
            {"type": "object", "properties": {"a": False}},
            "the schema of field 'a' is False, which senders cannot check",
        ),
    ],
)
def test_a_type_that_senders_cannot_check_is_refused(kind, text):
    with pytest.raises(ConfigError, match=text):
        described(kind)
