"""A driver connected by Ray Client: every call of `Messaging`, as on the cluster itself."""

import os
import secrets
import socket
import subprocess
import sys
import tempfile

import pytest

pytest.importorskip("grpc", reason="Ray Client needs ray[client]")

SERVER = """
import logging, sys
from ray.util.client.server.server import init_and_serve

serving = init_and_serve(
    "127.0.0.1", int(sys.argv[1]), address="local", num_cpus=2, include_dashboard=False, logging_level=logging.ERROR
)
print("ready", flush=True)
sys.stdin.read()
"""

DRIVER = """
import asyncio, queue, sys, tempfile
import pytest
import ray

from ray_messaging import Messaging, Outgoing, rules
from ray_messaging.errors import AlreadyExists, Closed

ray.init(f"ray://127.0.0.1:{sys.argv[1]}", logging_level="ERROR")
messaging = Messaging.start("client", rules=[rules.BlackList([(1, 3)])], log_dir=tempfile.mkdtemp())
west, east = messaging.create_groups({"west": [1, 2], "east": [3, 4]}).values()
for name, agent, taken in (("west", 9, "west"), ("north", 4, 4)):
    with pytest.raises(AlreadyExists) as caught:
        messaging.create_group(name, [agent])
    assert caught.value.value == taken

assert west.send(1, 4, {"n": 0}).fate == "delivered"
assert west.send_messages([Outgoing.to_agent(4, {"n": 1}, 1)]).counts()["delivered"] == 1
assert west.send_columns([1] * 3, [4] * 3, [{"n": n} for n in (2, 3, 4)]).counts()["delivered"] == 3
found = []
while len(found) < 5:
    with east.fetch_messages(timeout=60) as messages:
        found += [message.payload["n"] for message in messages]
assert found == [0, 1, 2, 3, 4]

called = queue.Queue()
with messaging.on_blocked(called.put):
    assert west.send(1, 3, {"n": 5}).fate == "blocked"
    assert called.get(timeout=30).payload == {"n": 5}

async def first():
    async with asyncio.timeout(60):
        return await anext(messaging.blocked(after=0))

assert asyncio.run(first()).payload == {"n": 5}
assert messaging.log.query().num_rows == 6
assert messaging.log.balance().fates["blocked"] == 1
assert messaging.stats()["waiting"] == {"west": 0, "east": 0}
assert [group.agents for group in messaging.groups()] == [[3, 4], [1, 2]]
assert Messaging.connect("client").group_of(4).name == "east"

health = messaging.health()
assert {"interceptor", "server", "group 'west'", "log"} <= {finding.what for finding in health.findings}
assert not [finding for finding in health.problems if finding.level == "critical"], health
assert health.of("actors")[0].value.startswith("5 of 5 answer"), health

@ray.remote(num_cpus=0)
def send(group):
    return group.send(2, 4, {"n": 6}).fate

assert ray.get(send.remote(west)) == "delivered"
messaging.remove_group("west")
messaging.shutdown()
assert not [name for name in ray.util.list_named_actors(all_namespaces=True) if "client/" in name["name"]]
with pytest.raises(Closed):
    messaging.create_group("late", [7])
print("all is well")
"""


@pytest.fixture(params=["token", "disabled"])
def token(request):
    """Return an environment in which this Ray and its clients have a token of their own, or none."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    return environment | {
        "RAY_AUTH_MODE": request.param,
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "GRPC_VERBOSITY": "ERROR",
    }


@pytest.fixture
def port(token):
    """Run Ray and its client server in a process of their own; give the port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="rm-", dir="/tmp") as home:  # Ray's sockets want short paths
        command = [sys.executable, "-c", SERVER, str(port)]
        environment = token | {"RAY_TMPDIR": home}
        with subprocess.Popen(command, env=environment, stdin=-1, stdout=-1, text=True) as server:
            assert server.stdout.readline() == "ready\n"
            yield port
            server.stdin.close()


@pytest.mark.long  # a Ray of its own, and a driver: 20 s
def test_the_facade_works_by_ray_client(port, token):
    command = [sys.executable, "-c", DRIVER, str(port)]
    driver = subprocess.run(command, env=token, capture_output=True, text=True, check=False, timeout=300)
    assert driver.stdout.splitlines()[-1:] == ["all is well"], driver.stdout + driver.stderr
    assert "Traceback" not in driver.stderr
