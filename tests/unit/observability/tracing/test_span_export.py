"""Where spans go, from processes of their own: to a file that they share, or where OpenTelemetry's variables say."""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest

from ray_messaging import Messager, Tracing
from ray_messaging.errors import ConfigError

SEND = """
import asyncio, sys
from ray_messaging import LocalServer, Messager, Tracing

async def main():
    tracing = Tracing(1.0, *sys.argv[2:])
    async with Messager(LocalServer(), "e", name=sys.argv[1], tracing=tracing) as west:
        await west.host_agents([1, 2], ["agent-chat"])
        for _ in range(200):
            await west.send(1, 2, {})

asyncio.run(main())
"""


def send(name, *file, cwd=None, **variables):
    """Start a process that sends 200 messages and traces them, to a file if one is named."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")} | variables
    command = [sys.executable, "-c", SEND, name, *file]
    return subprocess.Popen(command, env=mine, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_processes_share_a_file(tmp_path):
    mine = {"OTEL_TRACES_EXPORTER": "carrier-pigeon", "OTEL_BSP_SCHEDULE_DELAY": "10"}  # the file needs no exporter
    names = ["west", "north", "south"]
    running = [send(name, "traces/spans.jsonl", cwd=tmp_path, **mine) for name in names]
    assert [process.communicate(timeout=100) for process in running] == [("", "")] * 3
    spans = [json.loads(line) for line in (tmp_path / "traces" / "spans.jsonl").read_text().splitlines()]
    found = Counter((span["attributes"]["messaging.client.id"], span["name"]) for span in spans)
    assert found == {(name, stage): 200 for name in names for stage in ("accept", "judge", "write")}
    assert {span["resource"]["attributes"]["process.pid"] for span in spans} == {process.pid for process in running}


def test_a_file_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for file in (tmp_path, tmp_path / "file" / "spans.jsonl"):
        with pytest.raises(ConfigError, match="cannot write spans to"):
            Messager("redis://nowhere", "e", tracing=Tracing(file=file))


def test_a_path_is_that_of_the_process_that_names_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Tracing(file="spans.jsonl").file == str(tmp_path / "spans.jsonl")


def test_spans_go_where_the_variables_say():
    said, _ = send("west", OTEL_TRACES_EXPORTER="console", OTEL_SERVICE_NAME="town").communicate(timeout=100)
    for part in ('"name": "accept"', '"name": "judge"', '"name": "write"', '"service.name": "town"'):
        assert part in said


def test_an_exporter_that_is_missing_is_refused_by_name():
    process = send("west", OTEL_TRACES_EXPORTER="carrier-pigeon")
    _, error = process.communicate(timeout=100)
    assert process.returncode != 0
    assert "tracing exports spans by 'carrier-pigeon', which is not installed: pip install" in error


def test_a_disabled_sdk_traces_nothing():
    process = send("west", OTEL_TRACES_EXPORTER="console", OTEL_SDK_DISABLED="true")
    said, _ = process.communicate(timeout=100)
    assert (process.returncode, '"name"' in said) == (0, False)
