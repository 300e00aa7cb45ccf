"""A sweep: what each run gets, what the tables have, and how a study goes on; carried out in this process."""

import enum
import json
import random
import re
from collections import Counter
from functools import partial
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.studies import work_here

from ray_messaging import Calls, Count, Mean, Of, Price, Share, Study, batch_run, rules, run
from ray_messaging.errors import ConfigError, LogError
from ray_messaging.studies import study_driver
from ray_messaging.studies.run_tasks import EndedRun
from ray_messaging.studies.run_workers import run_packed
from ray_messaging.studies.study_folder import StudyFolder
from ray_messaging.studies.study_tables import exact_table, exact_values

KEPT = "runs.parquet", "series.parquet"


@pytest.fixture
def here(monkeypatch):
    work_here(monkeypatch)


def person(me, inbox, *, chance):
    if inbox or me.state["knows"]:
        me.state["knows"] = True
        if me.rng.random() < chance:
            me.send((me.id + 1) % 4, {"text": "heard?"})


def sweep(folder, model=person, parameters=None, **changed):
    arguments = {"agents": 4, "until": 3, "start": lambda me: {"knows": me.id == 0}, "progress": False, "seed": 3}
    return batch_run(model, parameters or {"chance": [0.5, 1]}, folder=folder, **arguments | changed)


def test_a_run_whose_states_cannot_be_kept_has_an_error_and_the_others_go_on(here, tmp_path):
    def half(me, inbox, *, chance):
        me.state["text"] = "\ud83d" if chance == 1 else "\U0001f600"

    table = sweep(tmp_path / "s", half, outcomes={"agents": lambda result: len(result.states)}).to_pandas()
    assert table["agents"].tolist()[:1] == [4]
    assert table["error"].isna().tolist() == [True, False]
    assert "lone surrogate" in table["error"][1]


def test_outcomes_that_change_the_result_change_no_digest(here, tmp_path):
    def taken(result):
        result.states[0]["more"] = {object()}
        return sum(state.pop("knows") for state in result.states.values())

    plain, changed = (
        sweep(tmp_path / name, outcomes={"knows": function}).to_pandas()
        for name, function in [("a", lambda result: sum(s["knows"] for s in result.states.values())), ("b", taken)]
    )
    assert changed.drop(columns="seconds").equals(plain.drop(columns="seconds"))


def test_a_row_reaches_all_functions_and_each_run_is_that_of_run(here, tmp_path):
    def walker(me, inbox, *, pace):
        me.state["sum"] += pace * len(inbox)
        for friend in me.neighbours:
            me.send(friend, {})

    def start(me, pace, *, replicate):
        return {"sum": pace, "replicate": replicate}

    def ring(n, seed):
        return [(agent, (agent + 1 + seed % 2) % n) for agent in range(n)]

    study = batch_run(
        walker,
        {"n": [3, 4], "pace": [2], "ban": [0, 2]},
        agents=lambda n: n,
        until=lambda n: n,
        graph=ring,
        start=start,
        rules=lambda ban: [rules.BlackList([(ban, None)])],
        outcomes={"blocked": lambda result: result.fates["blocked"], "first": lambda result, pace: pace},
        replicates=2,
        folder=tmp_path / "s",
        progress=False,
    )
    table = study.to_pandas()
    assert [*table.columns] == [
        *("n", "pace", "ban", "replicate", "seed", "blocked", "first", "digest", "seconds", "error")
    ]
    assert table["error"].isna().all()
    assert (table["blocked"] == table["n"]).all()
    assert (table["first"] == 2).all()
    assert table["digest"].nunique() == 8
    last = table.iloc[-1]
    result = run(
        lambda me, inbox: walker(me, inbox, pace=2),
        agents=4,
        until=4,
        graph=ring(4, last["seed"]),
        start=lambda me: start(me, 2, replicate=1),
        rules=[rules.BlackList([(2, None)])],
        seed=int(last["seed"]),
        progress=False,
    )
    assert result.fates["blocked"] == last["blocked"]


