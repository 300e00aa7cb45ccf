"""Payloads as lines."""

import math
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import orjson
import pandas as pd
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.any_values import TEXT, json_leaves, json_values, marked

from ray_messaging.compat.msg import Msg
from ray_messaging.errors import InvalidPayload, PayloadTooLarge
from ray_messaging.model.columns import PayloadColumn, encode_payload

PAYLOAD = st.dictionaries(TEXT, json_values, max_size=3)


@given(st.lists(PAYLOAD, max_size=6))
def test_encoding_in_one_pass_is_encoding_one_by_one(payloads):
    lines = PayloadColumn.encode(payloads, 10**6)
    assert lines.list == [encode_payload(payload, 10**6) for payload in payloads]
    assert lines.whole(len(payloads))
    copy = PayloadColumn(lines.blob, lines.count)
    assert copy.list == lines.list
    assert copy.nbytes == len(copy.blob)
    assert PayloadColumn.of(lines.list).blob == lines.blob
    assert PayloadColumn.of(lines.list).nbytes == len(lines.blob)


BETWEEN = [
    {"a": "},{"},
    {"a": [{}, {}]},
    {"a": [{"b": {}}, {"c": 1}]},
    {"a": '"},{"'},
    {"},{": {}},
    {"a": {"b": {}}},
    {},
]


@given(st.lists(st.one_of(PAYLOAD, st.sampled_from(BETWEEN)), min_size=1, max_size=6))
def test_many_payloads_are_encoded_as_a_few_are(payloads):
    lines = [encode_payload(payload, 10**6) for payload in payloads]
    assert PayloadColumn.encode(payloads * 1_000, 10**7).blob == b"\n".join([*lines * 1_000, b""])


@given(st.lists(st.binary(max_size=9), max_size=6))
def test_raw_lines_may_hold_anything(payloads):
    lines = PayloadColumn.of(payloads, raw=True)
    copy = PayloadColumn.cut(lines.blob, [len(payload) for payload in payloads])
    assert copy.list == payloads
    assert copy.whole(len(payloads))


@given(st.lists(st.integers(0, 3), max_size=9), st.data())
def test_shared_lines(index, data):
    lines = PayloadColumn.of([b"a", b"b", b"c", b"d"], np.array(index, np.uint32))
    rows = data.draw(st.lists(st.integers(0, max(0, len(index) - 1)), max_size=len(index)))
    taken = lines.take(np.array(rows, np.intp))
    assert [taken.row(row) for row in range(len(rows))] == [lines.row(row) for row in rows]
    assert taken.count == len({index[row] for row in rows})


@given(st.lists(st.text("ab\n", max_size=5), min_size=1, max_size=12), st.data())
def test_lines_cut_out_of_a_blob_are_those_of_a_list_wherever_in_a_frame_it_begins(found, data):
    made = PayloadColumn.encode([{"a": text} for text in found], 1000)
    wanted = list(PayloadColumn.encode([{"a": text} for text in found], 1000).list)
    low = data.draw(st.integers(0, len(found) - 1))
    rows = np.arange(low, data.draw(st.integers(low + 1, len(found))))
    for lines in (made, PayloadColumn(b"head\n" + made.blob, len(found), None, 5)):
        assert lines.weights.tolist() == [len(line) + 1 for line in wanted]
        assert lines.take(rows).blob == b"".join(wanted[row] + b"\n" for row in rows)
        assert lines.take(rows[::-1]).list == [wanted[row] for row in rows[::-1]]
        lines.pack()
        assert lines.list == wanted


@pytest.mark.parametrize("rows", [3, 1000])  # few bytes and many are counted in different ways
@pytest.mark.parametrize("line", [b"", b'{"content": "%b"}' % (b"x" * 40)])
def test_a_blob_with_another_number_of_lines_is_not_whole(rows, line):
    blob = (line + b"\n") * rows
    assert PayloadColumn(blob, rows).whole(rows)
    for other in (blob + b"{}\n", blob[:-1], blob[: -len(line) - 1], b""):
        assert not PayloadColumn(other, rows).whole(rows)
    assert not PayloadColumn(blob, rows).whole(rows + 1)
    assert not PayloadColumn(blob, rows, np.array([0, rows], np.uint32)).whole(2)
    assert PayloadColumn(b"a\nb\n", 2, np.array([0, 1, 1], np.uint32)).whole(3)


@pytest.mark.parametrize("part", [orjson.Fragment(b'{"x":\n 1}'), msgspec.Raw(b'{"x":\n 1}')])
def test_a_raw_part_cannot_break_a_line(part):
    for payload in ({"a": part}, {"a": [part]}):
        with pytest.raises(InvalidPayload):
            encode_payload(payload, 10**6)
        with pytest.raises(InvalidPayload):
            PayloadColumn.encode([{"a": 1}, payload], 10**6)


