"""The embedded server on a troubled machine: no lost data, no leftovers, and no other process in its place."""

import os
import signal
import socket
import threading
from pathlib import Path

import pytest
from support.embedded_server import DEADLINE_S, HOST, client, guard_in, guard_of, kill, wait_ended
from support.patience import wait_for

from ray_messaging.embedded import guard_client as server_link
from ray_messaging.embedded import redis_server as server_module
from ray_messaging.embedded.redis_server import EmbeddedServer, Succession
from ray_messaging.embedded.server_restarts import ServerSupervisor
from ray_messaging.errors import ServerFailed

THREAD = "ray_messaging server supervisor"


def died(server: EmbeddedServer) -> None:
    kill(server.pid)
    assert server.wait(DEADLINE_S)


def test_a_restart_that_the_system_refuses_costs_no_data(server, temporary_root):
    with client(server.start()) as connected:
        connected.set("key", 1)
        config = Path(server.data_dir, "valkey.conf")
        died(server)
        config.unlink()
        config.mkdir()  # any OSError of the guard's will do: no process, no memory, no room
        with pytest.raises(ServerFailed, match="cannot start Valkey"):
            server.restart()
        config.rmdir()
        server.restart()
        assert connected.get("key") == "1"
    server.stop()
    assert list(temporary_root.iterdir()) == []


def test_another_process_on_the_port_is_not_taken_for_the_server(server):
    config, guard = server.start(), guard_of(server)
    os.kill(guard, signal.SIGSTOP)
    kill(server.pid)
    with socket.create_server((HOST, config.port)) as impostor:
        impostor.setblocking(False)
        os.kill(guard, signal.SIGCONT)
        assert server.wait(DEADLINE_S)
        with pytest.raises(ServerFailed, match="other programs took"):
            server.restart()
        with pytest.raises(BlockingIOError):  # nobody has connected: it would have received the password
            impostor.accept()
    server.restart()
    assert server.alive


@pytest.mark.parametrize("reuse", [0, 1])
def test_no_other_process_takes_the_port_of_a_dead_server(server, reuse):
    config = server.start()
    died(server)
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        with pytest.raises(OSError, match="in use"):  # noqa: PT012 - which of the two, is the kernel's business
            stranger.bind((HOST, config.port))
            stranger.listen()
    assert server.restart() == config


def test_a_stopped_guard_leaves_nothing(server, temporary_root, monkeypatch):
    monkeypatch.setattr(server_link, "STOP_TIMEOUT_S", 0.1)
    pid, guard = server.pid, guard_of(server)
    os.kill(guard, signal.SIGSTOP)
    server.stop()
    wait_ended(guard, pid)
    assert list(temporary_root.iterdir()) == []


def test_the_supervisor_goes_on_when_no_guard_could_be_started(monkeypatch, caplog):
    supervisor = ServerSupervisor(EmbeddedServer(HOST))
    supervisor.start(succeed=False)
    real, refusals = server_module.GuardClient, [BlockingIOError(11, "Resource temporarily unavailable")]

    def link():
        if refusals:
            raise refusals.pop()
        return real()

    try:
        with client(supervisor.config()) as connected:
            connected.set("key", 1)
            monkeypatch.setattr(server_module, "GuardClient", link)
            kill(guard_in(supervisor.stats()["data_dir"]))
            wait_for(lambda: supervisor.stats()["restarts"] == 1)
            assert connected.get("key") == "1"
        assert "cannot start a guard process: [Errno 11]" in caplog.text
    finally:
        supervisor.stop()


def test_a_supervisor_that_stops_while_it_restarts_leaves_nothing(temporary_root, monkeypatch):
    server, restarting, stopped = EmbeddedServer(HOST), threading.Event(), threading.Event()
    restart, stop = server.restart, server.stop

    def late_restart():
        restarting.set()
        assert stopped.wait(DEADLINE_S)
        return restart()

    def noted_stop(**options):
        stop(**options)
        if restarting.is_set():
            stopped.set()

    monkeypatch.setattr(server, "restart", late_restart)
    monkeypatch.setattr(server, "stop", noted_stop)
    supervisor = ServerSupervisor(server)
    supervisor.start(succeed=False)
    kill(supervisor.stats()["pid"])
    assert restarting.wait(DEADLINE_S)
    supervisor.stop()
    assert list(temporary_root.iterdir()) == []
    assert not any(thread.name == THREAD for thread in threading.enumerate())


def test_a_successor_reports_torn_data(temporary_root):
    folder = temporary_root / "ray_messaging-valkey-name"
    folder.mkdir()
    (folder / "valkey.conf").write_text("port 1")
    with pytest.raises(ServerFailed, match="torn"):
        EmbeddedServer(HOST, succession=Succession("name", 1.0, os.getpid())).take_over()