@pytest.mark.parametrize(("kind", "all_agents"), [(Count, 4), (Share, 1.0)])
def test_aggregates_are_outcomes_and_series_and_what_is_absent_is_zero(here, tmp_path, kind, all_agents):
    def sick(me, inbox, *, chance):
        me.state["is"] = "ill" if me.step >= chance else "well"

    study = sweep(tmp_path / "s", sick, {"chance": [2, 9]}, outcomes=[kind("is"), lambda result: {"n": 4}])
    table = study.to_pandas()
    assert table[["is=ill", "is=well", "n"]].to_numpy().tolist() == [[all_agents, 0, 4], [0, all_agents, 4]]
    series = study.series
    assert [*series.columns] == ["chance", "replicate", "step", "is=ill", "is=well"]
    assert series["is=ill"].tolist() == [0, 0, all_agents, 0, 0, 0]
    assert series["is=well"].dtype == ("int64" if kind is Count else "float64")


@pytest.mark.parametrize("runs_in_a_part", [1, 2])
@pytest.mark.parametrize(("values", "kinds"), [([True, 2], "bool number"), (["x", 0.5], "number text")])
def test_a_collected_value_of_another_kind_is_told_with_its_runs(
    here, tmp_path, monkeypatch, values, kinds, runs_in_a_part
):
    def kind(me, inbox, *, chance):
        me.state["value"] = values[chance == 1]

    monkeypatch.setattr(study_driver, "_FLUSH_RUNS", runs_in_a_part)
    with pytest.raises(ConfigError) as told:
        sweep(tmp_path / "s", kind, collect=lambda me: {"value": me.state["value"]})
    found = re.fullmatch(
        r"the collected value 'value' is a (\w+) in replicate 0 of {'chance': \S+}, and a (\w+) in replicate 0 of "
        r"{'chance': \S+}: .* on_existing='reset'",
        str(told.value),
    )
    assert sorted(found.groups()) == kinds.split()


def test_a_series_of_ints_in_some_runs_and_floats_in_others_has_each_value(here, tmp_path):
    def kind(me, inbox, *, chance):
        me.state["value"] = [2**53, 0.5][chance == 1]

    study = sweep(tmp_path / "s", kind, collect=lambda me: {"value": me.state["value"]}, until=1)
    assert study.series["value"].tolist() == [2**53] * 4 + [0.5] * 4


def test_a_counted_text_that_has_an_equals_sign_is_zero_where_it_is_absent(here, tmp_path):
    def sick(me, inbox, *, chance):
        me.state["is"] = f"since=step {chance}"

    table = sweep(tmp_path / "s", sick, {"chance": [1, 2]}, outcomes=Count("is")).to_pandas()
    assert table[["is=since=step 1", "is=since=step 2"]].to_numpy().tolist() == [[4, 0], [0, 4]]


def test_values_of_all_agents_are_a_series(here, tmp_path):
    study = sweep(tmp_path / "s", collect=lambda me: {"knows": me.state["knows"]}, parameters={"chance": [1]})
    assert study.series.groupby("step")["knows"].sum().tolist() == [1, 2, 3]
    assert study.outcomes == []
    with pytest.raises(ConfigError, match="a value for each agent"):
        study.plot("step", "knows")


def test_numbers_stay_exact_whatever_other_runs_have(here, tmp_path):
    values = [2**60, 0.5, 2**70, True, "x", -1]
    study = sweep(
        tmp_path / "s",
        parameters={"chance": [0], "place": [*range(len(values))]},
        outcomes={"odd": lambda result, place: values[place], "even": lambda result, place: [1, 2.5][place % 2]},
    )
    assert study.to_pandas()["odd"].tolist() == values
    assert [*map(type, study.to_pandas()["odd"])] == [*map(type, values)]
    assert Study(tmp_path / "s").to_pandas()["even"].tolist() == [1, 2.5] * 3


