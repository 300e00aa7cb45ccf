"""The unix socket of a server on this machine: used if it exists, else TCP."""

import asyncio
import os
import signal
import socket

import pytest
from support.embedded_server import DEADLINE_S, HOST

from ray_messaging.config import RedisConfig
from ray_messaging.embedded.machine import may_hold_sockets
from ray_messaging.embedded.redis_server import EmbeddedServer
from ray_messaging.transports.connection.link import RedisLink


async def way(config: RedisConfig) -> str:
    """Return how the server says that a link reached it."""
    link = RedisLink(config, patience_s=2.0)
    try:
        await link.connect()
        told = (await link.command("CLIENT", "INFO")).decode()
    finally:
        await link.close()
    return dict(field.partition("=")[::2] for field in told.split())["laddr"]


def test_the_embedded_server_is_reached_by_its_socket_also_after_it_was_killed():
    with EmbeddedServer(HOST) as server:
        config = server.start()
        for _ in range(2):
            assert f"[{config.socket_dir}/{config.port}.sock:0]" in asyncio.run(way(config))
            os.kill(server.pid, signal.SIGKILL)
            assert server.wait(DEADLINE_S)
            assert server.restart() == config


@pytest.mark.parametrize("left", [False, True], ids=["not on this machine", "without a listener"])
def test_a_socket_that_nobody_serves_leaves_the_network(valkey_config, tmp_path, monkeypatch, left):
    monkeypatch.chdir(tmp_path)
    if left:
        with socket.socket(socket.AF_UNIX) as unserved:
            unserved.bind(f"{valkey_config.port}.sock")
    config = valkey_config.model_copy(update={"socket_dir": "."})
    assert asyncio.run(way(config)) == f"{config.server}:{config.port}"


def test_a_connection_does_not_read_the_metadata_of_packages(valkey_config, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", None)
    assert asyncio.run(way(valkey_config))


def test_a_directory_of_the_users_has_one_where_its_name_is_short(tmp_path):
    with EmbeddedServer(HOST, data_dir=str(tmp_path)) as server:
        assert f"{tmp_path}/" in asyncio.run(way(server.start()))
    with EmbeddedServer(HOST, data_dir=str(tmp_path / ("x" * 100))) as server:
        config = server.start()
        assert config.socket_dir is None
        assert asyncio.run(way(config)) == f"{config.server}:{config.port}"


@pytest.mark.parametrize("name", ["x" * 100, 'quoted"name', "not/there/yet"])
def test_where_there_can_be_no_socket_there_is_none(tmp_path, name):
    assert not may_hold_sockets(tmp_path / name)
    assert not list(tmp_path.iterdir())
