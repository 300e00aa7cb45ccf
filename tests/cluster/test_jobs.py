"""A Ray job, submitted as a user does: by examples/job.py, and by `ray job submit`.

The server of jobs is part of Ray's dashboard: these tests need `ray[default]`, which is in the group `jobs`.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.servers import free_port

from ray_messaging import EventLog

pytest.importorskip("aiohttp_cors", reason="ray[default] is not here: pip install --group jobs")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CLUSTER = """
import sys
import time

from ray.cluster_utils import Cluster
from ray.job_submission import JobSubmissionClient

# Ports of its own: another Ray on this machine may have those that Ray takes by itself.
ports = {"dashboard_port": int(sys.argv[1]), "dashboard_agent_listen_port": int(sys.argv[2])}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": True, **ports})
address, end = "http://" + cluster.webui_url, time.monotonic() + 120
while True:  # the server of jobs comes a little later
    try:
        JobSubmissionClient(address).submit_job(entrypoint="true")
        break
    except RuntimeError:
        if time.monotonic() > end:
            raise
        time.sleep(0.1)
print(address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


@pytest.fixture
def dashboard(home):
    """Give the address of the dashboard of a cluster that ends with the test, and that no other `ray.init()` finds."""
    command = [sys.executable, "-c", CLUSTER, str(free_port()), str(free_port())]
    env = os.environ | {"RAY_TMPDIR": str(home)}
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as cluster:
        address = cluster.stdout.readline().strip()
        assert address.startswith("http://")
        yield address
        cluster.stdin.close()
        cluster.wait(60)


def run(*command):
    """Run a command in the folder of the examples, and return its output."""
    done = subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
def test_a_job_runs_an_experiment_and_goes_on_when_it_is_submitted_again(dashboard, tmp_path):
    first = run(
        sys.executable, "job.py", "submit", dashboard, "--log-dir", str(tmp_path / "moods"), "--steps", "3", "--follow"
    )
    assert "3 steps, 3,000 messages" in first
    assert "the job has ended: SUCCEEDED" in first

    program = ["job.py", "run", "--log-dir", str(tmp_path / "moods"), "--steps", "5"]
    ray = str(Path(sys.executable).parent / "ray")
    again = run(
        ray, "job", "submit", "--address", dashboard, "--working-dir", str(EXAMPLES), "--", sys.executable, *program
    )
    assert "5 steps, 5,000 messages" in again
    assert re.search(r"mood of agent 7: -?\d", again)
    log = EventLog.open(tmp_path / "moods")
    assert [len(start["versions"]) > 3 for start in log.run["starts"]] == [True, True]
    assert log.stats()["rows"] == 5000
