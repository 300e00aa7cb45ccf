"""The log on the command line: output for people and for programs, and errors for invalid options."""

import json
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from support.log_queries import ViewSource, row, write_folder
from typer.testing import CliRunner

from ray_messaging.cli import app
from ray_messaging.cli.log_show import sparkline
from ray_messaging.errors import Closed, LogError
from ray_messaging.eventlog.event_log import EventLog

ROWS = [
    row(0, 1, 2, step=1, labels=["kind"]),
    row(1, 2, 1, step=2, text="and to you"),
    row(2, "ann", 1, step=3, text="x" * 200),
    row(3, 2, 1, fate="blocked", rule="black_list", reason="this pair is on the black list"),
    row(4, None, -5),
    row(5, 2, None),
]


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "log", [ROWS[:4], ROWS[4:]])


@pytest.fixture
def run(folder):
    """Return a function that runs `ray-messaging log COMMAND FOLDER ...` and returns its output, no terminal's."""

    def run(command, *args, exit_code=0):
        found = CliRunner().invoke(app, ["log", command, folder.where, *map(str, args)])
        assert found.exit_code == exit_code, found.output
        assert "\x1b" not in found.output
        return found.stdout if exit_code == 0 else found.stderr

    return run


def objects(text):
    return [json.loads(line) for line in text.splitlines()]


def test_stats(run):
    words = " ".join(run("stats").split())
    assert "6 rows, from 2023-11-14 22:13:20.000 to 2023-11-14 22:13:25.000 UTC, of 3 writers to 3 readers" in words
    for part in (
        "delivered 5 83.3% ████",
        "blocked 1 16.7%",
        "black_list 1 0",
        "ann 1",
        "the user 1",
        "from \\ to m s 5",
    ):
        assert part in words
    assert "a column is 100 ms" in words
    assert "5" in " ".join(run("stats", "--fate", "delivered").split()).split(" rows")[0]
    assert run("stats", "--from-id", "99").startswith("No rows (2 segments")


def test_stats_for_programs(run):
    (found,) = objects(run("stats", "--json", "--agent", "ann"))
    assert (found["rows"], found["fates"]["delivered"], found["busiest_writers"]) == (1, 1, [["ann", 1]])


def test_sql(run, monkeypatch):
    shown = run("sql", "select fate, count(*) as messages from messages group by fate order by fate")
    assert [line.split() for line in shown.splitlines()] == [["fate", "messages"], ["blocked", "1"], ["delivered", "5"]]
    assert "x" * 200 not in run("sql", "select payload from messages")
    many = run("sql", "select unnest(range(60)) as n")
    assert many.endswith("These are the first of 60 rows: --json prints all.\n")
    assert 'column "nope" not found' in run("sql", "select nope from messages", exit_code=2)
    assert "DROP is not allowed" in run("sql", "drop view messages", exit_code=2)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert run("sql", "select 1", exit_code=2) == "error: log.sql() needs duckdb: pip install 'ray-messaging[sql]'\n"


def test_sql_for_programs(run):
    query = "select from_id, sent_at, labels, delivered_at - sent_at as took from messages where position < 2"
    first, second = objects(run("sql", query, "--json"))
    assert first == {"from_id": "1", "sent_at": "2023-11-14T22:13:20Z", "labels": ["kind"], "took": "PT0.001S"}
    assert second["labels"] is None
    assert len(objects(run("sql", "select unnest(range(60)) as n", "--json"))) == 60


