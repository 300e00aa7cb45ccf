"""The embedded server with real processes: its answers, its secrets, and no leftovers."""

import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

import pytest
import redis
from support.embedded_server import DEADLINE_S, HOST, LOCK_NAME, client, guard_in, guard_of, kill, owner, wait_ended
from support.patience import AT_ONCE_S, wait_for

from ray_messaging.embedded import guard_client as server_link
from ray_messaging.embedded import redis_server as server_module
from ray_messaging.embedded.redis_server import EmbeddedServer
from ray_messaging.errors import ConfigError, ServerFailed

OWNER = """
import os, signal, sys
from ray_messaging.embedded.redis_server import EmbeddedServer
epilogue = [sys.executable, "-c", *sys.argv[2:]] if "epilogue" in sys.argv else []
server = EmbeddedServer("127.0.0.1", epilogue=epilogue)
server.start()
forked = 0
if "fork" in sys.argv and (forked := os.fork()) == 0:
    signal.pause()
print(server.pid, forked, server.data_dir, flush=True)
if sys.stdin.read():
    server.stop()
"""


def process_files(name: str) -> Iterator[bytes]:
    for path in Path("/proc").glob(f"[0-9]*/{name}"):
        with suppress(OSError):
            yield path.read_bytes()


def test_answers_with_the_password_only():
    with EmbeddedServer(HOST) as server:
        config = server.start()  # a second start changes nothing
        with client(config) as connected:
            assert connected.ping()
        with client(config, password=None) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
        with client(config, password="wrong") as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()


def test_the_password_is_not_visible_to_others(server):
    config = server.start()
    secret = config.password.encode()
    assert not any(secret in text for name in ("cmdline", "environ") for text in process_files(name))
    assert config.password not in repr(server) + str(server) + repr(config)
    data_dir = Path(server.data_dir)
    assert data_dir.stat().st_mode & 0o777 == 0o700
    holders = [path for path in data_dir.rglob("*") if path.is_file() and secret in path.read_bytes()]
    assert [path.name for path in holders] == ["valkey.conf"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in data_dir.rglob("*"))


def test_keeps_everything_and_evicts_nothing():
    server = EmbeddedServer(HOST, maxmemory_bytes=64 * 2**20)
    with server, client(server.start()) as connected:
        settings = connected.config_get()
        with pytest.raises(redis.ResponseError, match="DEBUG command not allowed"):
            connected.execute_command("DEBUG", "JMAP")
    expected = {
        "appendonly": "yes",
        # Valkey's everysec may put a write off that it answers at once: a kill would lose it.
        "appendfsync": "no",
        "save": "",
        "maxmemory": str(64 * 2**20),
        "maxmemory-policy": "noeviction",
        "protected-mode": "yes",
        "bind": HOST,
    }
    assert {name: settings[name] for name in expected} == expected


def test_a_subscriber_that_does_not_read_does_not_fill_the_memory(server):
    payload, peak = "x" * 2**16, 0
    with client(server.start()) as connected, connected.pubsub() as slow:
        slow.subscribe("flood")
        for _ in range(20):  # 160 MiB in all
            with connected.pipeline(transaction=False) as pipeline:
                for _ in range(128):
                    pipeline.publish("flood", payload)
                pipeline.execute()
            peak = max(peak, connected.info("memory")["used_memory"])
    assert peak < 64 * 2**20  # such a client is cut off at 32


def test_maxmemory_defaults_to_half_of_the_memory(server):
    with client(server.start()) as connected:
        assert int(connected.config_get("maxmemory")["maxmemory"]) == server_module.memory_bytes() // 2


@pytest.mark.parametrize(
    ("free", "rewritten_at"), [(2**40, 2**30), (8 * 2**30, 2**29), (2**20, 64 * 2**20)], ids=["much", "some", "none"]
)
def test_the_append_only_file_grows_as_far_as_the_disk_permits(monkeypatch, tmp_path, free, rewritten_at):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(free, 0, free))
    with EmbeddedServer(HOST, data_dir=str(tmp_path / "kept")) as server, client(server.start()) as connected:
        assert int(connected.config_get("auto-aof-rewrite-min-size")["auto-aof-rewrite-min-size"]) == rewritten_at


WRITES = """
import os, sys, ray_messaging
from pathlib import Path
Path(sys.argv[1]).write_text(f"{Path(sys.argv[2]).exists()} {os.umask(0):o}")
"""


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_a_command_follows_the_server_where_its_owner_died(end, temporary_root, tmp_path):
    written = tmp_path / "written"
    mask = os.umask(0o027)
    try:
        with owner(OWNER, "epilogue", WRITES, written, temporary_root) as (process, pid, _, data_dir):
            guard = guard_in(data_dir)
            process.communicate("stop") if end == "stopped" else process.kill()
            wait_ended(pid, guard)  # which has become the command
    finally:
        os.umask(mask)
    assert (written.read_text() if written.exists() else None) == (None if end == "stopped" else "True 27")
    assert list(temporary_root.iterdir()) == []