def test_an_open_study_has_each_row_once_though_some_of_its_numbers_are_ints(tmp_path, monkeypatch):
    """The parts have the runs of other parameters: only ints in one, ints and floats in another."""
    work_here(monkeypatch)
    monkeypatch.setattr(study_driver, "_FLUSH_RUNS", 2)
    finish, seen = StudyFolder.finish, []

    def look_and_finish(self, runs):
        seen.append(Study(tmp_path / "s").to_pandas())
        summary = Study(tmp_path / "s").summary()
        assert sorted(zip(summary["chance"], summary["runs"], strict=True)) == [(0.5, 3), (1, 3)]
        finish(self, runs)

    monkeypatch.setattr(StudyFolder, "finish", look_and_finish)
    study = sweep(tmp_path / "s", replicates=3, outcomes={"n": lambda result, replicate: [0, 0.5, 2**70][replicate]})
    assert [
        {type(run.row["chance"]) for run in Study(study.folder)._runs if run.row["chance"] == at} for at in (0.5, 1)
    ] == [{float}, {int}]
    assert [*map(type, study.to_pandas()["n"])] == [int, float, int] * 2
    assert len(seen) == 1


@given(
    st.lists(
        st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.integers(-9, 9)
        | st.floats(allow_nan=False) | st.text(max_size=3)
    )
)  # fmt: skip
def test_a_column_is_read_as_it_was_written(values):
    (found,) = exact_values(exact_table({"a": values})).values()
    assert [*map(repr, found)] == [*map(repr, values)]


@given(st.lists(st.none() | st.integers(-(2**54), 2**54) | st.floats(allow_nan=False)))
def test_a_column_of_numbers_is_read_as_it_was_written(values):
    (found,) = exact_values(exact_table({"a": values})).values()
    assert [*map(repr, found)] == [*map(repr, values)]


def test_a_run_that_fails_is_a_row_with_its_place(here, tmp_path, capsys):
    def fails(me, inbox, *, chance):
        if chance == 2 and me.id == 3 and me.step == 1:
            raise KeyError("mood")

    def outcome(result, chance):
        return {"a": 1} | ({"b": 2} if chance == 1 else {}) | ({"c": [1]} if chance == 3 else {})

    study = sweep(tmp_path / "s", fails, {"chance": [1, 2, 3, 4]}, outcomes=outcome)
    table = study.to_pandas()
    place = Path(__file__).name
    assert re.search(
        rf"^StepFailed: .*agent 3 of group .* in step 1.*KeyError: 'mood' \(.*{place}:\d+\)", table["error"][1]
    )
    assert re.search(r"^ConfigError: the outcome 'c' is \[1\]", table["error"][2])
    assert table["a"].tolist()[::3] == [1, 1]
    assert table["b"].isna().tolist() == [False, True, True, True]
    assert "2 of 4 runs failed; the first error: StepFailed" in capsys.readouterr().err
    assert "2 failed" in repr(study)
    assert "<td" in study._repr_html_()
    (effect,) = study.effects({"chance": 1}, outcomes="b").query("chance == 4").to_dict("records")
    assert (effect["pairs"], effect["missing"]) == (0, 1)


class OddError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Mood(str, enum.Enum):  # noqa: UP042 - str() of it is not its value
    SAD = "sad"


class Level(enum.IntEnum):
    LOW = 3


def test_odd_texts_and_errors_are_errors_of_their_run(here, tmp_path):
    def outcome(result, chance):
        if chance == 1:
            raise ValueError("half of an emoji: \ud83d")
        if chance == 2:
            raise OddError
        return {"a": "\ud83d"} if chance == 3 else {"\ud83d": 1} if chance == 4 else {"a": "\U0001f600"}

    table = sweep(tmp_path / "s", parameters={"chance": [1, 2, 3, 4, 5]}, outcomes=outcome).to_pandas()
    said = [
        "ValueError: half of an emoji: \\ud83d (",
        "OddError: its text is unknown, because str() of it raised RuntimeError (",
        "ConfigError: the outcome 'a' is '\\ud83d': it must be a number, a bool, a str of valid Unicode or None",
        "ConfigError: the name of an outcome is '\\ud83d': it must be a str of valid Unicode",
    ]
    assert [error.startswith(text) for error, text in zip(table["error"], said, strict=False)] == [True] * 4
    assert (table["a"][4], table["error"].isna()[4]) == ("\U0001f600", True)
    with pytest.raises(ConfigError, match="row 0 of parameters= has text="):
        sweep(tmp_path / "other", parameters={"text": ["\ud83d"], "chance": [1]}, outcomes=lambda result, text: {})


