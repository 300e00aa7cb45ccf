"""The record of a run: its starts, one file that is whole at any time, no secrets."""

import sys

import pytest

from ray_messaging.errors import ConfigError, LogError
from ray_messaging.eventlog.event_log import EventLog
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.folder_records import (
    RuleChange,
    RunStart,
    claim,
    command_line,
    note_end,
    note_missing,
    note_model,
    note_start,
    run_facts,
    versions,
    write_rule_changes,
)


@pytest.fixture
def folder(tmp_path):
    found = Folder(tmp_path / "log")
    found.prepare("town")
    return found


def start(run, on_existing="error"):
    rules = [{"name": "quota", "limit": 3}]
    return RunStart(run, "2026-11-21T10:00:00+00:00", on_existing, ["python", "town.py"], {"ray": "2"}, "Valkey", rules)


def test_a_folder_without_a_record(folder):
    assert run_facts(folder) is None
    note_model(folder, {}, {})
    note_end(folder, "one", {})
    assert run_facts(folder) is None


def test_a_run_that_was_killed_and_resumed(folder):
    note_start(folder, "town", {"seed": 7}, start("one"))
    note_start(folder, "town", {"seed": 7}, start("one"))  # its actor began again
    first, second = {"until": 20, "run": "one"}, {"until": 30, "run": "two"}
    assert [note_model(folder, {"until": until}, {"east": 2}) for until in (10, 20)] == [None, None]
    note_start(folder, "town", {"seed": 7}, start("two", "resume"))
    assert [note_model(folder, {"until": 30}, {"east": 2}) for _ in range(2)] == [first, None]
    note_end(folder, "two", {"east": 2, "west": 3})
    assert run_facts(folder)["rule_changes"] == []
    write_rule_changes(folder, [RuleChange(5.0, "insert", {"name": "quota"}, step=4, exact=True)])
    found = run_facts(folder)
    assert (found["format"], found["experiment"], found["steps"]) == (1, "town", {"seed": 7})
    assert (found["groups"], found["model"]) == ({"east": 2, "west": 3}, second)
    one, two = found["starts"]
    assert (one["run"], one["ended"], two["run"], two["on_existing"]) == ("one", None, "two", "resume")
    assert two["ended"].endswith("+00:00")
    assert one["rules"] == [{"name": "quota", "limit": 3}]
    assert found["rule_changes"] == [
        {"at": 5.0, "change": "insert", "rule": {"name": "quota"}, "step": 4, "exact": True}
    ]


def test_a_run_that_sent_nothing_has_an_empty_log(folder):
    note_start(folder, "town", None, start("one"))
    with pytest.raises(LogError, match="holds no event log"):
        EventLog.open(folder.where)  # it may be running
    note_end(folder, "one", {"east": 2})
    log = EventLog.open(folder.where)
    assert (len(log.query()), len(log.count()), log.run["groups"]) == (0, 0, {"east": 2})
    assert log.stats()["rows"] == 0
    assert log.balance().sends == 0


def test_a_run_that_lost_all_its_rows_has_no_log(folder):
    note_start(folder, "town", None, start("one"))
    claim(folder, "one/log", "town")
    note_missing(folder, "one/log", "the server lost its data before 7 rows were written")
    note_end(folder, "one", {"east": 2})
    with pytest.raises(LogError, match="holds no event log: the server lost its data"):
        EventLog.open(folder.where)


def test_a_run_without_steps_has_no_digests_and_is_not_compared(tmp_path):
    logs = []
    for name, steps in (("with", {"seed": 7}), ("without", None)):
        folder = Folder(tmp_path / name)
        folder.prepare("town")
        note_start(folder, "town", steps, start("one"))
        note_end(folder, "one", {})
        logs.append(EventLog.open(folder.where))
    with pytest.raises(ConfigError, match="log belongs to a run without steps"):
        logs[0].diff(logs[1])
    for digest in (logs[1].digest, logs[1].history_digest):
        with pytest.raises(ConfigError, match="log belongs to a run without steps"):
            digest(0)


def test_a_reset_begins_a_new_record(folder):
    note_start(folder, "town", None, start("one"))
    note_start(folder, "town", None, start("two", "reset"))
    assert [each["run"] for each in run_facts(folder)["starts"]] == ["two"]


@pytest.mark.parametrize(
    ("name", "text", "error", "words"),
    [
        *(("_run.json", text, LogError, r"_run\.json is damaged") for text in ("{", "[]", '{"format": 1}', "7")),
        ("_run.json", '{"format": "x"}', LogError, r"_run\.json is damaged"),
        (
            "_run.json",
            '{"format": 0}',
            ConfigError,
            "has format 0, and this version of ray_messaging reads only format 1",
        ),
        (
            "_run.json",
            '{"format": 2}',
            ConfigError,
            "has format 2, and this version of ray_messaging reads only format 1",
        ),
        ("_rule_changes.json", "[{]", LogError, r"_rule_changes\.json are damaged"),
    ],
)
def test_what_cannot_be_read_is_named(folder, tmp_path, name, text, error, words):
    note_start(folder, "town", None, start("one"))
    assert {path.name for path in (tmp_path / "log").iterdir()} == {"_run.json"}  # readers of Parquet skip a "_"
    (tmp_path / "log" / name).write_text(text)
    with pytest.raises(error, match=words):
        run_facts(folder)


def test_a_command_has_no_secrets(monkeypatch):
    given = ["python", "town.py", "--redis", "redis://me:pw@host:1", "--api-key", "abc", "--password=pw", "-n", "5"]
    monkeypatch.setattr(sys, "orig_argv", [*given, "--token", "3", "x" * 300])
    found = command_line()
    assert found[:6] == ["python", "town.py", "--redis", "redis://***@host:1", "--api-key", "***"]
    assert found[6:] == ["--password=***", "-n", "5", "--token", "***", "x" * 200]


def test_versions_name_what_a_result_depends_on():
    assert versions().keys() == {"python", "ray-messaging", "ray", "numpy", "pyarrow"}