@pytest.mark.parametrize(("name", "head"), [("a.png", b"\x89PNG"), ("a.pdf", b"%PDF"), ("a.SVG", b"<?xml")])
def test_a_picture(run, tmp_path, name, head):
    assert f"The picture is in {tmp_path / name}" in run("stats", "--plot", tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(head)
    run("stats", "--plot", tmp_path / name, "--from-id", "99")


def test_a_picture_that_cannot_be(run, tmp_path, monkeypatch):
    assert "ends in .png or .pdf or .svg" in run("stats", "--plot", "a.gif", exit_code=2)
    assert "draw into another file" in run("stats", "--plot", tmp_path / "nowhere" / "a.png", exit_code=2)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "pip install 'ray-messaging[plot]'" in run("stats", "--plot", tmp_path / "a.png", exit_code=2)


def test_query(run):
    text = run("query", "--from-id", 2, "--limit", 2)
    words = " ".join(text.split())
    assert '2023-11-14 22:13:21.000 2 1 delivered {"content":"and to you"}' in words
    assert "black_list this pair is on the black list" in words
    assert "There may be more: --after 3" in words
    assert "There may be more" not in run("query", "--from-id", 2, "--after", 3)
    assert "exps:test:user-payback" in run("query", "--to-id", "")
    assert run("query", "--rule", "nobody").strip() == "No row matches."


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ([], [0, 1, 2, 3, 4, 5]),
        (["--from-id", ""], [4]),
        (["--agent", "ann", "--agent", "-5"], [2, 4]),
        (["--step", "2"], [1]),
        (["--step", "2:"], [1, 2]),
        (["--step", ":3", "--fate", "delivered"], [0, 1]),
        (["--since", "2023-11-14T22:13:23", "--until", "1700000005"], [3, 4]),
        (["--contains", "to you"], [1]),
        (["--channel", "exps:test:user-payback"], [5]),
        (["--limit", "1", "--after", "1"], [2]),
        (["--until", "20200101"], []),  # a date and no second of 1970
        (["--since", "20200101", "--until", "20990101"], [0, 1, 2, 3, 4, 5]),
    ],
)
def test_query_for_programs(run, options, numbers):
    found = objects(run("query", "--json", *options))
    assert [one["message_id"] for one in found] == [f"s-1-{number}" for number in numbers]


def test_a_row_for_programs(run):
    (found,) = objects(run("query", "--json", "--limit", 1))
    assert (found["from_id"], found["payload"], found["labels"]) == (1, {"content": "hello 0"}, ["kind"])
    assert (found["sent_at"], found["position"]) == (1_700_000_000.0, 0)


def test_conversation(run):
    lines = run("conversation", 1, 2).splitlines()
    assert [line.split("  ")[1] for line in lines] == ["1 -> 2", "2 -> 1", "2 -> 1"]
    assert lines[0].endswith('{"content":"hello 0"}  [kind]')
    assert "blocked (black_list: this pair is on the black list)" in lines[2]
    assert len(objects(run("conversation", "", "--json", "--", -5))) == 1
    assert run("conversation", 7, 8) == "These two sent each other no messages.\n"


def test_thread(run):
    assert run("thread", "s-1-0").endswith('{"content":"hello 0"}  [kind]\n')
    assert [one["message_id"] for one in objects(run("thread", "s-1-0", "--json"))] == ["s-1-0"]
    assert run("thread", "unknown") == "No message has this id.\n"


def test_why_and_effects(tmp_path):
    in_step = {"step": 0, "step_read": 1, "ordinal": 0}, {"step": 1, "step_read": 2, "ordinal": 0}
    rows = [row(0, 1, 2, message_id="0-0-1", **in_step[0]), row(1, 2, 3, message_id="1-0-2", **in_step[1])]
    where = write_folder(tmp_path / "log", [[*rows, row(2, 3, 1)]]).where

    def run(*args):
        return CliRunner().invoke(app, ["log", args[0], where, *args[1:]])

    assert run("why", "1-0-2").stdout.splitlines() == [
        '1-0-2 in step 1: 2 -> 3  {"content":"hello 1"}',
        '+- 0-0-1 in step 0: 1 -> 2  {"content":"hello 0"}',
        "|  +- its sender had read no message",
    ]
    first, second = objects(run("why", "1-0-2", "--depth", "1", "--json").stdout)
    assert (first["depth"], second["cause_of"], second["payload"]) == (0, "1-0-2", {"content": "hello 0"})
    assert "  step 2: 1 more, 2 in all" in run("effects", "0-0-1", "--depth", "2").stdout
    assert objects(run("effects", "0-0-1", "--json").stdout) == [{"step": 1, "agent": 2}, {"step": 2, "agent": 3}]
    for args, message in (
        (("why", "9-0-1"), "no message of the log has the id '9-0-1'"),
        (("effects", "s-1-2"), "steps=Steps()"),
        (("why", "1-0-2", "--depth", "0"), "--depth"),
    ):
        found = run(*args)
        assert found.exit_code == 2
        assert message in found.stderr


