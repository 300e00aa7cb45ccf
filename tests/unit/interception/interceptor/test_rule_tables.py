"""Tables of rules: each is kept with its rule alone, and a value that cannot be stored is a failure of its rule."""

import enum
from dataclasses import dataclass, field

import numpy as np
import pytest
from support.interceptors import Store, answered, batch

from ray_messaging.errors import RuleError
from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.interception.interceptor.rule_tables import Table
from ray_messaging.interception.rules import Rule


class Colour(enum.StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("key", "value", "kept"),
    [
        (np.int64(7), np.int32(1), (7, 1)),
        ((np.int64(7), None, np.str_("a")), np.float32(0.5), ((7, None, "a"), 0.5)),
        (np.bool_(True), np.bool_(True), (1, True)),
        (Colour.RED, Colour.RED, ("red", "red")),
        ("x", (1, {"y": [2]}), ("x", [1, {"y": [2]}])),
        (2**70, 2**70, (2**70, 2**70)),
        (None, None, (None, None)),
    ],
)
def test_a_successor_reads_the_stored_values(key, value, kept):
    table = Table()
    table[key] = value
    assert list(table.items()) == [kept]
    assert key in table
    other = Table()
    other.load(table.dump())
    assert list(other.items()) == [kept]
    assert {type(part) for part in other} == {type(part) for part in table}
    del table[key]
    assert table.changes().gone == list(other.dump())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (1.5, 1),
        (b"x", 1),
        ((1, frozenset()), 1),
        ("\ud800", 1),
        (1, "\ud800"),
        (1, float("nan")),
        (1, np.float64("inf")),
        (1, {1, 2j}),
        (1, object()),
        (1, {(1, 2): 3}),
    ],
)
def test_values_that_cannot_be_stored_are_refused(key, value):
    table = Table()
    with pytest.raises(RuleError, match="cannot keep"):
        table[key] = value
    assert len(table) == 0
    assert table.changes() is None


def test_a_value_changed_in_place_does_not_prevent_other_writes(caplog):
    table = Table()
    table["odd"] = []
    table["odd"].append(object())
    table["even"] = 1
    assert table.changes().put == {b'"even"': b"1"}
    assert "'odd' that cannot be stored" in caplog.text


@dataclass
class Counting(Rule):
    """A rule that keeps each batch's size; two of these are always equal."""

    weights: object = None
    state: Table = field(default_factory=Table, compare=False)

    def check_batch(self, batch, exp_id):
        self.state[batch.first] = len(batch)
        return {}

    def new_round(self):
        self.state = Table()


def replace_by_rules_that_cannot_be_compared(each):
    for place, size in (("counting", 3), (0, 3), (0, 4)):
        each.rules.replace(place, Counting(np.arange(size)))


@pytest.mark.parametrize(
    "change",
    [
        lambda each: each.rules.replace("counting", Counting()),
        replace_by_rules_that_cannot_be_compared,
        Interceptor.new_round,
    ],
    ids=["an equal rule", "rules that cannot be compared", "a round"],
)
async def test_a_new_table_has_nothing_of_the_one_before(change):
    store = Store()
    interceptor = Interceptor("x", [Counting()], epoch=1, store=store)
    await answered(interceptor, batch([{}] * 2))
    await interceptor.change(lambda: change(interceptor))
    await answered(interceptor, batch([{}], first=2))
    await interceptor.stop()
    fresh = Counting()
    await store.successor([fresh]).stop()
    assert dict(fresh.state) == {2: 1}
