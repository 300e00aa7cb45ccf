"""Values that are kept come back equal in value and type, or are refused with their place."""

import os
import subprocess
import sys
from collections import Counter, namedtuple
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from support.any_values import anything, marked

from ray_messaging.errors import InvalidPayload
from ray_messaging.model.exact import (
    BLOCK,
    decode_exactly,
    encode_exactly,
    encode_pairs_exactly,
    joined_lists,
    kept_exactly,
)

BERLIN = ZoneInfo("Europe/Berlin")
HALF = "\N{SLIGHTLY SMILING FACE}".encode("utf-16-le", "surrogatepass")[:2].decode("utf-16-le", "surrogatepass")
Place = namedtuple("Place", "x y")


@dataclass
class Mood:
    value: float


class Level(IntEnum):
    LOW = 1


class Side(StrEnum):
    LEFT = "left"


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@settings(max_examples=50)
@given(anything)
def test_a_value_comes_back_equal_or_is_refused_with_its_place(value):
    try:
        encoded = encode_exactly({"seen": [value]}, "me.state")
    except InvalidPayload as error:
        assert str(error).startswith('me.state["seen"][0]')  # noqa: PT017 - there may be none
    else:
        assert marked(decode_exactly(encoded)) == marked({"seen": [value]})


@pytest.mark.parametrize(
    "value",
    [
        {"ann", "bob"},
        (1, (2.5, "x")),
        {(1, 2): "a", frozenset([3]): "b"},
        2**70,
        -(2**63) - 1,
        2**64 - 1,
        10**4000,
        datetime(2026, 3, 4, 5, 6),  # noqa: DTZ001 - a naive one
        datetime(1890, 1, 1, tzinfo=BERLIN),
        datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1),
        timedelta(days=-1, microseconds=1),
        np.float32(0.1),
        np.arange(6, dtype=">i2").reshape(2, 3)[:, ::2],
        np.array(["2026-01-01", "NaT"], "M8[s]"),
        np.str_("a\0"),
        np.str_(f"cut {HALF}"),
        np.bytes_(b"a\0\0"),
        {np.str_("k\0"): 1, np.str_("k"): 2},
        {np.bytes_(b"k\0"), np.bytes_(b"k")},
        np.longlong(3),
        np.arange(3, dtype=np.ulonglong).astype(">Q"),
    ],
)
def test_values_that_msgpack_alone_would_change(value):
    assert marked(decode_exactly(encode_exactly([value], "value"))) == marked([value])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"t": [0, object()]}, r'^value\["t"\]\[1\] is <object .*of type .object..*in a dict'),
        ([Level.LOW], r"^value\[0\] is <Level.LOW: 1>.*keep its .value"),
        ({1: Place(1, 2)}, r"^value\[1\] is .*_asdict"),
        ({"n": Counter("ab")}, r'^value\["n"\] is Counter.*keep dict\(\.\.\.\)'),
        ({"m": Mood(1.0)}, r'^value\["m"\] is Mood.*asdict'),
        ({"a": {"b": (1, np.array([None]))}}, r'^value\["a"\]\["b"\]\[1\] is .*ndarray.*tolist'),
        ({"a": [f"cut {HALF}"]}, r'^value\["a"\]\[0\] is .*ud83d.*half of a character.*errors=.replace'),
        ({"a": {HALF: 1}}, r'^value\["a"\] has the key .*half of a character'),
        ({"a": bytearray(b"x")}, r'^value\["a"\] is .*keep bytes'),
        ({(1, 2): 0, (3, 4): object()}, r"^value\[\(3, 4\)\] is <object"),
        (
            {"z": ZoneInfo.no_cache("Europe/Berlin")},
            r'^value\["z"\] is zoneinfo.*of type .ZoneInfo..*keep zoneinfo.ZoneInfo',
        ),
        ([datetime(2026, 1, 1, tzinfo=ZoneInfo.no_cache("UTC"))], r"^value\[0\] is zoneinfo.*keep zoneinfo.ZoneInfo"),
    ],
)
def test_what_would_not_come_back_equal_is_refused_with_its_place_and_a_remedy(value, text):
    with pytest.raises(InvalidPayload, match=text):
        encode_exactly(value, "value")


class Person:
    """Somebody at a place, which is a tuple."""

    def __init__(self):
        self.place, self.friends = (1, 2), {3}


@pytest.mark.parametrize(
    "states", [[{"left": 1}, {Side.LEFT: 2}], [{1: 1}, {Level.LOW: 2}], [{"x": [{1: {Level.LOW: 2}}]}]]
)
def test_a_key_that_equals_another_states_plain_one_is_refused_too(states):
    with pytest.raises(
        InvalidPayload, match=r"^a key of me\.state.*of type '(Level|Side)' cannot be stored: keep its \.value"
    ):
        kept_exactly(states, {dict}, "me.state")


def test_the_attributes_of_a_living_object_are_examined():
    """Python 3.13 does not say to what they refer."""
    who = Person()
    given = [vars(who), {"who": vars(who)}]
    for value in given:
        assert decode_exactly(encode_exactly(value, "value")) == value
    encoded, kept = kept_exactly(given, {dict}, "me.state")
    assert decode_exactly(encoded) == kept == given
    assert kept[0] is not vars(who)


def test_a_value_that_holds_itself():
    value = []
    value.append({"again": value})
    with pytest.raises(InvalidPayload, match=r"^value cannot be stored, because .* nested too deeply"):
        encode_exactly(value, "value")


def test_a_set_has_the_same_bytes_in_processes_that_hash_otherwise():
    code = (
        "from ray_messaging.model.exact import encode_exactly;"
        "print(encode_exactly({'seen': {*map(str, range(99))}, 'at': {frozenset('abcdef'): 1}}, '').hex())"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1


@pytest.mark.parametrize("data", [b"\xc7\x01\x63\xc0", b"\xd4\x0e\xc0"])
def test_a_damaged_extension_is_an_error(data):
    with pytest.raises((InvalidPayload, TypeError)):
        decode_exactly(data)


@pytest.mark.parametrize(
    "pairs",
    [
        {},
        {1: {"knows": True, "n": 1.5, "parts": [1, {"k": b"x"}], "none": None}, "book": {}},
        {1: {"place": (1, 2)}, 2: {}},
        {2**70: {"a": 1}, True: {}, 0.5: {}},
        {(1, 2): {"a": 1}},
        {"west": {"array": np.arange(3)}},
    ],
)
def test_pairs_have_the_bytes_of_a_list_of_tuples(pairs):
    encoded = encode_pairs_exactly(pairs, "value")
    assert encoded == encode_exactly([*pairs.items()], "value")


def test_a_pair_that_cannot_be_kept_is_named():
    with pytest.raises(InvalidPayload, match=r'value\[1\]\[1\]\["door"\] is .*object'):
        encode_pairs_exactly({1: {}, 2: {"door": object()}}, "value")


@pytest.mark.parametrize("count", [0, 1, 15, 16, BLOCK, BLOCK + 1, BLOCK + 16, 3 * BLOCK, 2**16 - 1, 2**16, 2**16 + 1])
def test_lists_that_were_encoded_in_blocks_are_one_list(count):
    """The bytes are the same as those of the whole list, for each size of the heads of its blocks."""
    values = [*range(count)]
    parts = [encode_exactly(values[low : low + BLOCK], "values") for low in range(0, count or 1, BLOCK)]
    assert joined_lists(parts, count) == encode_exactly(values, "values")
