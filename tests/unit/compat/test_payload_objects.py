"""Objects as payloads: each becomes one JSON object, and is read back as it was."""

import dataclasses
import json
from typing import Any, NotRequired, TypedDict

import msgspec
import numpy as np
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as some

from ray_messaging import Msg
from ray_messaging.compat.payload_objects import Misfit, is_object, reader_of
from ray_messaging.errors import InvalidPayload, PayloadTooLarge
from ray_messaging.model.columns import PayloadColumn, encode_payload

LIMIT = 10_000


class Model(pydantic.BaseModel):
    price: float
    text: str = ""
    tags: list[int] = []


class Aliased(pydantic.BaseModel):
    price: float = pydantic.Field(alias="unitPrice")


class Struct(msgspec.Struct):
    price: float
    text: str = ""
    tags: list[int] = []


class Row(msgspec.Struct, array_like=True):
    price: float


@dataclasses.dataclass
class Plain:
    price: float
    text: str = ""
    tags: list[int] = dataclasses.field(default_factory=list)


@pydantic.dataclasses.dataclass
class Checked:
    price: float
    text: str = ""
    tags: list[int] = dataclasses.field(default_factory=list)


class Typed(TypedDict):
    price: float
    tags: NotRequired[list[int]]


KINDS = [Model, Struct, Plain, Checked]
VALUES = some.fixed_dictionaries(
    {
        "price": some.floats(allow_nan=False, allow_infinity=False),
        "text": some.text(some.characters(exclude_categories=["Cs"])),
        "tags": some.lists(some.integers(-(2**63), 2**63 - 1)),
    }
)


@given(some.sampled_from(KINDS), some.lists(VALUES, min_size=1, max_size=5))
def test_objects_come_back_as_they_were(kind, values):
    made = [kind(**value) for value in values]
    lines = PayloadColumn.encode(made, LIMIT * 10).list
    assert lines == [encode_payload(one, LIMIT * 10) for one in made]
    assert [json.loads(line) for line in lines] == values
    assert [reader_of(kind)(line) for line in lines] == made


def test_mixed_lists_and_nested_models_are_encoded():
    mixed = [{"price": 1.0}, Model(price=2), Struct(3.0), {"offers": [Model(price=4), Plain(5.0)]}]
    lines = PayloadColumn.encode(mixed, LIMIT).list
    assert [json.loads(line)["price"] for line in lines[:3]] == [1.0, 2.0, 3.0]
    assert [offer["price"] for offer in json.loads(lines[3])["offers"]] == [4.0, 5.0]


def test_aliases_are_written_as_they_are_read():
    assert json.loads(encode_payload(Aliased(unitPrice=2), LIMIT)) == {"unitPrice": 2.0}
    assert reader_of(Aliased)(b'{"unitPrice": 2}').price == 2.0


def test_fields_of_numpy_are_written_as_numbers():
    assert json.loads(encode_payload(Plain(np.float64(1.5)), LIMIT))["price"] == 1.5


@pytest.mark.parametrize("payload", [Row(1.0), pydantic.RootModel[list[int]]([1, 2])])
def test_an_object_that_is_no_json_object_is_refused(payload):
    assert is_object(payload)
    with pytest.raises(InvalidPayload, match=r"must be a JSON object: put it into a dict"):
        encode_payload(payload, LIMIT)
    with pytest.raises(InvalidPayload, match=r"row 0: .*must be a JSON object"):
        PayloadColumn.encode([payload, payload], LIMIT)


def test_an_object_that_cannot_be_json_is_refused():
    with pytest.raises(InvalidPayload, match="cannot become JSON"):
        encode_payload(Plain(object()), LIMIT)
    with pytest.raises(InvalidPayload, match=r"row 1: .*cannot become JSON"):
        PayloadColumn.encode([Plain(1.0), Plain(object())], LIMIT)
    with pytest.raises(PayloadTooLarge):
        encode_payload(Model(price=1, text="x" * LIMIT), LIMIT)


@pytest.mark.parametrize("other", [3, "text", [1], None, object(), Model, Plain])
def test_other_values_are_no_objects(other):
    assert not is_object(other)
    with pytest.raises(InvalidPayload, match="a pydantic model"):
        encode_payload(other, LIMIT)


@pytest.mark.parametrize("kind", [*KINDS, Typed])
@pytest.mark.parametrize(
    ("line", "field"),
    [
        (b'{"price":"dear"}', "price"),
        (b'{"text":"x"}', "price"),
        (b"[1]", ""),
        (b'{"price":1,"tags":[1,"two"]}', "tags.1"),
    ],
)
def test_what_does_not_fit_names_its_field(kind, line, field):
    with pytest.raises(Misfit) as caught:
        reader_of(kind)(line)
    assert caught.value.field == field
    assert caught.value.reason


def test_types_of_every_kind_are_read():
    assert reader_of(Typed)(b'{"price":1}') == {"price": 1.0}
    assert reader_of(dict[str, float])(b'{"price":1}') == {"price": 1.0}
    assert reader_of(Model | Aliased)(b'{"unitPrice":1}') == Aliased(unitPrice=1)
    assert reader_of(Any)(b"[1]") == [1]
    msg = Msg("A", "B", "user")
    assert reader_of(Msg)(encode_payload(msg, LIMIT)) == msg
