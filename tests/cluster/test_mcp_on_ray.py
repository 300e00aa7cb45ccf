"""An assistant steers a running experiment, and forks a run, through the real command."""

import asyncio
import json
import os
import re
import sys
import time
import uuid

import pytest
import ray

pytest.importorskip("mcp.server.mcpserver", reason="mcp 2 is not installed")

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from ray_messaging import EventLog, Messaging, Steps

pytestmark = [pytest.mark.long]

PAUSE_S = 0.2  # between two questions whether the fork has ended

MODEL = """
def person(me, inbox):
    me.state["heard"] = me.state.get("heard", 0) + len(inbox)
    me.send((me.id + 1) % 10, {"content": "casino" if me.id == 3 else "hello"})
"""


async def call(client, tool, **arguments):
    answer = await client.call_tool(tool, arguments)
    data = json.loads(re.fullmatch(r"(?s).*<(data-\w+)>\n(.*)\n</\1>", answer.content[0].text)[2])
    assert not answer.is_error, data
    return data


async def test_an_assistant_pauses_a_run_inserts_a_rule_and_makes_a_fork(ray_cluster, tmp_path):
    (tmp_path / "town.py").write_text(MODEL)
    names: dict = {}
    exec(MODEL, names)
    name = f"mcp-{uuid.uuid4().hex[:8]}"
    arguments = ["-m", "ray_messaging.cli", "mcp", str(tmp_path), "--control", "--model", "town:person"]
    address = {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    command = StdioServerParameters(
        command=sys.executable, args=arguments, env={**os.environ, **address}, cwd=str(tmp_path)
    )
    run = f"{tmp_path.name}/{name}"
    with Messaging.start(name, steps=Steps(seed=7, checkpoint=2), log_dir=tmp_path / name) as messaging:
        messaging.run(names["person"], agents=10, groups=1, until=4, progress=False)
        async with Client(stdio_client(command)) as client:
            assert "paused" in (await call(client, "pause", run=run))["done"]
            assert messaging.steps.progress().resting or messaging.steps.now == 4
            inserted = await call(client, "insert_rule", run=run, rule="pattern:casino", at_step=4)
            assert inserted == {"done": "rule pattern is in force from step 4"}
            await call(client, "resume", run=run)
        assert [rule["name"] for rule in messaging.rules.list()] == ["pattern"]
        messaging.run(names["person"], agents=10, groups=1, until=6, progress=False)
        assert messaging.log.count(by="rule", fate="blocked").to_pylist() == [{"rule": "pattern", "count": 2}]
    async with Client(stdio_client(command)) as client:
        arguments = {"run": run, "name": "without", "until": 6, "at_step": 2, "rules": ["pattern:hello"]}
        assert (await call(client, "fork", **arguments))["begun"] == "without"
        end = time.monotonic() + 120
        while (found := await call(client, "fork_state", name="without"))["state"] == "it runs":
            assert time.monotonic() < end, found
            await asyncio.sleep(PAUSE_S)  # the fork needs the processor
        assert found["state"] == "it has ended", found
        compared = await call(client, "compare", run=f"{tmp_path.name}/without", other=run)
    assert compared["first"]["step"] == 2
    assert EventLog.open(tmp_path / "without").run["parent"]["experiment"] == name