def test_ends_with_its_owner_though_a_forked_child_holds_the_pipe(temporary_root):
    with owner(OWNER, "fork") as (process, pid, forked, _):
        try:
            process.kill()
            wait_ended(pid)
            wait_for(lambda: not list(temporary_root.iterdir()))
        finally:
            os.kill(forked, signal.SIGKILL)


def test_is_no_child_of_its_owner(server):
    for pid in (server.pid, guard_of(server)):
        status = Path(f"/proc/{pid}/status").read_text()
        assert f"PPid:\t{os.getpid()}\n" not in status
        assert os.getsid(pid) != os.getsid(0)


def test_a_killed_guard_takes_the_server_along_and_its_data_wait_for_the_owner(server, temporary_root):
    pid, left = server.pid, Path(server.data_dir)
    os.kill(guard_of(server), signal.SIGKILL)
    assert server.wait(DEADLINE_S)
    wait_ended(pid)
    assert not server.alive
    with EmbeddedServer(HOST) as other:  # it sweeps
        assert set(temporary_root.iterdir()) == {left, Path(other.data_dir)}
    server.stop()
    assert list(temporary_root.iterdir()) == []


def test_the_next_start_removes_leftovers_of_guard_and_owner(temporary_root):
    with owner(OWNER) as (process, pid, _, data_dir):
        process.send_signal(signal.SIGSTOP)  # else it would have time to clean up
        os.kill(guard_in(data_dir), signal.SIGKILL)
        process.kill()
        wait_ended(pid)
    assert Path(data_dir).exists()
    with EmbeddedServer(HOST) as other:
        assert list(temporary_root.iterdir()) == [Path(other.data_dir)]


def test_sweeping_spares_folders_in_use_or_of_others(server, temporary_root, tmp_path):
    theirs = temporary_root / "ray_messaging-valkey-notes"
    theirs.mkdir()
    (theirs / "note").touch()
    link = temporary_root / "ray_messaging-valkey-link"
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / LOCK_NAME).touch()
    link.symlink_to(linked)
    left = temporary_root / "ray_messaging-valkey-left"
    left.mkdir()
    with EmbeddedServer(HOST) as other:
        kept = {Path(server.data_dir), Path(other.data_dir), theirs, link}
        assert set(temporary_root.iterdir()) == kept
    assert (linked / LOCK_NAME).exists()
    assert server.alive


@pytest.mark.long
def test_many_start_beside_each_other_while_they_sweep(temporary_root):
    for number in range(20):
        left = temporary_root / f"ray_messaging-valkey-{number}"
        left.mkdir()
        (left / LOCK_NAME).touch()
    servers = [EmbeddedServer(HOST) for _ in range(8)]
    try:
        with ThreadPoolExecutor(len(servers)) as pool:
            list(pool.map(EmbeddedServer.start, servers))
        assert all(server.alive for server in servers)
        assert set(temporary_root.iterdir()) == {Path(server.data_dir) for server in servers}
    finally:
        for server in servers:
            server.stop()


def test_stop_wakes_a_waiting_thread(server):
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.wait)
        server.stop()
        assert waiting.result(DEADLINE_S)


def test_data_survive_with_a_data_dir(tmp_path):
    data_dir = tmp_path / "with a \"quote\" and 'another'" / "data"
    server = EmbeddedServer(HOST, data_dir=str(data_dir))
    with server, client(server.start()) as connected:
        connected.set("key", "value")
    assert server.data_dir == str(data_dir)
    assert not (data_dir / "valkey.conf").exists()  # it held the password
    with server, client(server.start()) as connected:
        assert connected.get("key") == "value"


def test_a_clean_stop_leaves_the_data_without_their_history(tmp_path):
    server = EmbeddedServer(HOST, data_dir=str(tmp_path))
    with server, client(server.start()) as connected:
        for n in range(100):
            connected.set("key", f"{n}" * 10_000)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.aof")) < 30_000
    with server, client(server.start()) as connected:
        assert connected.get("key") == "99" * 10_000


def test_a_stop_that_is_cut_short_leaves_the_data(tmp_path):
    server = EmbeddedServer(HOST, data_dir=str(tmp_path))
    with client(server.start()) as connected:
        for n in range(100):
            connected.set(n, "x" * 10_000)
        connected.config_set("rdb-key-save-delay", 100_000)  # µs: a rewrite takes 10 s
        guard = guard_of(server)
        with ThreadPoolExecutor(1) as pool:
            stopping = pool.submit(server.stop)
            wait_for(lambda: connected.info("persistence")["aof_rewrite_in_progress"])
            kill(guard)
            stopping.result(DEADLINE_S)
    with server, client(server.start()) as connected:
        assert connected.dbsize() == 100


