"""The embedded server comes back: after its own death, its guard's and its owner's, with data, port and password."""

import logging
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.embedded_server import DEADLINE_S, HOST, client, guard_in, guard_of, kill, owner, wait_ended
from support.patience import wait_for

from ray_messaging.common.backoff import Backoff, RetryPolicy
from ray_messaging.default_limits_and_leases import EMBEDDED_CONNECT_S
from ray_messaging.embedded import redis_server as server_module
from ray_messaging.embedded import server_restarts
from ray_messaging.embedded.redis_server import EmbeddedServer, Succession
from ray_messaging.embedded.server_restarts import ServerSupervisor
from ray_messaging.errors import ConfigError, ServerFailed

NAME = "a-name-that-nobody-else-knows"

OWNER = """
import os, sys
from ray_messaging.embedded.redis_server import EmbeddedServer, Succession
server = EmbeddedServer("127.0.0.1", succession=Succession(sys.argv[1], float(sys.argv[2]), int(sys.argv[3])))
config = server.start()
print(config.port, config.password, server.pid, server.data_dir, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def supervisor() -> Iterator[ServerSupervisor]:
    supervisor = ServerSupervisor(EmbeddedServer(HOST))
    supervisor.start(succeed=False)
    yield supervisor
    supervisor.stop()


def wait_back(supervisor: ServerSupervisor, restarts: int = 1) -> None:
    wait_for(lambda: supervisor.stats()["restarts"] == restarts and supervisor.stats()["alive"])


# -- restart ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", ["server", "guard"])
def test_restart_brings_everything_back(server, victim, temporary_root):
    config, data_dir = server.start(), server.data_dir
    with client(config) as connected:
        connected.rpush("list", *range(1000))  # written, if not synced: a process may die, the machine lives
        kill(server.pid if victim == "server" else guard_of(server))
        assert server.wait(DEADLINE_S)
        assert server.restart() == config
        assert server.alive
        assert server.data_dir == data_dir
        assert connected.lrange("list", 0, -1) == [str(number) for number in range(1000)]
    assert guard_of(server)
    server.stop()
    assert list(temporary_root.iterdir()) == []


def test_restart_starts_a_server_that_never_ran():
    server = EmbeddedServer(HOST)
    with client(server.restart()) as connected:
        assert connected.ping()
    server.stop()


def test_a_torn_end_is_cut_off_and_reported(server, caplog):
    config = server.start()
    with client(config) as connected:
        connected.set("whole", 1)
        connected.set("torn", "x" * 1000)
        kill(server.pid)
        assert server.wait(DEADLINE_S)
        (aof,) = Path(server.data_dir).glob("appendonlydir/*.incr.aof")
        os.truncate(aof, aof.stat().st_size - 100)
        server.restart()
        assert (connected.get("whole"), connected.get("torn")) == ("1", None)
    assert "torn end" in caplog.text
    assert server.data_dir in caplog.text


# -- the supervisor ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", ["server", "guard"])
def test_the_supervisor_restarts_and_counts(supervisor, victim, caplog):
    config, before = supervisor.config(), supervisor.stats()
    kill(before["pid"] if victim == "server" else guard_in(before["data_dir"]))
    wait_back(supervisor)
    stats = supervisor.stats()
    assert supervisor.config() == config
    assert stats["data_dir"] == before["data_dir"]
    assert stats["pid"] != before["pid"]
    assert ("SIGKILL" if victim == "server" else "guard") in stats["last_end"]
    (died,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "Ready to accept connections" in died
    assert stats["last_end"] in died
    assert config.password not in caplog.text
    with client(config) as connected:
        assert connected.ping()


@pytest.mark.long
def test_the_supervisor_gives_up_loudly(supervisor, caplog, monkeypatch, temporary_root):
    monkeypatch.setattr(server_restarts, "SERVER_RESTART_ATTEMPTS", 5)
    monkeypatch.setattr(supervisor, "_backoff", Backoff(RetryPolicy(0.0, 0.0)))
    for number in range(1, 6):
        kill(supervisor.stats()["pid"])
        wait_back(supervisor, number)
    kill(supervisor.stats()["pid"])
    wait_for(lambda: any(record.levelno == logging.CRITICAL for record in caplog.records))
    with pytest.raises(ServerFailed, match="did not stay alive in 5 attempts") as caught:
        supervisor.config()
    assert "Ready to accept connections" in caught.value.log
    assert not supervisor.stats()["alive"]
    assert "given up" in supervisor.stats()["last_end"]  # what health() shows
    assert Path(supervisor.stats()["data_dir"]).exists()
    supervisor.stop()
    assert list(temporary_root.iterdir()) == []


@pytest.mark.long
def test_a_server_that_served_for_a_while_has_all_attempts_again(supervisor, monkeypatch):
    monkeypatch.setattr(server_restarts, "SERVER_RESTART_ATTEMPTS", 2)
    monkeypatch.setattr(supervisor, "_backoff", Backoff(RetryPolicy(0.0, 0.0)))
    monkeypatch.setattr(server_restarts, "SETTLED_S", 0.0)
    for number in range(1, 5):
        kill(supervisor.stats()["pid"])
        wait_back(supervisor, number)


def test_the_supervisor_waits_for_its_port(supervisor, caplog, monkeypatch):
    monkeypatch.setattr(supervisor, "_backoff", Backoff(RetryPolicy(0.1, 5.0)))
    config = supervisor.config()
    os.kill(guard_in(supervisor.stats()["data_dir"]), signal.SIGSTOP)
    kill(supervisor.stats()["pid"])
    with socket.create_server((HOST, config.port)):
        os.kill(guard_in(supervisor.stats()["data_dir"]), signal.SIGCONT)
        wait_for(lambda: "cannot start again" in caplog.text)
    wait_back(supervisor)
    assert supervisor.config() == config


# -- succession ---------------------------------------------------------------------------------------------------


def owned(grace_s=60.0, host_pid=0):
    return owner(OWNER, NAME, grace_s, host_pid or os.getpid())


@pytest.fixture
def successor() -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(HOST, succession=Succession(NAME, 60.0, os.getpid()))
    yield server
    server.stop()


@pytest.mark.parametrize(
    "dead",
    [
        "owner",
        pytest.param("owner and server", marks=pytest.mark.long),
        pytest.param("owner and guard", marks=pytest.mark.long),
    ],
)
def test_a_successor_takes_over(successor, dead, temporary_root):
    with owned() as (process, port, password, pid, data_dir):
        config = server_module.RedisConfig(server=HOST, port=port, password=password)
        guard = guard_in(data_dir)
        with client(config) as connected:
            connected.set("key", 1)
            kill(process.pid)
            if "server" in dead:
                kill(pid)
            elif "guard" in dead:
                kill(guard)
            else:
                connected.set("after", 2)  # it serves on, for those who live
    assert successor.take_over() == config.model_copy(update={"connect_timeout": EMBEDDED_CONNECT_S})
    wait_ended(guard, pid)
    with client(config) as connected:
        assert connected.get("key") == "1"
        assert dead != "owner" or connected.get("after") == "2"
    assert successor.data_dir == data_dir
    successor.stop()
    assert list(temporary_root.iterdir()) == []


def test_sweeping_spares_data_that_a_successor_may_take_over(successor, temporary_root):
    with owned() as (process, _, _, _, data_dir):
        kill(process.pid)
        kill(guard_in(data_dir))
    with EmbeddedServer(HOST), EmbeddedServer(HOST):  # they sweep
        assert Path(data_dir).exists()
    assert successor.take_over()


@pytest.mark.long
def test_data_without_a_successor_are_removed(temporary_root):
    with owned() as (process, _, _, _, data_dir):
        kill(process.pid)
        kill(guard_in(data_dir))
    with EmbeddedServer(HOST):
        os.utime(Path(data_dir, ".ray_messaging.heir"), (1, 1))  # as if it had been seen long ago
    with EmbeddedServer(HOST):
        assert not Path(data_dir).exists()


@pytest.mark.long
def test_without_a_successor_nothing_is_left_after_the_grace_and_a_late_one_gets_an_error(successor, temporary_root):
    with owned(grace_s=0.3) as (process, _, _, pid, data_dir):
        guard = guard_in(data_dir)
        kill(process.pid)
        wait_ended(pid, guard)
    assert list(temporary_root.iterdir()) == []
    with pytest.raises(ServerFailed, match="its data are gone"):
        successor.take_over()


@pytest.mark.long
def test_data_that_no_successor_can_take_over_are_removed_at_once(temporary_root):
    with subprocess.Popen(["sleep", "1000"]) as host, owned(host_pid=host.pid) as (process, _, _, pid, data_dir):
        try:
            guard = guard_in(data_dir)
            kill(process.pid)
            assert temporary_root.joinpath(data_dir).exists()
        finally:
            host.kill()
        wait_ended(pid, guard)
    assert list(temporary_root.iterdir()) == []


@pytest.mark.long
def test_a_live_owner_cannot_be_taken_over(successor, monkeypatch):
    with owned() as (_, port, password, pid, data_dir):
        config = server_module.RedisConfig(server=HOST, port=port, password=password)
        with client(config) as connected:
            monkeypatch.setattr(server_module, "HANDOVER_S", 0.1)
            with pytest.raises(ConfigError, match="another server runs on it") as caught:
                successor.take_over()
            assert caught.value.data_dir == data_dir
            assert connected.ping()
            os.kill(pid, 0)
        assert not Path(data_dir, ".ray_messaging.successor").exists()
        successor.stop()
        with client(config) as connected:
            assert connected.ping()


def test_a_link_in_the_place_of_the_data_is_refused(successor, temporary_root, tmp_path):
    (tmp_path / "valkey.conf").write_text("port 1\nrequirepass x\n")
    (temporary_root / f"ray_messaging-valkey-{NAME}").symlink_to(tmp_path)
    with pytest.raises(ServerFailed, match="is a link, or belongs to another user"):
        successor.take_over()