def test_outcomes_of_enums_are_plain_values_which_any_process_can_read(tmp_path, monkeypatch):
    """The class of an enum may be in the program itself, which is another one in a worker."""
    found = []

    def carried_out(template, planned):
        found.append(run_packed(template, planned))
        return found[-1]

    work_here(monkeypatch, carried_out)
    sweep(tmp_path / "s", outcomes={"mood": lambda result: Mood.SAD, "level": lambda result: Level.LOW})
    outcomes = found[0].outcomes
    assert [(type(value), value) for value in outcomes.values()] == [(str, "sad"), (int, 3)]


def test_the_same_call_carries_nothing_out_again_and_a_study_may_grow(tmp_path, monkeypatch):
    carried = []

    def carry_out(template, planned):
        carried.append(planned.key)
        return EndedRun({"value": planned.seed}, planned.key, 1.0)

    work_here(monkeypatch, carry_out)
    first = sweep(tmp_path / "s", replicates=2)
    before = first.to_pandas()
    again = sweep(tmp_path / "s", replicates=2)
    assert len(carried) == 4
    pd.testing.assert_frame_equal(again.to_pandas(), before)
    grown = sweep(tmp_path / "s", parameters={"chance": [0.1, 0.5, 1]}, replicates=3).to_pandas()
    assert len(carried) == len({*carried}) == 9
    assert grown["chance"].tolist() == [0.1] * 3 + [0.5] * 3 + [1] * 3
    kept = grown[(grown["replicate"] < 2) & (grown["chance"] > 0.1)]
    pd.testing.assert_frame_equal(kept.reset_index(drop=True), before)
    with pytest.raises(ConfigError, match="has 5 runs that are not in this design"):
        sweep(tmp_path / "s", replicates=2)
    sweep(tmp_path / "s", replicates=2, on_existing="reset")
    assert len(carried) == 13


@pytest.mark.parametrize("whole", [True, False])
def test_a_study_of_an_earlier_version_is_read_and_may_grow(here, tmp_path, whole):
    """Its files had two numbers of calls, in columns of their own."""
    known = sweep(tmp_path / "s").to_pandas()
    seconds = tmp_path / "s" / "seconds.parquet"
    costs = exact_values(pq.read_table(seconds))
    del costs["call counts"]
    costs |= {"calls made": [2, 3], "calls saved": [0, 4]}
    pq.write_table(exact_table(costs), seconds)
    if not whole:  # the study was not at its end
        runs = tmp_path / "s" / "runs.parquet"
        pq.write_table(exact_table(exact_values(pq.read_table(runs)) | costs), tmp_path / "s" / "runs-00000000.parquet")
        runs.unlink()
        seconds.unlink()
    study = Study(tmp_path / "s")
    pd.testing.assert_frame_equal(study.to_pandas(), known)
    assert (study.calls.model, study.calls.store) == (5, 4)
    grown = sweep(tmp_path / "s", parameters={"chance": [0.5, 1, 0]})
    assert (len(grown), grown.calls) == (3, study.calls)
    pd.testing.assert_frame_equal(grown.to_pandas()[:2], known)


def test_a_study_has_costs_in_one_currency(here, tmp_path):
    in_euros = Calls(cost=Price(input=1, output=1, currency="EUR"))
    sweep(tmp_path / "s", calls=in_euros)
    with pytest.raises(ConfigError, match=r"calls= are in USD, but those of the study in .* are in EUR"):
        sweep(tmp_path / "s", replicates=2, calls=Calls(cost=Price(input=1, output=1)))
    sweep(tmp_path / "s", replicates=2)  # without prices
    assert sweep(tmp_path / "s", replicates=3, calls=in_euros).calls.currency == "EUR"


