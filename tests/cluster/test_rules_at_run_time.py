"""Rules changed at run time: by the driver, by tasks, under load, and with unusable rules."""

import pytest
import ray
from support.cluster import (
    PATIENCE_S,
    LocksUp,
    OnlyHere,
    Shouting,
    control,
)

from ray_messaging import Messaging, Steps, rules
from ray_messaging.errors import ConfigError, InvalidAddress, RuleError, UnknownName

WEST, EAST = range(8), range(10, 18)


def names(messaging):
    return [rule["name"] for rule in control(messaging, "rules")]


def test_rules_are_inserted_listed_replaced_and_removed(town):
    messaging, west, _ = town()
    messaging.rules.insert(rules.MaxLength(1_000))
    messaging.rules.insert(rules.MaxLength(20, name="shorter"), 0)
    messaging.rules.insert(Shouting(), 1)
    assert messaging.rules.list() == [
        {"name": "shorter", "kind": "MaxLength", "limit_bytes": 20},
        {"name": "shouting", "kind": "Shouting"},
        {"name": "max_length", "kind": "MaxLength", "limit_bytes": 1_000},
    ]
    long, loud = {"text": "x" * 50}, {"text": "HEY"}
    receipts = west.send_columns([1, 1], [11, 12], [long, loud])
    assert [(r.fate, r.rule) for r in receipts] == [("blocked", "shorter"), ("blocked", "shouting")]
    messaging.rules.replace("shorter", rules.MaxLength(100, name="wider"))
    assert names(messaging) == ["wider", "shouting", "max_length"]
    assert west.send(1, 11, long)
    messaging.rules.replace(2, rules.MaxLength(30))
    assert west.send(1, 11, long).rule == "max_length"
    assert messaging.rules.pop("shouting") == {"name": "shouting", "kind": "Shouting"}
    assert west.send(1, 11, loud)
    assert messaging.rules.pop(0)["name"] == "wider"
    assert messaging.rules.pop()["name"] == "max_length"
    assert messaging.rules.list() == []
    assert west.send(1, 11, long)
    changes = [change.change for change in messaging.rules.changes()]
    assert changes[-8:] == ["insert"] * 3 + ["replace"] * 2 + ["remove"] * 3


def test_a_rule_that_cannot_be_used_is_refused_in_short_words(town):
    messaging, _, _ = town()
    messaging.rules.insert(rules.MaxLength(1_000))
    with pytest.raises(ConfigError, match=r"^the rule cannot be sent to other processes: its 'lock' cannot be pickled"):
        messaging.rules.insert(LocksUp(locked=True))
    with pytest.raises(RuleError, match="is not a rule"):
        messaging.rules.insert("max_length")
    with pytest.raises(ConfigError, match="has no steps"):
        messaging.rules.insert(rules.MaxLength(10), at_step=3)
    assert repr(messaging.rules) == "ExperimentRules(max_length)"
    assert "1,000" in messaging.rules._repr_html_() or "1000" in messaging.rules._repr_html_()


def test_a_change_for_a_step_that_is_refused_holds_up_nobody(by_value, exp_id):
    def person(me, inbox):
        me.send(0, {"text": "hello"})

    changes = [
        lambda changed, step: changed.insert(rules.MaxLength(20), at_step=step + 1),  # the name is taken
        lambda changed, step: changed.insert(rules.MaxLength(20), at_step=step),
        lambda changed, step: changed.pop("speed", at_step=step + 1),
        lambda changed, step: changed.insert(LocksUp(locked=True), at_step=step + 1),
        lambda changed, step: changed.insert(rules.MaxLength(20, name="late"), at_step=step - 1),
    ]
    with Messaging.start(exp_id, steps=Steps(), rules=[rules.MaxLength(10)]) as messaging:
        run = messaging.start_run(person, agents=2, groups=2)
        for change in changes:
            run.advance()
            with pytest.raises((RuleError, ConfigError)):
                change(messaging.rules, run.step)
        assert run.advance(2) == len(changes) + 2
        assert names(messaging) == ["max_length"]


def test_a_task_controls_the_rules(town):
    messaging, west, _ = town()

    @ray.remote(num_cpus=0)
    def forbid(exp_id, rule):
        interceptor = Messaging.connect(exp_id).interceptor
        ray.get(interceptor.insert_rule.remote(rule, 0))
        ray.get(interceptor.add_to_black_set.remote((2, 12)))
        return ray.get(interceptor.rules.remote())

    listed = ray.get(forbid.remote(messaging.exp_id, Shouting()), timeout=PATIENCE_S)
    assert [rule["kind"] for rule in listed] == ["BlackList", "Shouting"]
    receipts = west.send_columns([1, 2, 3], [11, 12, 13], [{"text": "HEY"}, {"text": "a"}, {"text": "a"}])
    assert [r.rule for r in receipts] == ["shouting", "black_list", None]


