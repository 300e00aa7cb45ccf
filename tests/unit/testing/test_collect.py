"""What `collect=` collects in a run: by agent and by group, the same on any number of groups."""

import numpy as np
import pandas as pd
import pytest

from ray_messaging import Count, Gini, Max, Mean, Min, Of, Quantile, Share, Sum, run
from ray_messaging.errors import ConfigError, InvalidAddress, PayloadTooLarge, StepFailed


def person(me, inbox):
    me.state["mood"] = sum(message.payload["mood"] for message in inbox) / 10 + me.rng.normal()
    me.state["side"] = "left" if me.state["mood"] < 0 else "right"
    me.send((me.id + 1) % 20, {"mood": me.state["mood"]})


def crowd(group, step):
    group.state["mood"] = group.uniform(1)[:, 0] - 0.5
    group.state["side"] = np.where(group.state["mood"] < 0, "left", "right")


def series(model, collect, groups, **options):
    by = "agent" if model is person else "group"
    return run(model, agents=20, until=4, groups=groups, by=by, collect=collect, **options).series


def rows(owner):
    return {name: owner.state[name] for name in ("mood", "side")}


@pytest.mark.parametrize("model", [person, crowd])
def test_series_are_equal_on_any_number_of_groups(model):
    each = [series(model, rows, groups) for groups in (1, 3)]
    whole = [series(model, [Mean("mood"), Count("side")], groups) for groups in (1, 3)]
    for one, *others in (each, whole):
        for other in others:
            pd.testing.assert_frame_equal(one, other, check_exact=True)
    assert each[0].index.equals(pd.MultiIndex.from_product([range(4), range(20)], names=["step", "agent"]))
    counted = each[0].side.groupby("step").value_counts().unstack(fill_value=0)
    assert (whole[0][["side=left", "side=right"]].to_numpy() == counted[["left", "right"]].to_numpy()).all()
    assert np.allclose(whole[0].mood, each[0].mood.groupby("step").mean())


def test_collect_sees_the_state_after_the_step_of_every_nth_one():
    def count(me, inbox):
        me.state["n"] = me.state.get("n", 0) + 1

    found = run(count, agents=["ann", 7], until=7, collect=lambda me: {"n": me.state["n"]}, collect_every=3).series
    assert found.n.to_dict() == {(step, agent): step + 1 for step in (0, 3, 6) for agent in (7, "ann")}


def test_ids_and_columns_are_the_same_whatever_the_groups():
    large = 2**53 + 1

    def seen(me, inbox):
        kept = {"a": f"ä{me.id}", "b": True, "c": 2**53, "d": 0.1}
        me.state = dict(reversed(kept.items())) if me.id == large else kept

    for groups in (1, 3):
        agents = ["ann", large, large + 2]
        found = run(seen, agents=agents, groups=groups, until=1, collect=lambda me: dict(me.state)).series
        assert found.index.to_list() == [(0, large), (0, large + 2), (0, "ann")]
        texts = [f"ä{large}", f"ä{large + 2}", "äann"]
        assert found.to_dict("list") == {"a": texts, "b": [True] * 3, "c": [2**53] * 3, "d": [0.1] * 3}
        assert found.b.dtype == bool


def test_one_number_may_be_whole_among_many():
    def seen(me):
        return {"x": me.id if me.id == 1500 else me.id / 2, "y": 0.5}

    found = run(lambda me, inbox: None, agents=3000, until=1, collect=seen).series
    assert found.x.to_list() == [agent if agent == 1500 else agent / 2 for agent in range(3000)]
    assert (found.y == 0.5).all()


def test_an_aggregate_may_have_a_function():
    left = Mean("left", of=lambda owner: np.less(owner.state["mood"], 0))
    for model in (person, crowd):
        shares = series(model, left, 2).left
        assert shares.tolist() == (series(model, Count("side"), 1)["side=left"] / 20).tolist()


def test_all_aggregates_of_one_key_on_any_number_of_groups():
    def luck(owner):
        return np.abs(owner.state["mood"])

    collect = [
        Sum("total", of="mood"), Min("least", of="mood"), Max("most", of="mood"), Quantile("p90", 0.9, of="mood"),
        Quantile("median", 0.5, of="mood"), Gini("luck", of=luck), Share("side"),
    ]  # fmt: skip
    for model in (person, crowd):
        one, three = (series(model, collect, groups) for groups in (1, 3))
        pd.testing.assert_frame_equal(one, three, check_exact=True)
        moods = series(model, rows, 1).mood.groupby("step")
        assert (one.least.tolist(), one.most.tolist()) == (moods.min().tolist(), moods.max().tolist())
        assert np.allclose(one[["total", "p90"]], np.array([moods.sum(), moods.quantile(0.9)]).T)
        assert ((one["side=left"] + one["side=right"]) == 1).all()