def test_the_limit_holds_for_each_payload():
    assert PayloadColumn.encode([{"a": 1}] * 50, 7).count == 50
    with pytest.raises(PayloadTooLarge, match="row 1"):
        PayloadColumn.encode([{"a": 1}, {"a": 10}], 7)


class Offer(pydantic.BaseModel):
    price: float
    note: str | None = None
    hidden: float = pydantic.Field(math.nan, exclude=True)


class LooseOffer(pydantic.BaseModel, ser_json_inf_nan="constants"):
    price: float


class Bid(msgspec.Struct):
    price: float


@dataclass
class Ask:
    price: float


class Price(float):
    pass


@pytest.mark.parametrize("kind", [Offer, LooseOffer, Bid, Ask])
def test_an_object_with_a_number_that_json_does_not_have_is_refused(kind):
    for payload, place in (
        (kind(price=math.nan), r'payload\["price"\]'),
        ({"all": [kind(price=math.nan)]}, r'payload(\["all"\]\[0\])?\["price"\]'),
    ):
        match = f"cannot become JSON: {place} is nan, which JSON does not have"
        with pytest.raises(InvalidPayload, match=f"^this payload {match}"):
            encode_payload(payload, 1_000)
        with pytest.raises(InvalidPayload, match=f"^row 1: this payload {match}"):
            PayloadColumn.encode([{}, payload], 1_000)
    assert PayloadColumn.encode([kind(price=1.5), {"none": None}], 1_000).count == 2


class Named(dict):
    pass


class UserId(str):
    __slots__ = ()

    def __str__(self):
        return "shown otherwise"


class Count(int):
    pass


class Mood(Enum):
    GOOD = "good"
    LOST = float("nan")
    MIXED = (1, float("inf"))
    BOTH = {1: 2, "1": 3}  # noqa: RUF012 - a member


@dataclass
class Born:
    at: datetime


class Whole(pydantic.BaseModel):
    n: int


BERLIN = ZoneInfo("Europe/Berlin")
LONG = 10**5000
CHANGED = [
    ({1: "a", "1": "b"}, 'payload has two keys that become "1", and one value would be lost'),
    ({"t": [{2: 0, "2": 1}]}, r'payload\["t"\]\[0\] has two keys that become "2"'),
    *(
        ({"v": {key: 1}}, rf'payload\["v"\] has the key .*, of type {type(key).__name__}: use strs')
        for key in (True, 0.5, b"a", None, date(2026, 1, 1), (1, 2), Decimal(1), UUID(int=1), Mood.GOOD)
    ),
    ({"born": datetime(1890, 1, 1, tzinfo=BERLIN)}, r'payload\["born"\] is 1890.*UTC offset has seconds.*astimezone'),
    ({"at": [time(1, tzinfo=timezone(timedelta(seconds=28)))]}, r'payload\["at"\]\[0\] is 01:00.*seconds'),
    ({"a": ["\ud83d"]}, r'payload\["a"\]\[0\] is .*half of a character'),
    ({"\ud83d": 1}, r"payload has the key .*half of a character"),
    ({"a": {"b": (1, object())}}, r'payload\["a"\]\["b"\]\[1\] is <object'),
    ({"a": np.array(["2026-01-01", "NaT"], "M8[ns]")}, r'payload\["a"\] has NaT'),
    ({"a": Mood.LOST}, r'payload\["a"\] is nan, which JSON does not have'),
    ({"a": [Mood.MIXED]}, r'payload\["a"\]\[0\]\[1\] is inf'),
    ({"a": Mood.BOTH}, r'payload\["a"\] has two keys'),
    ({"a": np.ma.array([1, 2], mask=[0, 1])}, r'payload\["a"\] is an array with masked values or with fields'),
    ({"a": np.ma.array(["2026-01-01"], "M8[D]", mask=[1])}, r'payload\["a"\] is an array with masked values'),
    ({"a": np.zeros(1, [("x", "i4")])}, r'payload\["a"\] is an array with masked values or with fields'),
    ({"a": np.array([1], "m8[ns]")}, r'payload\["a"\] has the type timedelta64'),
    *(({"a": value}, r'payload\["a"\] is ') for value in (np.complex128(1j), np.longdouble(1), 1j)),
    *(
        ({"at": value}, r'payload\["at"\](\[1\])? is (nan|inf), which JSON does not have')
        for value in (np.float64("nan"), np.float32("inf"), np.array([1, np.nan]), Price("nan"))
    ),
    *(
        ({"at": [value]}, r'payload\["at"\]\[0\] is NaT, which JSON does not have')
        for value in (pd.NaT, pd.Timedelta("NaT"))
    ),
    ({"born": Born(pd.NaT)}, r'payload\["born"\]\["at"\] is NaT'),
    ({"born": Born(np.datetime64("NaT", "ns"))}, r'payload\["born"\]\["at"\] has NaT'),
    *(
        (
            {"n": value},
            r'payload\["n"\](\[\d\]|\["n"\])? is .*, and JSON readers accept at most 4,299 digits: send a str',
        )
        for value in (LONG, -(10**4300) + 1, [1, LONG], (LONG,), {LONG}, np.array([LONG]), Whole(n=LONG))
    ),
    ({"n": {LONG: 1}}, r'payload\["n"\] has the key <int of about 5,001 digits>, and JSON readers accept at most'),
    ({LONG: {1: object()}}, r"payload has the key <int of about 5,001 digits>"),
    ({"at": (LONG, object())}, r'payload\["at"\]\[0\] is <int of about 5,001 digits>'),
]