def test_another_study_is_told(here, tmp_path):
    sweep(tmp_path / "s")
    for changed, said in (
        ({"seed": 4}, "another study: its seed is 3, and here 4"),
        ({"parameters": {"chance": [0.5, 1], "row": [1]}}, "the parameter 'row'"),
        ({"outcomes": Mean("knows")}, "another study: its counts|another study: its option 'collect'"),
        ({"agents": 5}, "agents= differs from that"),
        ({"rules": [rules.MaxLength(5)]}, "rules= (uses, )?differs from that"),
        ({"until": 4}, "until= differs from that"),
        ({"graph": [(0, 1)]}, "graph= differs from that"),
        ({"shared": {"a": 1}}, "shared= differs from that"),
    ):
        with pytest.raises(ConfigError, match=said):
            sweep(tmp_path / "s", **changed)
    with pytest.raises(ConfigError, match=r"another study: its model is .*person.*, and here .*"):
        sweep(tmp_path / "s", lambda me, inbox, chance: None)
    record = json.loads((tmp_path / "s" / "_study.json").read_text())
    record["sources"]["model"] = "0"
    (tmp_path / "s" / "_study.json").write_text(json.dumps(record))
    with pytest.raises(ConfigError, match="the source of model= has changed since the study in"):
        sweep(tmp_path / "s")


def test_workers_and_drivers_that_die_leave_each_run_once_in_the_same_files(tmp_path, monkeypatch):
    """A thousand runs, in which every twentieth worker dies, and so does the program at last."""
    chance = random.Random(1)
    carried = Counter()

    def carry_out(template, planned):
        if chance.random() < disturbed / 20:
            if chance.random() < 0.1:
                raise KeyboardInterrupt
            return None
        carried[planned.key] += 1
        return EndedRun({"value": planned.seed / 7}, planned.key, chance.random())

    work_here(monkeypatch, carry_out)
    design = {"chance": [*range(50)]}
    disturbed = 1
    for _ in range(1000):
        try:
            study = sweep(tmp_path / "s", parameters=design, replicates=20, workers=4)
        except KeyboardInterrupt:
            assert len(Study(tmp_path / "s")) == len(carried)
            continue
        if not study.to_pandas()["error"].notna().any():
            break
    assert {*carried.values()} == {1}
    assert len(carried) == 1000
    disturbed = 0
    sweep(tmp_path / "other", parameters=design, replicates=20, workers=1)
    for name in ("runs.parquet",):
        assert (tmp_path / "s" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == [
        *("_lock", "_study.json", "runs.parquet", "seconds.parquet")
    ]


def test_a_run_whose_workers_die_each_time_is_an_error_that_the_next_call_tries_again(tmp_path, monkeypatch):
    work_here(monkeypatch, lambda template, planned: None)
    study = sweep(tmp_path / "s", parameters={"chance": [1]})
    assert study.to_pandas()["error"][0].startswith("WorkerDied: the process of this run ({'chance': 1}) died 3 times")
    work_here(monkeypatch)
    assert sweep(tmp_path / "s", parameters={"chance": [1]}).to_pandas()["error"].isna().all()


def test_a_series_from_parts_in_any_order_is_the_same_file(tmp_path, monkeypatch):
    work_here(monkeypatch)
    monkeypatch.setattr(study_driver, "_FLUSH_RUNS", 1)
    for workers in (1, 3):
        sweep(tmp_path / f"{workers}", outcomes=Mean("knows"), replicates=3, workers=workers)
    for name in KEPT:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "3" / name).read_bytes()
    assert pq.read_table(tmp_path / "1" / "series.parquet").num_rows == 18


def test_a_study_that_was_opened_before_it_grew_or_ended_has_the_series_of_its_runs(here, tmp_path, monkeypatch):
    first = sweep(tmp_path / "s", collect=lambda me: {"sum": me.state["knows"] + me.step})
    before = first.series
    finish, seen = StudyFolder.finish, []

    def look_and_finish(self, runs):
        study = Study(tmp_path / "s")
        assert len(study) == 6
        stale = self.files()
        finish(self, runs)
        listings = [stale]
        monkeypatch.setattr(StudyFolder, "files", lambda self: listings.pop() if listings else files(self))
        late = Study(tmp_path / "s")
        assert len(late) == 6
        seen.extend([study.series, late.series])

    files = StudyFolder.files
    monkeypatch.setattr(StudyFolder, "finish", look_and_finish)
    collect = {"collect": lambda me: {"sum": me.state["knows"] + me.step}}
    grown = sweep(tmp_path / "s", parameters={"chance": [0.1, 0.5, 1]}, replicates=2, **collect).series
    pd.testing.assert_frame_equal(first.series, before)
    order = ["chance", "replicate", "step", "agent"]
    for each in seen:
        pd.testing.assert_frame_equal(each.sort_values(order, ignore_index=True), grown)
    first._files.erase()
    with pytest.raises(LogError, match="was begun anew after you opened it: open it again"):
        _ = first.series