def test_agents_that_have_stopped_count_unless_only_the_living_are_asked_for():
    def mortal(me, inbox):
        me.state = {"age": me.step, "at": "home" if me.step else "birth"}
        if me.step == me.id:
            me.stop()

    collect = [
        each(f"{each.__name__} {living}", of=of, living=living)
        for living in (False, True)
        for each, of in ((Sum, "age"), (Mean, "age"), (Max, "age"), (Count, "at"), (Share, "at"))
    ]
    one, two = (run(mortal, agents=4, until=4, groups=groups, collect=collect).series for groups in (1, 2))
    pd.testing.assert_frame_equal(one, two, check_exact=True)
    assert one["Sum False"].tolist() == [0, 3, 5, 6]
    assert one["Sum True"].tolist() == [0, 2, 2, 0]
    assert one["Max True"].fillna(-1).tolist() == [0, 1, 2, -1]
    assert one["Count False=home"].tolist() == [0, 3, 3, 3]
    assert one["Count True=home"].tolist() == [0, 2, 1, 0]
    assert one["Share True=home"].tolist() == [0, 1, 1, 0]


def test_a_value_that_comes_later_was_zero_before():
    def half(me, inbox):
        me.state["at"] = me.step // 2

    found = run(half, agents=3, until=4, collect=Count("at")).series
    assert found.to_dict("list") == {"at=0": [3, 3, 0, 0], "at=1": [0, 0, 3, 3]}


@pytest.mark.parametrize(
    ("model", "collect", "error", "text"),
    [
        (person, lambda me: {"x": 1} if me.step == 0 else {"x": "one"}, ConfigError, r"step 1 .* 'x' \(text\)"),
        (person, lambda me: {"x": 1} if me.step == 0 else {"y": 1}, ConfigError, r"step 1 .* 'y' \(number\)"),
        (person, lambda me: {"x": 1} if me.id < 7 else {"y": 1}, StepFailed, "agent 7 .*the same keys"),
        (person, lambda me: {"x": None}, StepFailed, "agent 0 .*NoneType"),
        (person, lambda me: {"x": 2**60}, StepFailed, r"up to 2\*\*53"),
        (person, lambda me: 1 / (me.id - 7), StepFailed, "collect failed for agent 7 .*ZeroDivisionError"),
        (person, lambda me: [me.id], StepFailed, "must return a dict"),
        (person, Mean("side"), StepFailed, r"Count\('side'\)"),
        (person, Count("mood"), StepFailed, "floats: round them"),
        (crowd, Count("mood"), StepFailed, "floats: round them"),
        (person, Mean("wealth"), StepFailed, "KeyError: 'wealth'"),
        (crowd, lambda group: {"x": 1}, StepFailed, "a value for each of the 20 agents"),
        (crowd, lambda group: {}, StepFailed, "a dict of arrays"),
        (crowd, lambda group: {"x": np.ma.masked_less(group.state["mood"], 0)}, StepFailed, "masked values"),
        (crowd, lambda group: {"x": [True, *range(19)]}, StepFailed, "bool and int"),
        (crowd, lambda group: {"x": ["a\0"] * 20}, StepFailed, "null character"),
        (crowd, lambda group: {"x": [2**53 + 1, *[0.5] * 19]}, StepFailed, "collect: x mixes floats and whole numbers"),
        (person, None, ConfigError, "pass collect="),
        (person, 5, ConfigError, "collect=5 must be"),
        (person, [], ConfigError, r"collect=\[\] must be"),
        (person, [Mean("mood"), "side"], ConfigError, "must be a function"),
        (person, Mean(""), ConfigError, "must be a non-empty str"),
        (person, Mean("a=b"), ConfigError, "without '='"),
        (person, Count("step"), ConfigError, "none of 'step', 'agent', 'agent_name'"),
        (person, [Mean("mood"), Count("mood")], ConfigError, "have the same name"),
        (person, Gini("mood"), StepFailed, "needs numbers of at least 0"),
        (person, Sum("side"), StepFailed, r"Count\('side'\)"),
        (person, Quantile("mood", 50), ConfigError, "from 0 to 1"),
        (person, Mean("mood", of=5), ConfigError, "of=5"),
        (
            crowd,
            Mean("mood", living=True),
            ConfigError,
            "living=True is only for models that are called for each agent",
        ),
        (person, lambda me: {"x": "a" * 4_000_000}, PayloadTooLarge, "collect less"),
    ],
)
def test_a_collect_that_is_wrong_is_told_with_its_place(model, collect, error, text):
    with pytest.raises(error, match=text):
        series(model, collect, 1)


def test_every_is_a_number_of_steps():
    with pytest.raises(ConfigError, match="collect_every=0"):
        series(person, rows, 1, collect_every=0)


CHOSEN = [3, 4, 17]


@pytest.mark.parametrize("model", [person, crowd])
def test_rows_of_chosen_agents_are_those_of_all(model):
    whole = series(model, rows, 1)
    for groups in (1, 3, 20):
        found = series(model, Of(CHOSEN[::-1], rows), groups)
        pd.testing.assert_frame_equal(found, whole.loc[(slice(None), CHOSEN), :], check_exact=True)