@pytest.mark.parametrize("victim", ["server", "guard"])
def test_data_survive_a_killed_process(tmp_path, victim):
    with EmbeddedServer(HOST, data_dir=str(tmp_path)) as server:
        with client(server.start()) as connected:
            connected.set("key", "value")
        os.kill(server.pid if victim == "server" else guard_of(server), signal.SIGKILL)
        assert server.wait(DEADLINE_S)
        with client(server.start()) as connected:
            assert connected.get("key") == "value"


def test_a_data_dir_is_erased_once_its_data_are_deleted(tmp_path):
    data_dir = tmp_path / "data"
    server = EmbeddedServer(HOST, data_dir=str(data_dir))
    with client(server.start()) as connected:
        connected.set("key", "value")
        server.stop(erase=True)
    with client(server.start()) as connected:
        assert connected.get("key") == "value"
        connected.delete("key")
        (data_dir / "mine.txt").write_text("mine")
        server.stop(erase=True)
    assert [path.name for path in data_dir.iterdir()] == ["mine.txt"]
    (data_dir / "mine.txt").unlink()
    server.start()
    server.stop(erase=True)
    assert not data_dir.exists()


def test_where_the_guard_cannot_have_data_written_the_server_does_it(tmp_path):
    with EmbeddedServer(HOST, data_dir=str(tmp_path)) as server, client(server.start()) as connected:
        unwritable = tmp_path / "appendonlydir" / "appendonly.aof.99.incr.aof"
        unwritable.symlink_to("/dev/null")  # fdatasync refuses it
        # Valkey refuses messages as long as its fsync fails.
        wait_for(lambda: connected.config_get("appendfsync") == {"appendfsync": "everysec"})
        unwritable.unlink()
        os.kill(server.pid, signal.SIGKILL)
        assert server.wait(DEADLINE_S)
        with client(server.restart()) as again:
            assert again.config_get("appendfsync") == {"appendfsync": "no"}


def test_a_child_that_rewrites_the_aof_goes_with_the_server(server, temporary_root):
    guard = guard_of(server)
    with client(server.start()) as connected:
        connected.mset({str(number): "" for number in range(100)})
        connected.config_set("rdb-key-save-delay", 1_000_000)  # us per key
        connected.bgrewriteaof()
        wait_for(lambda: connected.info("persistence")["aof_rewrite_in_progress"] == 1)
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    assert len(children) == 1
    os.kill(server.pid, signal.SIGKILL)
    wait_ended(int(children[0]))
    server.stop()
    wait_ended(guard)
    assert (server.alive, server.pid, server.data_dir, [*temporary_root.iterdir()]) == (False, None, None, [])
    with client(server.start()) as connected:
        assert connected.ping()


@pytest.fixture
def signs(monkeypatch):
    """Give a list of the guard's signs of life; none may wait for less than the whole timeout."""
    signs, real = [], server_link.GuardClient.event

    def event(self, timeout_s):
        found = real(self, timeout_s)
        if found == {"event": "waiting"}:
            assert timeout_s == server_link.START_TIMEOUT_S
            signs.append(found)
        return found

    monkeypatch.setattr(server_link.GuardClient, "event", event)
    return signs


@pytest.mark.long
def test_a_long_load_is_no_timeout(tmp_path, monkeypatch, signs):
    server = EmbeddedServer(HOST, data_dir=str(tmp_path))
    with server, client(server.start()) as connected, connected.pipeline(transaction=False) as pipeline:
        for number in range(4000):
            pipeline.set(number, "x")
        pipeline.execute()
    signs.clear()
    # Valkey answers once per 1024 commands while it loads.
    monkeypatch.setattr(server_module, "CONFIG", server_module.CONFIG + "key-load-delay 500\n")  # us per key
    with server, client(server.start()) as connected:
        assert connected.dbsize() == 4000
    assert len(signs) > 1


def test_work_without_an_answer_is_no_timeout(tmp_path, monkeypatch, signs):
    binary, enough = tmp_path / "busy", tmp_path / "enough"
    binary.write_text(f'#!/bin/sh\nwhile [ ! -e {enough} ]; do :; done\nexec {server_module.find_binary()} "$@"\n')
    binary.chmod(0o700)
    monkeypatch.setattr(server_module, "find_binary", lambda: str(binary))
    server = EmbeddedServer(HOST)
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(server.start)
        try:
            wait_for(lambda: len(signs) > 3)
        finally:
            enough.touch()
        starting.result(DEADLINE_S)
    with server:
        assert server.alive