@pytest.mark.parametrize(
    ("method", "args", "words"),
    [
        ("pop_rule", ["speed"], ["'speed'", "'first', 'second'"]),
        ("pop_rule", [2], ["2", "'first', 'second'"]),
        ("pop_rule", [-3], ["-3"]),
        ("pop_rule", [True], ["True"]),
        ("replace_rule", ["speed", rules.MaxLength(5)], ["'speed'", "'first', 'second'"]),
        ("replace_rule", [0, rules.MaxLength(5, name="second")], ["'second'", "another name"]),
        ("insert_rule", [rules.MaxLength(5, name="first")], ["'first'", "another name"]),
        ("insert_rule", [rules.MaxLength(5), "first"], ["'first'", "not a position"]),
        ("insert_rule", ["max-length:5"], ["'max-length:5'", "not a rule"]),
        ("insert_rule", [rules.MaxLength], ["MaxLength", "not a rule"]),
        ("insert_rule", [LocksUp()], ["'locks_up'", "cannot be sent", "first used"]),
        ("replace_rule", [0, LocksUp()], ["'locks_up'", "first used"]),
        ("add_to_black_set", [[(1, 2, 3)]], ["(1, 2, 3)", "(from_id, to_id)"]),
        ("add_to_black_set", ["1-2"], ["'1-2'"]),
        ("set_black_set", [5], ["5"]),
        ("remove_from_black_set", [None], ["None"]),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_an_invalid_change_changes_nothing(town, method, args, words):
    messaging, west, _ = town()
    for name in ("first", "second"):
        control(messaging, "insert_rule", rules.MaxLength(50, name=name))
    before = control(messaging, "rules")
    with pytest.raises(RuleError) as caught:
        control(messaging, method, *args)
    for word in words:
        assert word in str(caught.value)
    assert control(messaging, "rules") == before
    assert control(messaging, "black_set") == set()
    assert west.send(1, 11, {})


def test_an_invalid_id_raises(town):
    messaging, _, _ = town()
    with pytest.raises(InvalidAddress):
        control(messaging, "add_to_black_set", [(1.5, 2)])
    with pytest.raises(InvalidAddress):
        control(messaging, "reset_violation_counts", [1.5])


def test_unpicklable_rules_stop_a_start(ray_cluster, redis_config, exp_id):
    for rule, words in ((LocksUp(locked=True), "first used"), (OnlyHere(), "No module named 'mine'")):
        with pytest.raises(RuleError, match=words) as caught:
            Messaging.start(exp_id, redis=redis_config, rules=[rules.MaxLength(5), rule])
        assert caught.value.rule == rule.name
        assert repr(rule.name) in str(caught.value)
        with pytest.raises(UnknownName):
            Messaging.connect(exp_id)
    # A second attempt can succeed.
    with Messaging.start(exp_id, redis=redis_config, rules=[Shouting()]) as messaging:
        assert names(messaging) == ["shouting"]


def test_undeliverable_rules_change_nothing(town):
    """Ray cannot deliver the argument: the error has the reason, and the interceptor is not called."""
    messaging, west, _ = town()
    with pytest.raises(TypeError, match="lock"):
        messaging.interceptor.insert_rule.remote(LocksUp(locked=True))
    with pytest.raises(ray.exceptions.RayError, match="No module named 'mine'"):
        control(messaging, "insert_rule", OnlyHere())
    assert control(messaging, "rules") == []
    assert west.send(1, 11, {})


def test_black_list_calls_add_remove_set_and_read_and_violations_are_counted_and_reset(town):
    messaging, west, _ = town()
    assert control(messaging, "black_set") == set()
    assert control(messaging, "forward", 1, 11, {"text": "a"}) is True
    control(messaging, "remove_from_black_set", (1, 11))
    assert control(messaging, "rules") == []  # there was no pair to remove
    control(messaging, "add_to_black_set", (1, 11))
    assert control(messaging, "forward", 1, 11, "a") is False
    assert "agent 1 may not write to agent 11" in west.send(1, 11, {}).reason
    control(messaging, "add_to_black_set", [(2, None), (None, 13), (3, "ann")])
    assert control(messaging, "black_set") == {(1, 11), (2, None), (None, 13), (3, "ann")}
    control(messaging, "reset_violation_counts")

    def blocked():
        receipts = west.send_columns([1, 1, 2, 3, 4], [11, 12, 11, 13, 14], {})
        return [place for place, receipt in enumerate(receipts) if receipt.rule == "black_list"]

    assert blocked() == [0, 2, 3]
    assert control(messaging, "violation_counts") == {1: 1, 2: 1, 3: 1}
    control(messaging, "reset_violation_counts", [1, 99])
    control(messaging, "reset_violation_counts", 3)
    assert control(messaging, "violation_counts") == {2: 1}
    control(messaging, "remove_from_black_set", [(2, None), (3, "ann"), (7, 7)])
    assert control(messaging, "black_set") == {(1, 11), (None, 13)}
    assert blocked() == [0, 3]
    control(messaging, "set_black_set", [(4, 14)])
    assert control(messaging, "black_set") == {(4, 14)}
    assert blocked() == [4]
    many = [(n, n + 1) for n in range(100, 10_100)]
    control(messaging, "set_black_set", many)
    assert control(messaging, "black_set") == set(many)
    assert blocked() == []
    control(messaging, "set_black_set", [])
    assert control(messaging, "black_set") == set()
