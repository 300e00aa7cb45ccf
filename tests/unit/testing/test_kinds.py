"""Several kinds of agents in one run: traders and their order book, the same on any number of groups."""

import numpy as np
import pandas as pd
import pytest

from ray_messaging import Count, Mean, batch_run, columns, run
from ray_messaging.errors import ConfigError, StepFailed
from ray_messaging.testing import check_repeatable


def trader(me, inbox):
    assert me.kind == "trader"
    for message in inbox:
        me.state["seen"] = message.payload["price"]
    me.send("book", {"bid": float(me.rng.random())})


def book(me, inbox):
    assert me.kind == "book"
    bids = sorted(message.payload["bid"] for message in inbox)
    me.state["price"] = bids[len(bids) // 2] if bids else 0.0
    for number in range(9):
        me.send(number, {"price": me.state["price"]})


async def slow_book(me, inbox):
    book(me, inbox)


def first(me):
    return {"seen": 0.0}


BOTH = {"trader": trader, "book": book}
IDS = {"trader": range(9), "book": ["book"]}
FRAME = pd.DataFrame({"kind": ["trader"] * 9 + ["book"]}, index=[*range(9), "book"])


def outcome(result):
    return result.states, result.digests, result.fates


@pytest.mark.parametrize("agents", [IDS, FRAME, {"book": ("book",), "trader": np.arange(9)}])
@pytest.mark.parametrize("models", [BOTH, {"trader": trader, "book": slow_book}])
def test_each_agent_has_the_model_of_its_kind_on_any_number_of_groups(agents, models):
    wanted = outcome(run(BOTH, agents=IDS, until=5, start={"trader": first}, seed=3))
    assert wanted[0]["book"].keys() == {"price"}
    assert wanted[0][4] == {"seen": wanted[0][0]["seen"]}
    groups = 1 if isinstance(agents, dict) and agents is not IDS else 4
    found = run(models, agents=agents, until=5, start={"trader": first}, groups=groups, seed=3)
    assert outcome(found) == wanted


def test_one_start_and_one_collect_see_the_kind():
    result = run(
        BOTH, agents=IDS, until=2, start=lambda me: {"seen": 0.0} if me.kind == "trader" else {"price": 0.0},
        collect=Count("kind", of=lambda me: me.kind),
    )  # fmt: skip
    assert result.series.iloc[-1].to_dict() == {"kind=book": 1, "kind=trader": 9}


def test_an_agent_that_moves_takes_its_kind_along():
    def walker(me, inbox):
        me.state["kinds"] = [*me.state.get("kinds", []), me.kind]
        me.move(to=f"group{me.step % 2}")

    result = run(dict.fromkeys(["a", "b"], walker), agents={"a": [0, 1], "b": [2]}, until=4, groups=2)
    assert {agent: state["kinds"] for agent, state in result.states.items()} == {
        0: ["a"] * 4,
        1: ["a"] * 4,
        2: ["b"] * 4,
    }


def buyers(group, step):
    assert group.kind == "buyer"
    group.state["n"] = group.state["n"] + step.uniform(1)[:, 0]
    step.send_columns(group.ids, group.ids + 10, columns(n=group.state["n"]))


def sellers(group, step):
    assert group.kind == "seller"
    got = np.zeros(len(group.ids))
    for message in step.messages:
        got[np.searchsorted(group.ids, message.to_id)] += message.payload["n"]
    group.state["n"] = group.state["n"] + got


def nothing(group):
    return {"n": np.zeros(len(group.ids))}


CROWDS = {"buyer": buyers, "seller": sellers}
CROWD_IDS = {"buyer": range(10), "seller": range(10, 16)}


def test_crowds_of_several_kinds_are_equal_on_any_number_of_groups():
    def frame(groups, agents=CROWD_IDS):
        return run(CROWDS, agents=agents, until=4, by="group", groups=groups, start=nothing, collect=Mean("n"))

    one, many = frame(None), frame(5)
    assert [*one.states] == ["group0", "group1"]
    assert len(many.states) == 5
    pd.testing.assert_frame_equal(one.to_pandas(), many.to_pandas(), check_exact=True)
    pd.testing.assert_frame_equal(one.series, many.series, check_exact=True)
    assert one.digests == many.digests
    table = pd.DataFrame({"kind": ["buyer"] * 10 + ["seller"] * 6})
    assert frame(3, table).digests == one.digests
    named = frame({"east": range(10), "west": range(10, 16)})
    assert named.digests == one.digests
    with pytest.raises(ConfigError, match=r"groups\['all'\] has agents of two kinds, 'buyer' and 'seller'"):
        frame({"all": range(16)})


@pytest.mark.parametrize(
    ("agents", "words"),
    [
        (
            {**IDS, "clerk": [77]},
            r"the kind 'clerk' \(the kind of agent 77\), for which model= has no function: model= has 'trader'",
        ),
        ({"trader": range(9)}, "the kind 'book', but agents= has no agent of this kind"),
        ({"trader": range(9), "book": []}, "the kind 'book', but agents= has no agent of this kind"),
        ({"trader": range(9), "book": [3]}, "agent 3 is of two kinds, 'trader' and 'book'"),
        ({"trader": [1, 1], "book": [3]}, "agent 1 comes twice"),
        ({"trader": 9, "book": ["book"]}, r"agents\['trader'\]=9 must be the ids .*range\(9\)"),
        (10, "agents= does not say of which kind"),
        (range(10), "agents= does not say of which kind"),
        (pd.DataFrame({"sort": ["trader"]}), "a DataFrame with a column 'kind'"),
        (pd.DataFrame({"kind": ["trader", None]}, index=["ann", "bob"]), "agent 'bob' has no kind"),
        (pd.DataFrame({"kind": ["trader", np.nan]}, index=["ann", "bob"]), "agent 'bob' has no kind"),
        (
            pd.DataFrame({"kind": ["trader", "x"]}, index=["ann", "bob"]),
            r"the kind 'x' \(the kind of agent 'bob'\), for which",
        ),
    ],
)
def test_kinds_that_do_not_fit_are_named(agents, words):
    with pytest.raises(ConfigError, match=words):
        run(BOTH, agents=agents, until=1)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"model": {}}, "model={} has no kind"),
        ({"model": {1: trader}}, "model= has the kind 1: name each kind by a str"),
        ({"model": BOTH | {"book": 7}}, r"model\['book'\]=7 must be a function"),
        ({"model": BOTH | {"book": first}}, r"model\['book'\]=.*must take two arguments"),
        ({"start": {"clerk": first}}, "start= has the kind 'clerk', for which model= has no function"),
        ({"start": {"book": 7}}, r"start\['book'\]=7 must be a plain function"),
        ({"model": trader, "agents": 9, "start": {"book": first}}, "start={'book': .* but model= is one function"),
        ({"model": trader}, "a dict, whose values would be lost.*give each kind its model"),
        ({"by": "group", "model": {"trader": slow_book, "book": book}}, "the model is a plain function"),
    ],
)  # fmt: skip
def test_functions_that_do_not_fit_are_named(given, words):
    arguments = {"model": BOTH, "agents": IDS, "until": 1} | given
    with pytest.raises(ConfigError, match=words):
        run(arguments.pop("model"), **arguments)


def test_an_error_of_one_kind_names_the_agent():
    def broken(me, inbox):
        raise ValueError("no paper")

    with pytest.raises(StepFailed, match=r"agent 'book' .*no paper"):
        run({"trader": trader, "book": broken}, agents=IDS, until=1, start={"trader": first})


def test_several_kinds_are_repeatable_if_each_is():
    check_repeatable(BOTH, agents=IDS, until=2, start={"trader": first})
    check_repeatable(CROWDS, agents=CROWD_IDS, until=2, start=nothing, by="group")


def test_a_study_gives_parameters_to_the_models_of_all_kinds(tmp_path):
    def bidder(me, inbox, *, bid):
        me.send("book", {"bid": bid})

    study = batch_run(
        {"trader": bidder, "book": book}, {"bid": [1.0, 2.0]}, agents=IDS, until=3, workers=1, folder=tmp_path,
        progress=False, outcomes={"price": lambda result: result.states["book"]["price"]},
    )  # fmt: skip
    assert study.to_pandas().price.tolist() == [1.0, 2.0]
    with pytest.raises(ConfigError, match=r"model\['trader'\]= takes 'bid'"):
        batch_run({"trader": bidder, "book": book}, agents=IDS, until=3, progress=False)
