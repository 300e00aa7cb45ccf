"""A trace of messages that crosses the processes of an experiment, as a collector gets it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.cluster import wait_for
from support.otlp import OtlpReceiver

SOCIETY = """
import ray
from ray_messaging import Messaging, Tracing, rules

@ray.remote
def handle(east):
    with east.fetch(timeout=60) as messages:
        return len(messages)

ray.init(address="local", num_cpus=1, include_dashboard=False, object_store_memory=80 * 2**20)
with Messaging.start("town", rules=[rules.Pattern(["bad"])], tracing=Tracing(sample=1.0)) as messaging:
    west, east = (messaging.create_group(name, agents) for name, agents in (("west", [1, 2]), ("east", [11])))
    west.send_columns([1, 2], [11, 11], [{"content": "hello"}, {"content": "hi"}])
    assert ray.get(handle.remote(east)) == 2
    input()
"""
STAGES = ["send", "accept", "judge", "judge", "write", "fetch", "handle"]


@pytest.mark.long
def test_a_trace_crosses_all_processes_of_an_experiment():
    with OtlpReceiver() as collector:
        mine = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_ADDRESS", "OTEL_"))}
        mine |= {"PYTHONPATH": str(Path(__file__).parents[2]), "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        mine["OTEL_BSP_SCHEDULE_DELAY"] = "200"  # ms: Ray ends the worker of a task without a last export
        with subprocess.Popen([sys.executable, "-c", SOCIETY], env=mine, stdin=subprocess.PIPE) as society:
            try:
                wait_for(lambda: collector.of("handle") or society.poll() is not None, "the last span", timeout=150)
                society.communicate(b"\n", timeout=60)
            finally:
                society.kill()
        assert society.returncode == 0
        stages = {name: collector.of(name) for name in STAGES}
    [send], [accept], [write], [fetch] = (stages[name] for name in ("send", "accept", "write", "fetch"))
    asked, judged = sorted(stages["judge"], key=lambda span: span.client, reverse=True)
    [handle] = stages["handle"]
    assert {span.trace for span in collector.spans} == {send.trace}
    assert send.parent == b""
    assert accept.parent == send.span
    assert asked.parent == write.parent == accept.span
    assert judged.parent == asked.span
    assert fetch.parent == write.span
    assert handle.parent == fetch.span
    assert (asked.client, judged.client, fetch.client) == ("west", "interceptor", "east")
    assert len({span.process for span in (send, accept, judged, fetch, handle)}) == 5  # driver, actors, the Ray task
    assert accept.process == asked.process == write.process
    assert asked.begin <= judged.begin <= judged.end <= asked.end <= write.end <= handle.begin <= handle.end
