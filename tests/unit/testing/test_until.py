"""A run that ends after the step whose collected values fulfil a condition: on any number of groups."""

import asyncio

import numpy as np
import pytest

from ray_messaging import Calls, Count, Mean, Of, Sum, rules, run
from ray_messaging.cluster.run.ending import Ending, values_after
from ray_messaging.errors import ConfigError, StepFailed
from ray_messaging.eventlog.series_tables import series_table, values_in
from ray_messaging.interception.rules import StepRule, StepVerdicts

AGENTS = 12


def ill(me, inbox):
    me.state["days"] += me.state["health"] == "ill"
    if inbox and me.state["health"] == "well":
        me.state["health"] = "ill"
    if me.state["days"] == 2:
        me.state["health"] = "immune"
    if me.state["health"] == "ill":
        me.send((me.id + 1) % AGENTS, {})


def crowd(group, step):
    group.state["age"] = group.state["age"] + 1


def first(me):
    return {"health": "ill" if me.id == 0 else "well", "days": 0}


def epidemic(until, groups=1, model=ill, **options):
    given = {"agents": AGENTS, "start": first, "collect": Count("health"), "max_steps": 50, "progress": False}
    return run(model, until=until, groups=groups, **given | options)


def same(one, other):
    assert (one.states, one.steps, one.digests, one.fates) == (other.states, other.steps, other.digests, other.fates)
    assert one.series.equals(other.series)
    assert one.stopped == other.stopped


@pytest.mark.parametrize("groups", [1, 3, AGENTS])
def test_a_run_ends_after_the_first_step_that_fulfils_the_condition(groups):
    seen = []
    found = epidemic(lambda now: seen.append(dict(now)) or now["health=ill"] == 0, groups)
    series = found.series
    assert found.steps == len(series) == len(seen) < 50
    assert (series["health=ill"].iloc[:-1] > 0).all()
    assert series["health=ill"].iloc[-1] == 0
    assert [now["step"] for now in seen] == [*range(found.steps)]
    assert [now.get("health=immune", 0) for now in seen] == series["health=immune"].tolist()
    same(found, epidemic(found.steps, groups, max_steps=None))
    same(found, epidemic(lambda now: now["health=ill"] == 0))


@pytest.mark.parametrize("groups", [1, 3])
def test_the_condition_is_asked_only_after_steps_that_are_collected(groups):
    asked = []
    found = epidemic(lambda now: asked.append(now["step"]) or now["health=ill"] == 0, groups, collect_every=4)
    assert asked == [*range(0, found.steps, 4)] == found.series.index.tolist()
    same(found, epidemic(found.steps, max_steps=None, collect_every=4))


@pytest.mark.parametrize("most", [0, 1, 6])
def test_a_run_ends_at_the_limit(most):
    found = epidemic(lambda now: False, 2, max_steps=most, collect_every=3)
    assert (found.steps, found.stopped) == (most, False)
    same(found, epidemic(most, max_steps=None, collect_every=3))


@pytest.mark.parametrize("groups", [1, 3])
def test_the_values_of_each_agent_are_arrays(groups):
    def met(now):
        assert now["agent"].tolist() == [1, 2, "book"]
        assert now["name"].tolist() == ["1", "2", "book"]
        return (now["age"] > 3).all()

    def grown(me, inbox):
        me.state |= {"age": me.step + (me.id != "book"), "name": str(me.id)}

    collect = Of([2, 1, "book"], lambda me: dict(me.state))
    found = run(grown, agents=[*range(5), "book"], until=met, max_steps=9, groups=groups, collect=collect)
    assert found.steps == 5


def test_the_model_may_be_called_by_group():
    given = {"agents": 5, "by": "group", "groups": 2, "start": lambda group: {"age": np.zeros(len(group.ids))}}
    for collect in (Mean("age"), lambda group: {"age": group.state["age"]}):
        found = run(crowd, until=lambda now: np.min(now["age"]) >= 4, max_steps=9, collect=collect, **given)
        assert found.steps == 4


class Even(StepRule):
    name = "even"

    async def check_step(self, number, batch, exp_id):
        return (
            StepVerdicts() if number % 2 == 0 else StepVerdicts({row: rules.block("odd") for row in range(batch.rows)})
        )


