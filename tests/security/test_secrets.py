"""Passwords and tokens appear in no process list, file (except the server's own), repr, pickle or error."""

import secrets
import socket
import traceback
from pathlib import Path

import psutil
import pytest
import ray

from ray_messaging import Messager, Messaging, RedisConfig
from ray_messaging.embedded.redis_server import EmbeddedServer
from ray_messaging.errors import ConfigError, ConnectionFailed
from ray_messaging.interception.lane import LaneAddress

HOST = "127.0.0.1"


@pytest.fixture
def embedded():
    with EmbeddedServer(HOST) as server:
        server.config = server.start()
        yield server


@pytest.fixture(scope="module")
def messaging(ray_cluster):
    with Messaging.start(f"secrets-{secrets.token_hex(4)}") as started:
        yield started


def reachable(host, port):
    with socket.socket() as probe:
        probe.settimeout(5)
        return probe.connect_ex((host, port)) == 0


def test_the_embedded_server_listens_only_on_its_address(embedded):
    port = embedded.config.port
    assert reachable(HOST, port)
    others = {a.address for found in psutil.net_if_addrs().values() for a in found if a.family == socket.AF_INET}
    for other in sorted({*others, "127.0.0.2"} - {HOST}):
        assert not reachable(other, port), other
    listening = [c for c in psutil.Process(embedded.pid).net_connections() if c.status == psutil.CONN_LISTEN]
    assert {c.laddr.ip for c in listening} == {HOST}


def shown_by_processes(secret):
    """Return the processes with a secret in their command line or environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            try:
                shown = (folder / name).read_bytes()
            except OSError:  # it ended, or belongs to another user
                continue
            if secret in shown:
                found.append(folder / name)
    return found


@ray.remote(num_cpus=0)
def asked_by_a_task(messaging, group):
    return messaging.redis.password, group.send(1, 2, {"n": 1}).fate


@ray.remote(num_cpus=0)
class Own:
    async def open(self, messaging):
        async with await messaging.open_messager("own", [7]) as messager:
            return (await messager.send_message(messager.get_agent_chat_channel(2), {"n": 2}, 7, 2)).fate


@pytest.mark.long
def test_the_password_appears_only_where_it_is_used(messaging, tmp_path):
    group = messaging.create_group(f"secret-{secrets.token_hex(4)}", [1, 2])
    password = messaging.redis.password
    secret = password.encode()
    shown = [repr(thing) + str(thing) for thing in (messaging, group, messaging.interceptor, messaging.redis)]
    assert not [text for text in (*shown, str(messaging.stats()), str(group.stats())) if password in text]
    for thing in (messaging, group):
        assert secret not in ray.cloudpickle.dumps(thing)
    # The receiver of a pickle can do the same.
    assert ray.get(asked_by_a_task.remote(messaging, group), timeout=60) == (password, "delivered")
    own = Own.remote()
    assert ray.get(own.open.remote(messaging), timeout=60) == "delivered"
    ray.kill(own)
    assert shown_by_processes(secret) == []
    assert shown_by_ray(secret) == []
    from ray._private import state

    assert password not in repr(state.actors())
    messaging.remove_group(group.name)


def shown_by_ray(secret):
    """Return the files of Ray with a secret in them, logs of all workers included."""
    folder = Path(ray._private.worker._global_node.get_session_dir_path())
    return [path for path in folder.rglob("*") if path.is_file() and secret in path.read_bytes()]


def test_the_lanes_token_appears_nowhere(messaging):
    address = ray.get(messaging.interceptor.lane.remote(), timeout=60)
    assert address[2] not in repr(LaneAddress(*address))
    assert shown_by_processes(address[2].encode()) == []
    assert shown_by_ray(address[2].encode()) == []


async def test_errors_show_no_password():
    password = "a-Secret/of:ours"
    for config in (
        RedisConfig(server=HOST, port=1, password=password),
        RedisConfig(server=HOST, port=1, username="u", password=password),
    ):
        with pytest.raises(ConnectionFailed, match=rf"{HOST}:1\b") as caught:
            async with Messager(config, "secrets"):
                pass
        assert password not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(ConfigError) as caught:
        Messager(f"redis://u:{password}@{HOST}:port/0", "secrets")
    assert password not in "".join(traceback.format_exception(caught.value))
