"""Answers fit a type if they fit its JSON schema and the type itself."""

import enum
import json
from dataclasses import make_dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Literal, TypedDict
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, create_model
from support.any_values import json_values

from ray_messaging.surveys.answer_model import AnswerModel, InvalidAnswer


class Side(enum.Enum):
    LEFT = "left"


class Tree(BaseModel):
    """A type that contains itself, which msgspec cannot check by its schema."""

    value: int
    seen: date | None = None
    left: "Tree | None" = None


FIELDS = {"n": int, "x": float, "b": bool, "t": str, "l": list[int], "s": Side, "c": Literal[1, "a"], "o": int | None}
KINDS = [
    create_model("Pydantic", **dict.fromkeys(FIELDS, (None,)) | {name: (kind, ...) for name, kind in FIELDS.items()}),
    msgspec.defstruct("Struct", [*FIELDS.items()]),
    make_dataclass("Data", [*FIELDS.items()]),
    TypedDict("Typed", FIELDS),
]
MODELS = [AnswerModel.of(kind) for kind in KINDS]
texts = st.sampled_from(["left", "a", "1", "1.0", "true", "null"])
likely = texts | st.sampled_from([0, 1, 1.0, 2.5, True, False, None, [1], [1.0], ["1"], [True], []]) | json_values


def counts(model, line):
    return [type(found) is not InvalidAnswer for found in model.check([line])] == [True]


@given(st.fixed_dictionaries(dict.fromkeys(FIELDS, likely)), st.sets(st.sampled_from([*FIELDS])))
def test_all_kinds_of_types_and_their_schemas_take_the_same_answers(given, good):
    fits = {"n": 1, "x": 0.5, "b": True, "t": "text", "l": [3], "s": "left", "c": "a", "o": None}
    line = json.dumps(given | {name: fits[name] for name in good}).encode()
    everywhere = {counts(each, line) for model in MODELS for each in (model, AnswerModel.of_schema(model.schema))}
    assert len(everywhere) == 1
    assert everywhere == {True} or {*FIELDS} - good


@pytest.mark.parametrize("base", ["pydantic", "msgspec"])
@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (date, "2026-01-02", ["2026-01-02T00:00:00", "x", 5]),
        (timedelta, "PT1.5H", ["1 day, 0:00:00", "x", 5]),
        (UUID, str(UUID(int=5)), ["x", 5]),
        (dict[str, int], {"a": 1}, [{"a": "1"}, {"a": True}, []]),
        (tuple[int, str], [1, "a"], [[1], ["1", "a"], [True, "a"]]),
        (int | list[int], [1], ["1", [1.0], None]),
    ],
)
def test_texts_have_the_format_of_their_type(kind, good, bad, base):
    made = create_model("Kind", v=(kind, ...)) if base == "pydantic" else msgspec.defstruct("Kind", [("v", kind)])
    model = AnswerModel.of(made)
    for each in (model, AnswerModel.of_schema(model.schema)):
        assert counts(each, json.dumps({"v": good}).encode())
        assert not any(counts(each, json.dumps({"v": value}).encode()) for value in bad)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (Tree, {"value": 1, "left": {"value": 2, "seen": "2026-01-02"}}, {"value": 1, "left": {"value": "2"}}),
        (Tree, {"value": 1, "seen": None}, {"value": 1.0}),
        (Tree, {"value": 1}, {"value": 1, "left": {"value": 2, "seen": "2026-01-02T00:00:00"}}),
        (create_model("Bound", v=(Annotated[float, Field(gt=0)], ...)), {"v": 1}, {"v": "1"}),
        (create_model("Date", v=(datetime, ...)), {"v": "2026-01-02T03:04:05"}, {"v": 5}),
        (msgspec.defstruct("Price", [("v", Decimal)]), {"v": "1.5"}, {"v": "x"}),
    ],
)
def test_a_schema_that_msgspec_cannot_check_has_the_same_answers_too(kind, good, bad):
    model = AnswerModel.of(kind)
    for each in (model, AnswerModel.of_schema(model.schema)):
        assert counts(each, json.dumps(good).encode())
        [found] = each.check([json.dumps(bad).encode()])
        assert type(found) is InvalidAnswer
        assert found.reason.startswith(("left", "value: ", "v: "))
        many = [json.dumps(value).encode() for value in (good, bad, good)]
        assert [type(value) is InvalidAnswer for value in each.check(many)] == [False, True, False]
