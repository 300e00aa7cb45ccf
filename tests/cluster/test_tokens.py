"""Ray with its tokens, and without: a cluster of two nodes, and processes that find it by themselves."""

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

CLUSTER = """
import sys

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from support.bare_ray import start_cluster

from ray_messaging import Messaging

cluster = start_cluster()
cluster.add_node(num_cpus=1)
ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
nodes = [node["NodeID"] for node in ray.nodes()]
assert len(nodes) == 2
with Messaging.start("with-token", shards=1) as messaging:
    for number, node in enumerate(nodes):
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        messaging.create_group(f"group{number}", [number], actor_options={"scheduling_strategy": there})
    assert messaging.group("group0").send(0, 1, {"n": 1})
    print("ready", flush=True)
    sys.stdin.read()
"""

ELSEWHERE = """
from ray_messaging import Messaging

messaging = Messaging.connect("with-token")
assert [message.payload for message in messaging.group("group1").fetch_messages(timeout=60)] == [{"n": 1}]
assert messaging.group("group1").send(1, 0, {"n": 2})
assert not [each for each in messaging.health().problems if each.level == "critical"], messaging.health()
"""


@pytest.mark.parametrize("mode", ["token", "disabled"])
def test_other_processes_of_the_user_find_the_token(home, mode):
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY")}
    env |= {"HOME": str(home), "TMPDIR": str(home), "RAY_TMPDIR": str(home), "PYTHONPATH": path}
    if mode == "token":  # as `ray get-auth-token --generate` does
        (home / ".ray").mkdir()
        (home / ".ray" / "auth_token").write_text(secrets.token_hex(32))
    command = [sys.executable, "-c", CLUSTER]
    with subprocess.Popen(command, env=env | {"RAY_AUTH_MODE": mode}, stdin=-1, stdout=-1, text=True) as cluster:
        assert cluster.stdout.readline() == "ready\n"
        subprocess.run([sys.executable, "-c", ELSEWHERE], env=env, check=True, timeout=300)
        asked = [sys.executable, "-m", "ray_messaging.cli", "doctor", "with-token"]
        told = subprocess.run(asked, env=env, capture_output=True, text=True, check=True, timeout=300)
        assert "Health of experiment 'with-token': ok" in told.stdout
        assert told.stderr == ""
        cluster.stdin.close()
