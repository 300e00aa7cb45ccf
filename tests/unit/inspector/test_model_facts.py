"""A local model step by step: the run of one call, whatever the steps, and parameters from the function's defaults."""

from typing import Annotated, Literal

import pytest

from ray_messaging import Mean, run
from ray_messaging.errors import ConfigError, StepFailed
from ray_messaging.inspector.sources.model_facts import ModelFacts, ModelParameter, settings_of
from ray_messaging.interception.rules import RateLimit


def person(me, inbox, *, chance):
    me.state["heard"] = me.state.get("heard", 0) + len(inbox)
    if me.rng.random() < chance:
        me.send(int(me.rng.integers(9)), {"n": me.step})


def town(*, chance: float = 0.5, agents: int = 9, limit: Literal["none", "one"] = "none", seed: int = 3):
    rules = [RateLimit(per_round=1)] if limit == "one" else []
    return {"model": person, "agents": agents, "rules": rules, "until": 6, "start": lambda me: {"kind": "a"}}


def test_steps_are_those_of_one_run():
    found = ModelFacts(town, "town:town")
    assert (found.society_in_step("", None, None), found.over_steps("")) == (None, None)
    assert [found.advance() for _ in range(4)] + [found.advance(9), found.advance()] == [1, 2, 3, 4, 6, 6]
    assert found.over
    whole = run(lambda me, inbox: person(me, inbox, chance=0.5), agents=9, until=6, seed=0, progress=False)
    society = found.society_in_step("heard", 5, None)
    assert society.steps == [*range(6)]
    assert society.values == [whole.states[agent]["heard"] for agent in range(9)]
    assert (society.measures, society.linked, society.edges) == (["heard", "kind"], False, [])
    assert found.over_steps("heard").lines["mean"][5] == pytest.approx(sum(society.values) / 9)
    found.begin({"chance": 1.0, "agents": 4, "limit": "one", "seed": 3}, 8)
    assert (found.step, found.over, found.values["chance"], found.seed) == (0, False, 1.0, 8)
    found.advance(2)
    assert found.society_in_step("", None, None).total == 4
    found.close()


@pytest.mark.parametrize("groups", [1, 2])
def test_a_step_does_not_begin_the_run_again(groups):
    copies, fails = [], [True]

    class Counted(RateLimit):
        def __deepcopy__(self, _):
            copies.append(self.name)
            return type(self)(per_round=self.limit)

    def unsteady(me, inbox):
        me.state["heard"] = me.state.get("heard", 0) + len(inbox)
        if me.step == 2 and fails:
            fails.clear()
            raise ConnectionError("no network")
        me.send((me.id + 1) % 4, {"n": me.step})

    def steps(me):
        return {"heard": me.state["heard"]}

    given = {"model": unsteady, "agents": 4, "groups": groups, "collect": steps, "rules": [Counted(per_round=1)]}
    found = ModelFacts(lambda: given, "x")
    found.advance(2)
    with pytest.raises(StepFailed, match="no network"):
        found.advance()
    assert [found.advance() for _ in range(3)] == [3, 4, 5]
    assert found.society_in_step("heard", None, None).values == [4] * 4
    assert len(copies) == 1
    found.close()


def test_values_of_all_agents_together_have_curves():
    found = ModelFacts(lambda chance=0.5: {"model": person, "agents": 9, "collect": Mean("heard")}, "x")
    found.advance(3)
    assert found.society_in_step("", None, None) is None
    assert len(found.over_steps("").lines["heard"]) == 3
    found.close()


def test_a_run_that_fails_stands_where_it_stood():
    def failing(me, inbox):
        if me.step == 2:
            raise ValueError("no more")
        me.state |= {"step": 7, "last": me.step}

    found = ModelFacts(lambda: {"model": failing, "agents": 3}, "x")
    found.advance(2)
    with pytest.raises(StepFailed, match="no more"):
        found.advance()
    assert found.step == 2
    assert found.society_in_step("", None, None).values == [1, 1, 1]
    found.close()


def test_parameters_come_from_defaults_and_types():
    def of(a=0.3, b=3, c=40, d=-5, e=True, f: Annotated[float, (2.0, 4.0)] = 2.5, g: Literal["x", "y"] = "x", h=1.5):
        pass

    assert settings_of(of) == [
        ModelParameter("a", 0.3, 0, 1.0, 0.01),
        ModelParameter("b", 3, 0, 10, 1),
        ModelParameter("c", 40, 0, 80, 1),
        ModelParameter("d", -5, -10, 10, 1),
        ModelParameter("e", True),
        ModelParameter("f", 2.5, 2.0, 4.0, 0.02),
        ModelParameter("g", "x", options=("x", "y")),
        ModelParameter("h", 1.5, 0, 3.0, 0.03),
    ]


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda chance: {}, "the parameter 'chance' of the function '<lambda>' has no default"),
        (
            lambda name="ann": {},
            "the default of parameter 'name' is 'ann', but the model's page in the browser can set only",
        ),
        (lambda: 3, "<lambda> returned 3: it must return the arguments of ray_messaging.run as a dict"),
        (lambda: {"model": person}, "'agents' is missing in what the function of a model's page has returned"),
        (lambda: {"model": person, "agents": 3, "log_dir": "x"}, "the argument 'log_dir' is unknown"),
        (lambda: {"model": person, "agents": 3, "until": lambda now: True}, "until=<.*> must be a number of steps"),
    ],
)
def test_a_function_that_does_not_fit_is_refused(function, why):
    with pytest.raises(ConfigError, match=why):
        ModelFacts(function, "x")


def test_bounds_that_leave_the_default_out_are_refused():
    def of(share: Annotated[float, (2.0, 4.0)] = 1.0):
        pass

    with pytest.raises(ConfigError, match=r"'share' is 1.0, and its bounds are \(2.0, 4.0\)"):
        settings_of(of)


@pytest.mark.parametrize(
    "changed", [{"chance": 7.0}, {"chance": None}, {"agents": 2.5}, {"limit": "two"}, {"seed": True}]
)
def test_values_that_a_parameter_cannot_have_are_refused(changed):
    found = ModelFacts(town, "x")
    with pytest.raises(ConfigError, match=f"the parameter '{next(iter(changed))}' cannot be"):
        found.begin(found.values | changed, 0)
    found.close()