def valued(me, inbox, scale):
    me.state["knows"] = scale


class Valued:
    def __init__(self, scale):
        self.scale = scale

    def __call__(self, me, inbox):
        valued(me, inbox, self.scale)

    def live(self, me, inbox):
        valued(me, inbox, self.scale)


def closed(scale):
    def person(me, inbox):
        valued(me, inbox, scale)

    return person


def defaulted(scale):
    def person(me, inbox, *, _scale=scale):
        valued(me, inbox, _scale)

    return person


MODELS = {
    "'scale' of a partial": lambda scale: partial(valued, scale=scale),
    "'scale' of closed": closed,
    "a default of defaulted": defaulted,
    "the object of Valued": Valued,
    "the object of Valued.live": lambda scale: Valued(scale).live,
}


@pytest.mark.parametrize("what", MODELS)
def test_another_value_that_a_model_is_bound_to_is_another_study(here, tmp_path, what):
    """The study had the results of the former value, as the source was the same."""

    def study(scale):
        return batch_run(
            MODELS[what](scale), agents=2, until=1, outcomes=Mean("knows"), folder=tmp_path / "s", progress=False
        )

    assert study(1).to_pandas()["knows"].tolist() == study(1).to_pandas()["knows"].tolist() == [1]
    with pytest.raises(ConfigError, match=f"^{what}.*, which model= uses, differs from that of the study in"):
        study(2)
    record = json.loads((tmp_path / "s" / "_study.json").read_text())
    del record["values"]  # version 1.0.0 recorded none
    (tmp_path / "s" / "_study.json").write_text(json.dumps(record))
    assert len(study(2)) == 1


def test_another_value_of_a_function_in_an_aggregate_is_another_study(here, tmp_path):
    """The study had the results of the former value."""

    def study(scale):
        return sweep(tmp_path / "s", outcomes=Mean("mood", lambda me: scale * me.state["knows"]))

    assert len(study(1)) == len(study(1)) == 2
    with pytest.raises(ConfigError, match=r"^'scale' of .*, which collect= uses, differs from that of the study in"):
        study(2)


class Words(rules.Rule):
    name = "words"

    def __init__(self, is_good=None):
        self.is_good = is_good

    def check(self, message):
        return rules.ALLOW


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        (rules.AllowGraph([(0, 1), ("a", 1)]), rules.AllowGraph([("a", 1), (0, 1)]), rules.AllowGraph([(0, 1)])),
        (rules.AllowGraph([(0, 1)]), rules.AllowGraph([(0, 1)]), rules.AllowGraph([(0, 2)])),
        (rules.BlackList([(0, 1)]), rules.BlackList([(0, 1)]), rules.BlackList([(0, 2)])),
        *(
            (ban(rules.Pattern(["rude"]), 2), ban(rules.Pattern(["rude"]), 2), ban(rules.Pattern(["odd"]), 2))
            for ban in (rules.EdgeBan, rules.SenderBan)
        ),
    ],
)
def test_another_value_of_a_rule_is_another_study(here, tmp_path, one, same, other):
    """The study had the results of the former rule."""
    for rule in (one, same):
        assert len(sweep(tmp_path / "s", rules=[rule])) == 2
    with pytest.raises(
        ConfigError, match=rf"^(the rule '{one.name}', which rules= uses,|rules=) differs from that of the"
    ):
        sweep(tmp_path / "s", rules=[other])


def test_another_function_in_a_rule_is_another_study(here, tmp_path):
    """The study had the results of the former function."""
    sweep(tmp_path / "s", rules=[Words(lambda text: "a" in text)])
    with pytest.raises(ConfigError, match=r"^'is_good' of the rule 'words', which rules= uses, differs"):
        sweep(tmp_path / "s", rules=[Words(lambda text: "b" in text)])


