"""What the page of a study shows: the tables of `Study`, and clear words where there is too much for a page."""

import pytest
from support.studies import written_study

from ray_messaging import Study
from ray_messaging.errors import ConfigError
from ray_messaging.inspector.pages import study_charts
from ray_messaging.inspector.sources.study_facts import Choice, StudyFacts


def outcome(run):
    return {"knows": run.row["chance"] + run.replicate, "word": "x"}


def facts(folder, parameters, replicates=2, outcomes=outcome):
    study = written_study(folder, parameters, replicates, outcomes, planned=40)
    return study, StudyFacts(folder)


def test_a_study_is_shown_as_study_says_it(tmp_path):
    study, found = facts(tmp_path / "s", {"chance": [0.3, 0.1], "limit": ["none", "one"]})
    table = found.table()
    assert (table.ended, table.planned, table.failed, table.outcomes) == (8, 40, 0, ["knows"])
    assert table.rows == study.summary().to_dict("records")
    assert found.table() is table
    curves = found.curves(Choice("", "", "limit"))
    assert curves.choice == ("knows", "chance", "limit")
    assert [*curves.lines["none"]] == [0.1, 0.3]
    assert curves.lines["none"][0.3].mean == pytest.approx(0.8)
    cells = found.heat_map(Choice("knows", "limit", ""))
    assert (cells.columns, cells.rows) == (["none", "one"], ["0.1", "0.3"])
    assert [mean for *_, mean in cells.means] == pytest.approx([0.6, 0.8, 0.6, 0.8])
    assert [(column, row) for column, row, _ in cells.means] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_what_is_too_much_for_a_page_is_said(tmp_path):
    _, found = facts(tmp_path / "s", {"chance": [number / 300 for number in range(300)], "size": range(10)}, 1)
    with pytest.raises(ConfigError, match="the parameter 'chance' has 300 values, and the page draws at most 200"):
        found.curves(Choice("", "", ""))
    with pytest.raises(ConfigError, match="'chance' has 300 values, and the page draws at most 9"):
        found.curves(Choice("", "size", "chance"))
    with pytest.raises(ConfigError, match="have 3,000 pairs of values, and the page draws at most 2,500"):
        found.heat_map(Choice("", "chance", "size"))
    assert (len(found.table().rows), found.table().all_rows) == (200, 3_000)


def test_a_study_without_parameters_or_outcomes_has_no_curves(tmp_path):
    _, found = facts(tmp_path / "none", {"chance": [1]}, 2, lambda run: {"word": "x"})
    assert (found.curves(Choice("", "", "")), found.heat_map(Choice("", "", ""))) == (None, None)
    _, found = facts(tmp_path / "one", {"chance": [1]})
    assert found.heat_map(Choice("", "", "")) is None


def test_a_table_that_was_made_while_the_study_went_on_is_not_kept(tmp_path, monkeypatch):
    """Another reader has read the study again meanwhile."""
    _, found = facts(tmp_path / "s", {"chance": [0.1]})
    summary = Study._summary

    def slow(study, *asked):
        monkeypatch.setattr(Study, "_summary", summary)
        written_study(tmp_path / "s", {"chance": [0.1, 0.3]}, 2, outcome, planned=40)
        found.curves(Choice("", "", ""))
        return summary(study, *asked)

    monkeypatch.setattr(Study, "_summary", slow)
    assert found.table().ended == 2
    assert found.table().ended == 4


def test_long_values_and_none_stay_apart(tmp_path):
    prompts = [f"{'You live in a town. ' * 5}You are {mood}." for mood in ("sad", "glad")]
    _, found = facts(tmp_path / "s", {"chance": [0.1, 0.3], "prompt": [*prompts, None]})
    by_prompt = found.curves(Choice("", "chance", "prompt"))
    assert [*by_prompt.lines] == [*prompts, "None"]
    names = [each["name"] for each in study_charts.curves(by_prompt)["series"][::3]]
    assert len({*names}) == 3
    assert all(len(each) <= 60 for each in names)
    over_prompts = study_charts.curves(found.curves(Choice("", "prompt", "")))
    assert [place for place, _ in over_prompts["series"][0]["data"]] == [0, 1, 2]
    assert len(over_prompts["xAxis"]["data"]) == 3
