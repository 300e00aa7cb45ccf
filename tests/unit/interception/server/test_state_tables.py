"""Tables of rules: each is kept with its rule alone, and a value that cannot be stored is a failure of its rule."""

import enum
from dataclasses import dataclass, field

import numpy as np
import pytest
from support.interceptors import Store, answered, batch

from ray_messaging.errors import RuleError
from ray_messaging.interception.rules import ALLOW, BlackList, Rule
from ray_messaging.interception.server.interceptor import Interceptor
from ray_messaging.interception.server.table import Table


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
    assert "'odd' cannot be kept" in caplog.text


class Odd(Rule):
    name = "odd"

    def __init__(self):
        self.state = Table()

    def check(self, message):
        if message.from_id == 99:
            self.state[message.from_id] = object()
        return ALLOW


async def test_a_rule_with_an_unstorable_value_fails_alone():
    kept = Store()
    interceptor = Interceptor("x", [Odd(), BlackList([(1, 2)])], epoch=1, store=kept)
    rule, reason = (await answered(interceptor, batch([{}], pairs=[(99, 2)], sender="bad"))).blocked[0]
    assert rule == "odd"
    assert "the rule failed: RuleError: a rule cannot keep <object" in reason
    assert (await answered(interceptor, batch([{}], sender="good"))).blocked[0][0] == "black_list"
    await interceptor.change(lambda: interceptor.black_list.add([(3, 4)]))
    assert kept.tables["black_list"] == {b"[1,2]": b"1", b"[3,4]": b"1"}


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


async def kept_after(store, change):
    """Count two, make a change, count one; return the state that a successor finds."""
    interceptor = Interceptor("x", [Counting()], epoch=1, store=store)
    await answered(interceptor, batch([{}] * 2))
    await interceptor.change(lambda: change(interceptor))
    await answered(interceptor, batch([{}], first=2))
    await interceptor.stop()
    fresh = Counting()
    await store.successor([fresh]).stop()
    return dict(fresh.state)


async def test_a_rule_replaced_by_an_equal_one_leaves_it_nothing_of_its_state():
    assert await kept_after(Store(), lambda each: each.rules.replace("counting", Counting())) == {2: 1}


async def test_rules_that_cannot_be_compared_are_put_in():
    def replace(each):
        each.rules.replace("counting", Counting(np.arange(3)))
        each.rules.replace("counting", Counting(np.arange(4)))

    assert await kept_after(Store(), replace) == {2: 1}
    rules = [Counting(np.arange(3))]
    interceptor = Interceptor("x", rules, epoch=1, store=Store())
    await interceptor.change(lambda: interceptor.rules.replace(0, Counting(np.arange(3))))
    await interceptor.stop()


async def test_a_round_that_begins_with_a_new_table_is_kept():
    assert await kept_after(Store(), Interceptor.new_round) == {2: 1}