def test_rules_on_whole_steps_are_those_of_a_run_of_as_many_steps():
    given = {"rules": [Even(), rules.RateLimit(per_round=1)], "groups": 2}
    one = epidemic(lambda now: now["health=ill"] == 0, **given)
    same(one, epidemic(one.steps, max_steps=None, **given))
    assert one.steps < 50


def test_a_budget_of_calls_ends_the_run_first():
    async def asks(me, inbox):
        await me.remember(lambda: 1)
        me.state["age"] = me.step

    given = {"agents": 4, "groups": 2, "collect": Sum("age"), "max_steps": 9, "progress": False}
    found = run(asks, until=lambda now: now["age"] >= 12, **given)
    assert (found.steps, found.stopped, found.calls.model) == (4, False, 16)
    spent = run(asks, until=lambda now: now["age"] >= 12, calls=Calls(budget=10), **given)
    assert (spent.steps, spent.stopped, spent.calls.model, spent.calls.spent) == (2, True, 10, True)


def test_a_budget_that_ends_the_run_of_one_group_leaves_the_digests_of_all_groups_whole():
    async def asks(me, inbox):
        me.send((me.id + 1) % 4, {"step": me.step})
        if me.id == 0 and me.step >= 66:  # the last of the kept steps is not the first step of the run
            # The other groups close their step before the budget ends the run.
            await asyncio.sleep(0.02)
            await me.remember(lambda: 1)

    given = {"agents": 4, "until": 90, "calls": Calls(budget=3), "progress": False}
    one, four = (run(asks, groups=groups, **given) for groups in (1, 4))
    assert one.steps == four.steps == 69
    assert len(one.digests) == 64
    assert four.digests == one.digests


def raises(now):
    return now["health=ill"] / 0


@pytest.mark.parametrize(
    ("until", "options", "error", "text"),
    [
        (lambda now: True, {"max_steps": None}, ConfigError, "pass max_steps="),
        (5, {}, ConfigError, "max_steps=50 is only for a condition"),
        (lambda now: True, {"max_steps": 0.5}, ConfigError, "max_steps=0.5 must be a whole number of steps"),
        (lambda now: True, {"collect": None}, ConfigError, "pass collect="),
        (lambda: True, {}, ConfigError, "must be a plain function of the collected values"),
        (lambda now: None, {}, ConfigError, "until= returned None after step 0: it must return True"),
        (lambda now: now["dead"] == 0, {}, StepFailed, "after step 0: KeyError: .*'dead' is not collected: .*=ill"),
        (lambda now: now["dead=1"] == 0, {}, StepFailed, "'dead=1' is not collected"),
        (raises, {"collect_every": 3}, StepFailed, r"until= failed after step 0: ZeroDivisionError.*test_until.py:\d+"),
        (lambda now: 1 / (3 - now["step"]) > 2, {}, StepFailed, "after step 3"),
    ],
)  # fmt: skip
def test_a_condition_that_is_wrong_is_told(until, options, error, text):
    with pytest.raises(error, match=text):
        epidemic(until, 2, **options)


def test_an_async_condition_is_told():
    async def until(now):
        return True

    with pytest.raises(ConfigError, match="it is async"):
        epidemic(until)


def test_a_condition_is_not_asked_where_nothing_was_collected():
    asked = []
    ending = Ending(9, lambda now: asked.append(dict(now)) is None)
    assert not ending.is_fulfilled(3, values_after(3, [b"", b""]))
    assert not ending.is_fulfilled(3, {"step": 3} | values_in(series_table([]), 3))
    assert asked == []
    assert ending.is_fulfilled(3, {"step": 3, "age": 1})
    assert asked == [{"step": 3, "age": 1}]


@pytest.mark.parametrize("collect", [[Mean("age"), Count("name")], lambda me: dict(me.state)])
def test_the_stored_series_has_the_values_that_the_groups_have(collect):
    seen = {}

    def grown(me, inbox):
        me.state |= {"age": me.step / 3 + (me.id != "book"), "name": str(me.id)}

    found = run(
        grown, agents=[*range(5), "book"], until=lambda now: seen.update({now["step"]: dict(now)}) is not None,
        max_steps=4, groups=3, collect=collect, progress=False,
    )  # fmt: skip
    for step, values in seen.items():
        stored = {"step": step} | values_in(found.collected, step)
        assert stored.keys() == values.keys()
        assert all(np.array_equal(stored[name], value) for name, value in values.items())