@pytest.mark.parametrize("model", [person, crowd])
def test_aggregates_of_chosen_agents_beside_those_of_all(model):
    def luck(owner):
        return np.abs(owner.state["mood"])

    def is_left(owner):
        return owner.state["mood"] < 0

    chosen = [
        Sum("total", of="mood"), Min("least", of="mood"), Max("most", of="mood"), Quantile("p90", 0.9, of="mood"),
        Gini("luck", of=luck), Share("side"), Count("sides", of="side"), Sum("left", of=is_left),
    ]  # fmt: skip
    one, *others = (series(model, [Mean("mood"), Of(CHOSEN, chosen)], groups) for groups in (1, 3, 20))
    for other in others:
        pd.testing.assert_frame_equal(one, other, check_exact=True)
    whole = series(model, rows, 1)
    moods = whole.mood.loc[:, CHOSEN].groupby("step")
    assert one.mood.tolist() == series(model, Mean("mood"), 1).mood.tolist()
    assert (one.least.tolist(), one.most.tolist()) == (moods.min().tolist(), moods.max().tolist())
    assert ((one["sides=left"] + one["sides=right"]) == len(CHOSEN)).all()
    assert one.left.tolist() == one["sides=left"].tolist()


def test_only_chosen_agents_need_the_key_that_is_collected():
    def market(me, inbox):
        if me.id == "book":
            me.state["price"] = 10 * me.step
        me.state["cash"] = 1.5

    collect = [Sum("cash"), Of(["book"], [Max("price"), Count("at", of="price")])]
    for groups in (1, 3):
        found = run(market, agents=[*range(5), "book"], until=2, groups=groups, collect=collect).series
        assert found.to_dict("list") == {"cash": [9, 9], "price": [0, 10], "at=0": [1, 0], "at=10": [0, 1]}
        assert found.price.dtype == np.int64


def test_chosen_agents_that_stop_count_unless_only_the_living_are_asked_for():
    def mortal(me, inbox):
        me.state["age"] = me.step
        if me.step == me.id:
            me.stop()

    collect = Of([0, 2], [Sum("all", of="age"), Sum("living", of="age", living=True), Max("age", living=True)])
    for groups in (1, 4):
        found = run(mortal, agents=4, until=4, groups=groups, collect=collect).series
        assert found["all"].tolist() == [0, 1, 2, 2]
        assert found.living.tolist() == [0, 1, 0, 0]
        assert found.age.fillna(-1).tolist() == [0, 1, -1, -1]


def test_agents_that_move_are_followed():
    def nomad(me, inbox):
        me.state["at"] = me.step * 10 + me.id
        if me.shared:
            me.move(f"group{(me.step + me.id) % 3}")

    for collect in (Of([1, 5], lambda me: {"at": me.state["at"]}), Of([1, 5], [Sum("at"), Count("n", of="at")])):
        one, three = (run(nomad, agents=6, until=4, groups=n, shared=n > 1, collect=collect).series for n in (1, 3))
        pd.testing.assert_frame_equal(one, three, check_exact=True)


@pytest.mark.parametrize(
    ("collect", "error", "text"),
    [
        (lambda: Of([], rows), ConfigError, "names no agent"),
        (lambda: Of("book", rows), InvalidAddress, "not 'book'"),
        (lambda: Of([3, 0.5], rows), InvalidAddress, "0.5 is a float"),
        (lambda: Of([3, 99, "book"], rows), ConfigError, r"Of\(...\) names agents that .*, 99, 'book': "),
        (lambda: Of(range(30), Mean("mood")), ConfigError, "this run does not have, 20, 21, 22, 23, 24, ...:"),
        (lambda: Of([3], 5), ConfigError, "must be a function"),
        (lambda: Of([3], []), ConfigError, "must be a function"),
        (lambda: Of([3], Of([3], Mean("mood"))), ConfigError, "must be a function"),
        (lambda: [Mean("mood"), Of([3], rows)], ConfigError, "in a list, a function that gives"),
        (lambda: [Mean("mood"), Of([3], Sum("mood"))], ConfigError, "have the same name"),
        (lambda: Of([3], lambda me: {"x": None}), StepFailed, "agent 3 .*NoneType"),
        (lambda: Of([3, 7], lambda me: 1 / (me.id - 7)), StepFailed, "agent 7 .*ZeroDivisionError|must return a dict"),
        (lambda: Of([3, 7], Mean("x", of=lambda me: "no" if me.id == 7 else "")), StepFailed, "needs numbers"),
        (lambda: Of([3, 7], Sum("x", of=lambda me: 2**60 if me.id == 7 else 1)), StepFailed, "agent 7 "),
    ],
)  # fmt: skip
def test_a_choice_of_agents_that_is_wrong_is_told(collect, error, text):
    with pytest.raises(error, match=text):
        series(person, collect(), 2)


def test_chosen_agents_of_several_groups_have_values_of_one_kind():
    collect = Of([0, 1], Count("at", of=lambda me: me.id or "home"))
    with pytest.raises(StepFailed):
        run(lambda me, _: None, agents=2, until=1, collect=collect)
    with pytest.raises(ConfigError, match=r"Count\('at'\) found .*home.* of one kind"):
        run(lambda me, _: None, agents=2, until=1, groups=2, collect=collect)
