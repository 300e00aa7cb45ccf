"""The count of the files and functions that one message passes through."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def counts():
    # In a process of its own: the profiler must not meet the threads of other tests.
    command = [sys.executable, "-m", "benchmarks.message_path", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=ROOT)
    return {path["path"]: path for path in json.loads(done.stdout)["counts"]}


def test_there_is_a_row_for_each_path(counts):
    send = ["send, until the transport", "send", "send, remote interceptor"]
    assert [*counts] == [*send, "fetch, without the transport", "fetch, payload, ack"]
    assert counts["send"]["functions"] > counts["send, until the transport"]["functions"] > 0
    assert counts["fetch, payload, ack"]["functions"] > counts["fetch, without the transport"]["functions"] > 0
