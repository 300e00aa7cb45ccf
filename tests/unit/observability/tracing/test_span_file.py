"""Spans in a file, which processes share."""

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
    tracing = Tracing(sample=1.0, file="traces/spans.jsonl")
    async with Messager(LocalServer(), "e", name=sys.argv[1], tracing=tracing) as west:
        await west.host_agents([1, 2], ["agent-chat"])
        for _ in range(200):
            await west.send(1, 2, {})

asyncio.run(main())
"""


def test_processes_share_a_file(tmp_path):
    mine = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    mine |= {"OTEL_TRACES_EXPORTER": "carrier-pigeon", "OTEL_BSP_SCHEDULE_DELAY": "10"}  # the file needs no exporter
    names = ["west", "north", "south"]
    running = [subprocess.Popen([sys.executable, "-c", SEND, name], env=mine, cwd=tmp_path) for name in names]
    assert [process.wait(100) for process in running] == [0, 0, 0]
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