def test_another_source_of_a_rule_is_another_study(here, tmp_path):
    sweep(tmp_path / "s", rules=[Words()])
    record = json.loads((tmp_path / "s" / "_study.json").read_text())
    assert record["values"]["rules"].keys() == {"the rule 'words'", f"the source of {__name__}.Words"}
    record["values"]["rules"][f"the source of {__name__}.Words"] = "0"
    (tmp_path / "s" / "_study.json").write_text(json.dumps(record))
    with pytest.raises(ConfigError, match=r"^the source of .*Words, which rules= uses, differs"):
        sweep(tmp_path / "s", rules=[Words()])


def test_a_folder_that_is_full_keeps_what_it_has(tmp_path, monkeypatch):
    from ray_messaging.eventlog.folder import Folder

    work_here(monkeypatch)
    monkeypatch.setattr(study_driver, "_FLUSH_RUNS", 1)
    write, written = Folder.write_file, []

    def full(self, name, data):
        if name.startswith("runs-"):
            written.append(name)
            if len(written) > 2:
                raise OSError(28, "No space left on device")
        write(self, name, data)

    monkeypatch.setattr(Folder, "write_file", full)
    with pytest.raises(LogError, match="No space left on device; the runs that it has are kept"):
        sweep(tmp_path / "s", replicates=2)
    assert len(Study(tmp_path / "s")) == 2
    monkeypatch.setattr(Folder, "write_file", write)
    assert len(sweep(tmp_path / "s", replicates=2)) == 4


def test_two_programs_in_one_folder(here, tmp_path):
    with StudyFolder(tmp_path / "s").alone(), pytest.raises(LogError, match="another process is writing the study"):
        sweep(tmp_path / "s")


def test_a_study_on_an_object_store_is_refused():
    with pytest.raises(ConfigError, match="must be on a disk"), StudyFolder("mock:///bucket/study").alone():
        pass


def test_no_study(tmp_path):
    with pytest.raises(LogError, match="has no study"):
        Study(tmp_path)


def test_a_temporary_folder_ends_with_its_study(here):
    study = sweep(None)
    folder = Path(study.folder)
    assert len(study.to_pandas()) == 2
    assert folder.is_dir()
    study._owner.cleanup()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"workers": 0}, "workers=0"),
        ({"on_existing": "keep"}, "on_existing='keep'"),
        ({"replicates": 0}, "replicates=0"),
        ({"outcomes": 7}, "outcomes= has 7"),
        ({"outcomes": {"n": 7}}, "outcomes= has 7 under 'n': write a function"),
        ({"outcomes": [{"n": len}, {"n": len}]}, "two outcomes have the name 'n'"),
        ({"outcomes": [Mean("n"), {"n": len}]}, "two outcomes have the name 'n'"),
        ({"outcomes": Mean("a"), "collect": lambda me: {}}, "a run collects either"),
        ({"by": "town"}, "by='town'"),
        ({"collect_every": 0}, "collect_every=0"),
        ({"parameters": {"chanse": [1]}}, "model= takes 'chance', which is not a parameter"),
        ({"parameters": {"chance": [1], "n": [1]}}, "no function takes the parameter 'n'"),
        ({"parameters": {"chance": [1], "step": [1]}}, "the parameter 'step' has the same name as a column"),
        ({"parameters": {"chance": [1], "agent": [1]}}, "the parameter 'agent' has the same name as a column"),
        ({"model": 7}, "model=7 must be a function"),
    ],
)
def test_bad_arguments_are_named_before_anything_begins(tmp_path, changed, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        sweep(tmp_path / "s", **changed)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"outcomes": [Mean("knows"), lambda result: {"knows": 7}]}, "two outcomes have the name 'knows'"),
        ({"outcomes": lambda result: {"chance": 7}}, "the outcome 'chance' has the name of another column"),
        *(
            ({"collect": lambda me, name=name: {name: 7}}, f"the collected value {name!r} has the name of another")
            for name in ("chance", "key", "replicate")
        ),
    ],
)
def test_no_column_takes_the_place_of_another(here, tmp_path, changed, said):
    table = sweep(tmp_path / "s", **changed).to_pandas()
    assert [said in error for error in table["error"]] == [True, True]


