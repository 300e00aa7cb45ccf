"""The tracer provider that the environment describes, in a process of its own."""

import os
import subprocess
import sys

SEND = """
import asyncio, sys
from ray_messaging import LocalServer, Messager, Tracing

async def main():
    async with Messager(LocalServer(), "e", name="west", tracing=Tracing(sample=1.0)) as west:
        await west.host_agents([1, 2], ["agent-chat"])
        await west.send(1, 2, {})
    print("sent", file=sys.stderr)

asyncio.run(main())
"""


def run(**variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return subprocess.run(
        [sys.executable, "-c", SEND], env=environment | variables, capture_output=True, text=True, timeout=100
    )


def test_spans_go_where_the_variables_say():
    found = run(OTEL_TRACES_EXPORTER="console", OTEL_SERVICE_NAME="town")
    assert "sent" in found.stderr
    for name in ("accept", "judge", "write"):
        assert f'"name": "{name}"' in found.stdout
    assert '"service.name": "town"' in found.stdout


def test_an_exporter_that_is_missing_is_refused_by_name():
    found = run(OTEL_TRACES_EXPORTER="carrier-pigeon")
    assert found.returncode != 0
    assert "tracing exports spans by 'carrier-pigeon', which is not installed: pip install" in found.stderr


def test_a_disabled_sdk_traces_nothing():
    found = run(OTEL_TRACES_EXPORTER="console", OTEL_SDK_DISABLED="true")
    assert "sent" in found.stderr
    assert '"name"' not in found.stdout