@pytest.mark.parametrize(("payload", "text"), CHANGED, ids=map(str, range(len(CHANGED))))
def test_what_json_would_change_is_refused_with_its_place(payload, text):
    with pytest.raises(InvalidPayload, match=f"^this payload cannot become JSON: {text}"):
        encode_payload(payload, 10_000)
    with pytest.raises(InvalidPayload, match=f"^row 1: this payload cannot become JSON: {text}"):
        PayloadColumn.encode([{}, payload], 10_000)


@pytest.mark.parametrize("number", [2**70, 10**4299 - 1, 1 - 10**4299])
def test_an_int_that_can_be_read_is_sent(number):
    for payload in ({"n": [number]}, Whole(n=number)):
        [line] = PayloadColumn.encode([payload], 10_000).list
        assert line == encode_payload(payload, 10_000)
        assert msgspec.json.decode(line)["n"] in (number, [number])


INNER = Msg("A", "hi", "user")
OUTER = Msg("B", {"said": [INNER], "n": np.int64(3)}, "assistant")
DATES = np.array(["2026-01-01", "2027-01-01", "2028-01-01"], "M8[ns]")


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ({"n": np.int64(3), "x": np.float32(0.5), "yes": np.bool_(True)}, b'{"n":3,"x":0.5,"yes":true}'),
        ({"ids": np.arange(3), "at": Path("a") / "b"}, b'{"ids":[0,1,2],"at":"a/b"}'),
        ({"keys": {3: 4, np.int64(5): 6, "x": 7}}, b'{"keys":{"3":4,"5":6,"x":7}}'),
        (Named(id=UserId("u1"), far=Price(1.5), n=Count(3)), b'{"id":"u1","far":1.5,"n":3}'),
        ({"at": pd.Timestamp("2026-11-20 10:00")}, b'{"at":"2026-11-20T10:00:00"}'),
        ({"d": DATES[::2]}, b'{"d":["2026-01-01T00:00:00.000000000","2028-01-01T00:00:00.000000000"]}'),
        ({"d": DATES[:1], "t": (1, 2)}, b'{"d":["2026-01-01T00:00:00.000000000"],"t":[1,2]}'),
        ({"s": {"b", "c", "a"}, "n": 2**70}, b'{"s":["a","b","c"],"n":%d}' % 2**70),
        ({"s": {100, 9, 10, 2.5}, "t": {"a!", "a"}}, b'{"s":[2.5,9,10,100],"t":["a","a!"]}'),
        (Born(DATES[0]), b'{"at":"2026-01-01T00:00:00.000000000"}'),
        (Born(DATES[1:]), b'{"at":["2027-01-01T00:00:00.000000000","2028-01-01T00:00:00.000000000"]}'),
        ({"messages": [INNER]}, msgspec.json.encode({"messages": [INNER.to_dict()]})),
        (OUTER, msgspec.json.encode(OUTER.to_dict() | {"content": {"said": [INNER.to_dict()], "n": 3}})),
    ],
    ids=lambda part: part.decode()[:30] if isinstance(part, bytes) else "",
)
def test_types_with_a_form_of_their_own(said, line):
    assert encode_payload(said, 1_000) == line
    assert PayloadColumn.encode([said, said], 1_000).list == [line, line]


json_like = st.recursive(
    json_leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=50)
@given(st.dictionaries(st.text(), json_like, max_size=3))
def test_a_json_like_payload_is_read_equal_or_is_refused_with_its_place(payload):
    try:
        line = encode_payload(payload, 10**6)
    except InvalidPayload as error:
        assert str(error).startswith("this payload cannot become JSON: payload")  # noqa: PT017 - there may be none
        with pytest.raises(InvalidPayload, match=r"^row 1: this payload cannot"):
            PayloadColumn.encode([{}, payload], 10**6)
    else:
        assert marked(msgspec.json.decode(line)) == marked(with_texts_as_keys(payload))
        assert PayloadColumn.encode([payload, {}], 10**6).list == [line, b"{}"]


def with_texts_as_keys(value):
    if isinstance(value, dict):
        return {str(key): with_texts_as_keys(part) for key, part in value.items()}
    return [*map(with_texts_as_keys, value)] if isinstance(value, list) else value
