"""The commands end to end: demo and replay on a running Ray, and on one of their own."""

import gzip
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
import ray
import redis
from typer.testing import CliRunner

from ray_messaging import EventLog
from ray_messaging.cli import app
from ray_messaging.replay.account import ReplayAccount


@pytest.fixture
def run(ray_cluster):
    """Return a function that runs a command line on the running Ray, and reads its JSON output."""

    def run(*args, code=0):
        found = CliRunner().invoke(app, [*map(str, args), "--json"])
        assert found.exit_code == code, found.output
        return found, json.loads(found.stdout) if found.stdout else None

    return run


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.csv"
    rows = [(n % 5, (n * 3 + 1) % 7, n / 100, f"text {n}, ümlaut") for n in range(500)]
    path.write_text("src,dst,time,text\n" + "".join(f'{a},{b},{t},"{text}"\n' for a, b, t, text in rows))
    return path, rows


def assert_balances(account):
    faults = ("duplicates", "out_of_order", "lost", "leaked", "misdirected", "changed", "unexpected", "undeliverable")
    assert {fault: account[fault] for fault in faults} == dict.fromkeys(faults, 0)
    assert account["balances"] is True
    assert account["problems"] == []
    assert account["messages"] == account["delivered"] + account["blocked"] + account["published"]
    assert account["received"] == account["delivered"] == sum(account["received_by_agent"].values())
    assert sum(map(sum, account["group_matrix"])) == account["delivered"]


@pytest.mark.long
def test_college_messages_all_arrive(run, data):
    path = data("collegemsg/CollegeMsg.txt.gz")
    _, account = run("replay", path, "--groups", 4)
    assert_balances(account)
    assert (account["messages"], account["received"]) == (59_835, 59_835)
    assert account["received_equals_file"] is True
    with gzip.open(path, "rt") as lines:
        assert account["received_by_agent"] == Counter(line.split()[1] for line in lines)


@pytest.mark.long
def test_diplomacy_texts_arrive_in_order(run, data):
    path = data("diplomacy-deception/messages_flat.jsonl.gz")
    fields = ("--from", "{game}-{sender}", "--to", "{game}-{receiver}", "--time", "seq", "--text", "text")
    _, account = run("replay", path, "--groups", 4, *fields)
    assert_balances(account)
    assert account["received"] == 17_289
    assert len(account["received_by_agent"]) == 84


@pytest.mark.long
def test_a_replay_by_rules_at_the_traces_pace_leaves_an_own_server_unchanged(run, trace, valkey_config):
    path, rows = trace
    server = f"redis://:{valkey_config.password}@{valkey_config.server}:{valkey_config.port}/0"
    given = ("--groups", 8, "--speed", 10, "--redis", server)
    found, account = run("replay", path, *given, "--rules", "black-list:0-1,4-*", "--rules", "max-length:1000")
    assert_balances(account)
    black = sum(a == 4 or (a, b) == (0, 1) for a, b, *_ in rows)
    assert account["blocked"] == black > 100
    assert account["blocked_by"] == {"black_list": black}
    assert not account["received_equals_file"]
    assert account["seconds"] >= 0.49
    assert len(account["groups"]) == 7
    assert "note: 7 agents fill 7 of 8 groups" in found.stderr
    assert "rules: black_list, max_length" in found.stdout
    assert "\x1b" not in found.stdout
    with redis.Redis(valkey_config.server, valkey_config.port, password=valkey_config.password) as client:
        assert client.keys("*replay-*") == []


@pytest.mark.long
def test_an_unbalanced_account_exits_with_1(run, trace, monkeypatch):
    monkeypatch.setattr(ReplayAccount, "problems", ["1 messages arrived again"])
    found, account = run("replay", trace[0], code=1)
    assert account["balances"] is False
    assert "error: the account does not balance: 1 messages arrived again" in found.stderr


@pytest.mark.long
def test_the_demo_balances_and_its_log_has_its_agents_alone(run, tmp_path):
    found, account = run("demo", "--agents", 200, "--groups", 3, "--messages", 20_000, "--log-dir", tmp_path / "log")
    assert_balances(account)
    log = EventLog.open(tmp_path / "log")
    assert log.stats()["rows"] == 20_000
    assert sum(log.run["groups"].values()) == 200
    assert account["blocked"] == account["blocked_by"]["black_list"] > 0
    assert 0 < account["lone_latency_ms"]["p50"] <= account["lone_latency_ms"]["p99"]
    assert found.stderr.startswith("Demo: 200 agents in 3 groups")
    for words in ("What became of the messages", "Delivered from group", "The account balances", "Try next"):
        assert words in found.stderr


@pytest.mark.long
def test_errors_of_the_cluster_do_not_get_into_the_json(run):
    dies, over = ray.remote(max_retries=0)(lambda: os._exit(1)), threading.Event()

    def lose_workers():
        while not over.is_set():
            with suppress(ray.exceptions.WorkerCrashedError):
                ray.get(dies.remote())

    with ThreadPoolExecutor(1) as thread:
        losing = thread.submit(lose_workers)
        try:
            found, account = run("demo", "--agents", 20, "--groups", 2, "--messages", 20_000)
        finally:
            over.set()
        losing.result()
    assert_balances(account)
    assert "A worker died" in found.stderr


@pytest.mark.long
def test_replay_runs_in_a_process_of_its_own(trace):
    """Start everything, Ray included, and leave nothing behind."""
    command = [sys.executable, "-m", "ray_messaging.cli", "replay", trace[0], "--groups", "2", "--json"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stderr
    assert "Traceback" not in found.stderr
    assert_balances(json.loads(found.stdout))