def test_two_servers_on_one_data_dir_are_refused(tmp_path):
    with EmbeddedServer(HOST, data_dir=str(tmp_path)) as first:
        second = EmbeddedServer(HOST, data_dir=str(tmp_path))
        with pytest.raises(ConfigError) as caught:
            second.start()
        assert str(tmp_path) in str(caught.value)
        assert str(guard_of(first)) in str(caught.value)
        assert caught.value.data_dir == str(tmp_path)
        assert not second.alive
        assert first.alive
        with client(first.start()) as connected:
            assert connected.ping()


def test_waits_for_a_brief_server(tmp_path):
    first, second = (EmbeddedServer(HOST, data_dir=str(tmp_path), brief=brief) for brief in (True, False))
    with first, ThreadPoolExecutor(1) as pool:
        first.start()
        starting = pool.submit(second.start)
        assert not wait([starting], timeout=2.5).done  # longer than it waits for a server that runs on
        first.stop()
        starting.result(DEADLINE_S)
        second.stop()


def test_waits_for_a_server_that_is_stopping(tmp_path):
    first, second = (EmbeddedServer(HOST, data_dir=str(tmp_path)) for _ in range(2))
    with first, ThreadPoolExecutor(2) as pool:
        first.start()
        pid = first.pid
        os.kill(pid, signal.SIGSTOP)
        stopping = pool.submit(first.stop)
        wait_for(lambda: (tmp_path / LOCK_NAME).read_bytes() == b"stopping")
        starting = pool.submit(second.start)
        assert not wait([starting], timeout=0.8).done  # longer than it waits for a server that runs on
        os.kill(pid, signal.SIGCONT)
        stopping.result(DEADLINE_S)
        starting.result(DEADLINE_S)
        assert second.alive
        second.stop()


def test_a_data_dir_that_is_none_is_refused(tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigError, match=r"cannot keep data in .*file"):
        EmbeddedServer(HOST, data_dir=str(file)).start()


def test_a_host_of_another_machine_fails_at_once():
    began = time.monotonic()
    with pytest.raises(ServerFailed, match=r"203\.0\.113\.77.*pass an address of this machine"):
        EmbeddedServer("203.0.113.77").start()
    assert time.monotonic() - began < AT_ONCE_S


@pytest.mark.parametrize("host", ["127.0.0.1\nmaxmemory 1", "", "*"])
def test_a_host_that_cannot_be_is_refused(host):
    with pytest.raises(ConfigError):
        EmbeddedServer(host)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server((HOST, 0)) as taken:
        yield taken.getsockname()[1]


def test_takes_another_port_when_somebody_was_faster(taken_port, monkeypatch, temporary_root):
    ports = [taken_port, server_module.free_port(HOST)]
    monkeypatch.setattr(server_module, "free_port", lambda _: ports.pop(0))
    with EmbeddedServer(HOST) as server:
        assert ports == []
        assert [str(path) for path in temporary_root.iterdir()] == [server.data_dir]


def test_gives_up_when_every_port_is_taken(taken_port, monkeypatch, temporary_root):
    monkeypatch.setattr(server_module, "free_port", lambda _: taken_port)
    with pytest.raises(ServerFailed, match="try again") as caught:
        EmbeddedServer(HOST).start()
    assert "Address already in use" in str(caught.value)
    assert list(temporary_root.iterdir()) == []


@pytest.fixture
def silent(tmp_path):
    """Give a binary that never answers."""
    binary = tmp_path / "silent"
    binary.write_text("#!/bin/sh\nexec sleep 60\n")
    binary.chmod(0o700)
    return str(binary)


@pytest.mark.parametrize(
    ("module", "name", "value", "says"),
    [
        (server_module, "CONFIG", server_module.CONFIG + "no-such-setting 1\n", "no-such-setting"),
        (server_module, "find_binary", lambda: "/no/such/binary", "cannot run /no/such/binary"),
        (server_link, "GUARD", Path("/no/such/guard.py"), "its guard process died"),
        (server_link, "START_TIMEOUT_S", 0.3, "no sign of life within"),
    ],
    ids=["a wrong setting", "a missing binary", "a guard that dies", "a server that never answers"],
)
def test_a_failed_start_says_why_and_leaves_nothing(monkeypatch, temporary_root, silent, module, name, value, says):
    monkeypatch.setattr(module, name, value)
    if name == "START_TIMEOUT_S":
        monkeypatch.setattr(server_module, "find_binary", lambda: silent)
    with pytest.raises(ServerFailed, match=r"the log says why|died|no sign of life") as caught:
        EmbeddedServer(HOST).start()
    assert says in f"{caught.value} {caught.value.log}"
    assert list(temporary_root.iterdir()) == []