def test_tail_of_a_finished_run(run):
    assert [line.split("  ")[1] for line in run("tail", "-n", 2).splitlines()] == [
        "the user -> -5",
        "2 -> exps:test:user-payback",
    ]
    (found,) = objects(run("tail", "--json", "--fate", "blocked"))
    assert (found["message_id"], found["payload"]) == ("s-1-3", {"content": "hello 3"})


@pytest.mark.parametrize(("options", "numbers"), [(["-n", "1", "--limit", "3"], [5, 6, 7]), (["--limit", "2"], [4, 5])])
def test_tail_of_a_run_that_goes_on(folder, monkeypatch, options, numbers):
    source = ViewSource(folder)
    source.coming = [[row(6, 1, 2)], [row(7, 1, 2)]]
    monkeypatch.setattr("ray_messaging.cli.log.open_log", lambda target: EventLog(source))
    found = CliRunner().invoke(app, ["log", "tail", "some-experiment", "--json", *options])
    assert [one["message_id"] for one in objects(found.stdout)] == [f"s-1-{number}" for number in numbers]


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (Closed("read its folder"), 0, "note: the experiment has ended: read its folder\n"),
        (LogError("it is damaged"), 2, "error: it is damaged\n"),
    ],
)
def test_the_end_of_the_experiment_is_no_error_of_a_tail(monkeypatch, error, code, words):
    def tail(**fields):
        raise error
        yield

    monkeypatch.setattr("ray_messaging.cli.log.open_log", lambda target: SimpleNamespace(tail=tail, end=-1))
    found = CliRunner().invoke(app, ["log", "tail", "some-experiment"])
    assert (found.exit_code, found.stdout, found.stderr) == (code, "", words)


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        (["--limit", 2], [4, 5]),
        (["--limit", 1, "-n", 3], [5]),
        (["--limit", 2, "--fate", "delivered", "--from-id", 2], [1, 5]),
        (["--limit", 9, "-n", 3], [3, 4, 5]),
        (["--limit", 0], []),
    ],
)
def test_a_tail_with_a_limit_shows_the_last_rows_that_match(run, options, numbers):
    assert [one["message_id"] for one in objects(run("tail", "--json", *options))] == [f"s-1-{n}" for n in numbers]


def test_export(run, tmp_path):
    path = tmp_path / "rows.csv"
    assert run("export", path, "--fate", "delivered") == f"Wrote 5 rows to {path}.\n"
    assert len(path.read_text().splitlines()) == 6
    assert objects(run("export", path, "--json")) == [{"rows": 6, "file": str(path)}]
    assert "ends in .parquet or .csv or .jsonl" in run("export", tmp_path / "rows.xls", exit_code=2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--fate", "lost"], "error: fate='lost' is not a fate: write 'delivered'"),
        (["--step", "1-3"], "error: cannot read --step '1-3': write one step, such as 5, or a range"),
        (["--since", "noon"], "error: since='noon' is not a time"),
        (["--agent", "a\t"], r"error: agent='a\t' cannot be an agent's id"),
        (["--limit", "-1"], "Invalid value for '--limit'"),
        (["--form-id", "1"], "No such option: --form-id"),
    ],
)
def test_wrong_options(run, options, words):
    assert words in " ".join(run("query", *options, exit_code=2).replace("│", " ").split())


def test_a_folder_without_a_log(tmp_path):
    for target in (tmp_path, tmp_path / "nowhere"):
        found = CliRunner().invoke(app, ["log", "stats", str(target)])
        assert found.exit_code == 2
        assert found.stderr.startswith(f"error: '{target}' holds no event log")


def test_an_unknown_name_gets_an_error(monkeypatch):
    monkeypatch.setattr("ray_messaging.cluster.ray_clusters.ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray_messaging.cluster.ray_clusters.ray.init", Mock(side_effect=ConnectionError("no Ray")))
    monkeypatch.setattr("ray_messaging.cluster.ray_clusters.local_clusters", lambda **_: [])
    found = CliRunner().invoke(app, ["log", "stats", "some-experiment"])
    assert found.exit_code == 2
    assert "there is no folder 'some-experiment' here, and no Ray cluster" in found.stderr


def test_sparklines():
    assert sparkline([0, 1, 50, 100], " 123456789") == " 159"
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == "  "
