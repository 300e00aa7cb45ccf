"""The log on the command line: of a running experiment; of a folder: tests/unit/cli/test_log.py."""

import json
import sys

import pytest
from typer.testing import CliRunner

from ray_messaging.cli import app


def ask(*args, code=0):
    """Run `ray-messaging log ...`; return its output, for an expected failure its errors."""
    found = CliRunner().invoke(app, ["log", *map(str, args)])
    assert found.exit_code == code, found.output
    return found.stderr if code else found.stdout


def objects(text):
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def town(logged):
    """Give an experiment in which 0 may write to nobody, with ten new rows, and the position before them."""
    messaging, west, _ = logged
    before = messaging.log.end
    west.send_columns(range(10), range(10, 20), {"content": "hello"})
    return messaging, before


def test_sent_messages_are_in_the_log_at_once(town):
    messaging, before = town
    assert f"{before + 11:,} rows, from " in ask("stats", messaging.exp_id)
    (blocked,) = objects(ask("query", messaging.exp_id, "--json", "--fate", "blocked", "--after", before))
    assert (blocked["from_id"], blocked["to_id"], blocked["rule"]) == (0, 10, "black_list")
    assert "agent 0 may not write to any agent" in ask("conversation", messaging.exp_id, 0, 10)


def test_sql_reads_rows_that_are_in_no_file_yet(town):
    messaging, before = town
    query = f"select fate, count(*) as n from messages where position > {before} group by fate order by n"
    expected = [{"fate": "blocked", "n": 1}, {"fate": "delivered", "n": 9}]
    assert messaging.log.sql(query).to_pylist() == objects(ask("sql", messaging.exp_id, query, "--json")) == expected
    assert "INSERT is not allowed" in ask("sql", messaging.exp_id, "insert into messages select 1", code=2)


def test_what_ran_is_shown(logged):
    exp_id = logged[0].exp_id
    shown = ask("run", exp_id)
    assert shown.startswith(f"Experiment {exp_id}\n")
    assert "black_list" in shown
    assert "(not closed)" in shown
    (found,) = objects(ask("run", exp_id, "--json"))
    (start,) = found["starts"]
    assert [rule["name"] for rule in start["rules"]] == ["black_list"]
    assert start["versions"].keys() >= {"python", "ray", "ray-messaging"}
    assert start["server"].startswith("Valkey ")
    assert start["command"] == sys.orig_argv
    assert found["steps"] is None


def test_the_tail_ends_at_its_limit(town):
    lines = ask("tail", town[0].exp_id, "--limit", 3).splitlines()
    assert len(lines) == 3
    assert all(" -> " in line for line in lines)


def test_an_unknown_experiment_gets_an_error(ray_cluster):
    error = ask("stats", "nowhere", code=2)
    assert error.startswith(
        "error: there is no folder 'nowhere' here, and no experiment 'nowhere' runs in the Ray cluster"
    )


def test_an_experiment_without_a_log_gets_an_error(messaging):
    assert "keeps no event log" in ask("stats", messaging.exp_id, code=2)
