"""The log on the command line: of a running experiment, and of the folder that it leaves."""

import json
import sys
import uuid

import pytest
from typer.testing import CliRunner

from ray_messaging import Messaging, rules
from ray_messaging.cli import app


def ask(*args, code=0):
    """Run `ray-messaging log ...`; return its output, for an expected failure its errors."""
    found = CliRunner().invoke(app, ["log", *map(str, args)])
    assert found.exit_code == code, found.output
    return found.stderr if code else found.stdout


def objects(text):
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def town(ray_cluster, tmp_path_factory):
    """Give an experiment in which 0 may not write to 10, and the answers that it gives while running."""
    log_dir = tmp_path_factory.mktemp("cli") / "log"
    exp_id = f"town-{uuid.uuid4().hex[:8]}"
    only = [rules.BlackList([(0, 10)]), rules.Pattern(["casino"], action="mask")]
    with Messaging.start(exp_id, rules=only, log_dir=log_dir) as messaging:
        west = messaging.create_group("west", range(10))
        messaging.create_group("east", range(10, 20))
        west.send_columns(range(10), range(10, 20), {"content": "to the casino"})
        yield messaging


def test_sent_messages_are_in_the_log_at_once(town):
    assert "10 rows, from " in ask("stats", town.exp_id)
    (blocked,) = objects(ask("query", town.exp_id, "--json", "--fate", "blocked"))
    assert (blocked["from_id"], blocked["to_id"], blocked["rule"]) == (0, 10, "black_list")
    assert "agent 0 may not write to agent 10" in ask("conversation", town.exp_id, 0, 10)
    assert 'it was {"content":"to the casino"}' in ask("query", town.exp_id, "--agent", 4)


def test_sql_reads_rows_that_are_in_no_file_yet(town):
    query = "select fate, count(*) as n from messages group by fate order by n"
    expected = [{"fate": "blocked", "n": 1}, {"fate": "delivered", "n": 9}]
    assert town.log.sql(query).to_pylist() == objects(ask("sql", town.exp_id, query, "--json")) == expected
    assert "INSERT does not only read" in ask("sql", town.exp_id, "insert into messages select 1", code=2)


def test_what_ran_is_shown(town):
    shown = ask("run", town.exp_id)
    assert shown.startswith(f"Experiment {town.exp_id}\n")
    assert "black_list" in shown
    assert "(not closed)" in shown
    (found,) = objects(ask("run", town.exp_id, "--json"))
    (start,) = found["starts"]
    assert [rule["name"] for rule in start["rules"]] == ["black_list", "pattern"]
    assert start["versions"].keys() >= {"python", "ray", "ray-messaging"}
    assert start["server"].startswith("Valkey ")
    assert start["command"] == sys.orig_argv
    assert (found["steps"], found["rule_changes"]) == (None, [])


def test_the_tail_ends_at_its_limit(town):
    lines = ask("tail", town.exp_id, "--limit", 3).splitlines()
    assert len(lines) == 3
    assert all(" -> " in line for line in lines)


def test_an_unknown_experiment_gets_an_error(ray_cluster):
    error = ask("stats", "nowhere", code=2)
    assert error.startswith(
        "error: there is no folder 'nowhere' here, and no experiment 'nowhere' runs in the Ray cluster"
    )


def test_an_experiment_without_a_log_gets_an_error(messaging):
    assert "keeps no event log" in ask("stats", messaging.exp_id, code=2)


def test_the_folder_gives_the_same_answers_afterwards(town, tmp_path):
    asked = [["query", "--json"], ["conversation", 0, 10]]
    running = [ask(name, town.exp_id, *rest) for name, *rest in asked]
    folder = town._connection.experiment.log_dir
    town.shutdown()
    assert [ask(name, folder, *rest) for name, *rest in asked] == running
    path = tmp_path / "rows.jsonl"
    assert ask("export", folder, path, "--agent", 0) == f"Wrote 1 row to {path}.\n"
    assert objects(path.read_text())[0]["fate"] == "blocked"
