"""Fixtures of the contract suites, and the promises that an MQTT broker, or several servers, cannot keep."""

import contextlib

import pytest
from support.contracts import MqttStore, store_of
from support.servers import RedisProcess

from ray_messaging.errors import ConnectionFailed
from ray_messaging.mqtt.receiving.session import end_session
from ray_messaging.mqtt.transport import MqttTransport
from ray_messaging.transports.memory import MemoryServer
from ray_messaging.transports.sharded.config import ShardsConfig


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "beyond_mqtt(reason): what the test asks an MQTT broker cannot promise; docs/mqtt.md says why"
    )
    config.addinivalue_line(
        "markers", "beyond_shards(reason): what the test asks needs one server; docs/operations.md says why"
    )


# These tests do not depend on which Redis-like server runs: the default suite uses Valkey only.
EITHER_REDIS = (
    "test_acks.py",
    "test_addresses.py",
    "test_audiences.py",
    "test_complete.py",
    "test_conversations.py",
    "test_dead_letters.py",
    "test_deferred.py",
    "test_fates.py",
    "test_foreign.py",
    "test_garbage_in_dead_letters.py",
    "test_interception.py",
    "test_log_streams.py",
    "test_moves.py",
    "test_msg_payloads.py",
    "test_receiving.py",
    "test_step_log.py",
    "test_step_store.py",
    "test_steps.py",
    "test_surveys.py",
    "test_transactions.py",
)


# The default suite asks the rest of one server only.
SOME_SHARDS = ("test_dead_letters.py", "test_fates.py", "test_foreign.py", "test_log_streams.py")


@pytest.hookimpl(tryfirst=True)  # before pytest looks at -m
def pytest_collection_modifyitems(config, items):
    for item in items:
        kind = _server_of(item)
        if kind == "cluster" or (kind == "redis" and item.path.name in EITHER_REDIS):
            item.add_marker(pytest.mark.long)
    for item in items:
        if _server_of(item) == "shards" and item.path.name not in SOME_SHARDS:
            item.add_marker(pytest.mark.long)
    beyond = [item for item in items if item.get_closest_marker(f"beyond_{_server_of(item)}")]
    if beyond:
        config.hook.pytest_deselected(items=beyond)
        items[:] = [item for item in items if item not in beyond]


def _server_of(item):
    return item.callspec.params.get("server") if hasattr(item, "callspec") else None


@pytest.fixture(params=["memory", "valkey", "redis", "cluster", "shards", "mqtt"])
def server(request):
    """Yield each kind of server that a messager can connect to."""
    if request.param == "memory":
        return MemoryServer()
    return request.getfixturevalue("mosquitto_config" if request.param == "mqtt" else f"{request.param}_config")


@pytest.fixture
async def opener(opener):
    """Open messagers. On a broker, which other tests use too, leave no session behind."""
    yield opener
    for messager in reversed(opener.opened):
        await messager.close()
    left = {(messager.exp_id, messager.name): messager.engine.transport for messager in opener.opened}
    for (exp_id, name), transport in left.items():
        if isinstance(transport, MqttTransport):
            with contextlib.suppress(ConnectionFailed):  # the test has killed it
                await end_session(transport._config, f"rm-{exp_id}-{name}")


@pytest.fixture
async def store(server, exp_id, opener):
    """Give direct access to the store of the server under test."""
    opened = store_of(server, exp_id, opener.opened)
    if isinstance(opened, MqttStore):
        await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
def processes(tmp_path):
    """Start three servers of the test's own, which it may kill."""
    started = []
    for shard in range(3):
        (tmp_path / str(shard)).mkdir()
        started.append(RedisProcess(tmp_path / str(shard), binary="valkey").start())
    yield started
    for process in started:
        process.kill()


@pytest.fixture
def own_shards(processes):
    """Give the config of these servers as the shards of one experiment."""
    return ShardsConfig(servers=tuple(process.config for process in processes))