def test_progress_says_how_long_it_takes(here, tmp_path, capsys, monkeypatch):
    from ray_messaging.common import progress_line

    monkeypatch.setattr(progress_line, "_LINE_S", 0)
    sweep(tmp_path / "s", progress=True)
    assert re.search(r"^2 of 2 runs, about 0 s left$", capsys.readouterr().err, re.MULTILINE)


def test_a_plot_has_a_line_for_each_value(here, tmp_path):
    study = sweep(tmp_path / "s", outcomes=Mean("knows"), replicates=2)
    figure = study.plot("chance", "knows")
    assert [*figure.axes[0].lines[0].get_xdata()] == [0.5, 1]
    by = study.plot("step", "knows", by="chance")
    assert [text.get_text() for text in by.axes[0].get_legend().get_texts()] == ["chance = 0.5", "chance = 1"]
    with pytest.raises(
        ConfigError, match="x='chanse' is not a parameter of the study: write one of 'chance', or x='step'"
    ):
        study.plot("chanse", "knows")
    with pytest.raises(ConfigError, match="no run has the outcome 'nose': write one of 'knows'"):
        study.plot("chance", "nose")
    with pytest.raises(ConfigError, match="y='nose' was not collected: write one of 'knows'"):
        study.plot("step", "nose")


def test_a_study_measures_chosen_agents(here, tmp_path):
    outcomes = [Mean("knows"), Of([0], Mean("first", of="knows"))]
    study = sweep(tmp_path / "a", outcomes=outcomes)
    assert study.to_pandas()["first"].tolist() == [1, 1]
    assert sweep(tmp_path / "a", outcomes=outcomes).to_pandas().equals(study.to_pandas())
    with pytest.raises(ConfigError, match="another study: its option 'collect'"):
        sweep(tmp_path / "a", outcomes=[Mean("knows"), Of([1], Mean("first", of="knows"))])
    rows = sweep(tmp_path / "b", collect=Of([0, 3], lambda me: {"heard": me.state["knows"]}))
    assert {*rows.series.agent} == {0, 3}
    told = r"its option 'collect' measures the agents \[0, 3\], and here the agents \[0\]; pass another folder"
    with pytest.raises(ConfigError, match=told):
        sweep(tmp_path / "b", collect=Of([0], lambda me: {"heard": me.state["knows"]}))
    gone = sweep(tmp_path / "c", outcomes=Of([3, "boss"], Mean("first", of="knows")))
    assert gone.to_pandas().error.str.contains("does not have, 'boss'").all()


def test_runs_of_a_study_end_by_a_condition(here, tmp_path):
    def never(now):
        return False

    def all_know(now, goal):
        return now["knows"] >= goal

    study = sweep(
        tmp_path / "a", parameters={"chance": [0.6, 1], "goal": [0.5, 1]}, until=all_know, max_steps=lambda goal: 30,
        outcomes=[Mean("knows"), {"steps": lambda result: result.steps}],
    )  # fmt: skip
    table = study.to_pandas()
    assert table.error.isna().all()
    assert table.knows.tolist() == table.goal.tolist()
    assert table.steps.tolist()[2:] == [2, 4]
    for _, row in table.iterrows():
        one = run(
            lambda me, inbox, row=row: person(me, inbox, chance=row.chance), agents=4, seed=int(row.seed),
            until=lambda now, row=row: now["knows"] >= row.goal, max_steps=30, collect=Mean("knows"),
            start=lambda me: {"knows": me.id == 0}, progress=False,
        )  # fmt: skip
        assert (one.steps, one.series.knows.iloc[-1]) == (row.steps, row.knows)
    for changed, said in (
        ({"until": lambda now: True}, "until= takes 'now', which is not a parameter .* pass max_steps="),
        ({"until": 5, "max_steps": 5}, "max_steps=5 is only for a condition"),
        ({"until": all_know, "max_steps": 5, "collect": Mean("knows")}, "until= takes 'goal', which is not a param"),
        ({"until": lambda now: True, "max_steps": 5}, "pass collect="),
        (
            {"until": never, "max_steps": 2, "collect": Mean("knows"), "vary_from": 2, "before": {"chance": 1}},
            "max_steps=2 must be above",
        ),
        ({"whole_cluster": True, "workers": 2}, "whole_cluster=True .* cannot be combined with workers="),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=said):
            sweep(tmp_path / "b", **changed)
