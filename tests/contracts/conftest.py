"""Fixtures of the contract suites, and the promises that several servers cannot keep."""

import pytest
from support.contracts import store_of
from support.servers import RedisProcess

from ray_messaging.transports.memory import MemoryServer
from ray_messaging.transports.sharded.config import ShardsConfig


def pytest_configure(config):
    config.addinivalue_line("markers", "some_layouts(reason): why these tests have servers of their own choice")
    config.addinivalue_line(
        "markers", "beyond_shards(reason): what the test asks needs one server; docs/operations.md says why"
    )


LAYOUTS = ("memory", "valkey", "redis", "cluster", "spread", "sentinel", "shards")

# The default suite asks these of each file; `-m long` asks the rest, and CI all of these but the soaking ones.
USUAL = {"memory", "valkey", "redis"}
EITHER_REDIS = {"memory", "valkey"}  # which Redis-like server runs makes no difference
SOAKING = {"sentinel", "spread", "redis"}  # with the code of Redis and shards, and a way or keys of their own
# CI asks for mailboxes on several servers in the suites of shards, and in what UNUSUAL names; here for bodies of steps.
OF_BODIES = {"test_large_steps.py", "test_step_log.py", "test_step_parts.py", "test_steps.py"}
UNUSUAL = {
    "test_acks.py": EITHER_REDIS,
    "test_addresses.py": EITHER_REDIS,
    "test_audience_log.py": {"memory"},
    "test_audience_records.py": EITHER_REDIS,
    "test_audiences.py": EITHER_REDIS,
    "test_complete.py": EITHER_REDIS,
    "test_conversations.py": EITHER_REDIS,
    "test_dead_letters.py": EITHER_REDIS | {"shards"},
    "test_deferred.py": EITHER_REDIS,
    "test_delegated_rules.py": EITHER_REDIS,
    "test_fates.py": EITHER_REDIS | {"shards"},
    "test_foreign.py": EITHER_REDIS | {"shards"},
    "test_full_and_slow_steps.py": {"valkey"},
    "test_garbage_in_dead_letters.py": EITHER_REDIS,
    "test_interception.py": EITHER_REDIS,
    "test_late_calls.py": EITHER_REDIS,
    "test_log_streams.py": EITHER_REDIS | {"shards"},
    "test_moves.py": EITHER_REDIS | {"shards"},
    "test_moves_in_steps.py": EITHER_REDIS | {"shards"},
    "test_msg_payloads.py": EITHER_REDIS,
    "test_receiving.py": EITHER_REDIS,
    "test_serving.py": EITHER_REDIS,
    "test_step_log.py": EITHER_REDIS,
    "test_step_membership.py": {"memory"},
    "test_step_moves.py": EITHER_REDIS,
    "test_step_parts.py": EITHER_REDIS,
    "test_step_questions.py": EITHER_REDIS,
    "test_step_refusals.py": EITHER_REDIS,
    "test_step_rules.py": {"memory"},
    "test_step_store.py": EITHER_REDIS,
    "test_steps.py": EITHER_REDIS,
    "test_surveys.py": EITHER_REDIS,
    "test_transactions.py": EITHER_REDIS,
    "test_very_many_channels.py": EITHER_REDIS,
}

# Shards in a cluster have the code of shards with servers of their own, and other keys. These ask for all of the keys.
OF_KEYS = {
    "test_audience_log.py",
    "test_dead_letters.py",
    "test_delegated_rules.py",
    "test_fates.py",
    "test_foreign.py",
    "test_log_streams.py",
    "test_moves.py",
    "test_moves_in_steps.py",
    "test_receiving.py",
    "test_step_log.py",
    "test_step_questions.py",
    "test_steps.py",
    "test_surveys.py",
    "test_transactions.py",
}


@pytest.hookimpl(tryfirst=True)  # before pytest looks at -m
def pytest_collection_modifyitems(config, items):
    for item in items:
        server = _server_of(item)
        if server in set(LAYOUTS) - UNUSUAL.get(item.path.name, USUAL):
            item.add_marker(pytest.mark.long)
            if server in SOAKING or (server == "shards" and item.path.name not in OF_BODIES):
                item.add_marker(pytest.mark.soak)
    beyond = {item for item in items if item.get_closest_marker(f"beyond_{_kind_of(item)}")}
    beyond |= {item for item in items if _server_of(item) == "spread" and item.path.name not in OF_KEYS}
    if beyond:
        config.hook.pytest_deselected(items=list(beyond))
        items[:] = [item for item in items if item not in beyond]


def _server_of(item):
    """Return the layout that a test asks, or that it names by itself."""
    found = item.callspec.params.get("server") if hasattr(item, "callspec") else None
    return found if isinstance(found, str) else None


def _kind_of(item):
    return "shards" if _server_of(item) == "spread" else _server_of(item)


@pytest.fixture(params=LAYOUTS)
def server(request):
    """Yield each kind of server that a messager can connect to."""
    if request.param == "memory":
        return MemoryServer()
    return request.getfixturevalue(f"{request.param}_config")


@pytest.fixture
def opener(opener, request):
    """Open messagers, which wait for a replica where there is one."""
    if _server_of(request.node) == "sentinel":
        opener.defaults = {"wait_replicas": 1}
    return opener


@pytest.fixture
async def store(server, exp_id, opener):
    """Give direct access to the store of the server under test."""
    opened = store_of(server, exp_id, opener.opened)
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


@pytest.fixture
def news(exp_id):
    """Give a plain channel of this test alone: in a cluster, publications of others may come late."""
    return f"news-{exp_id}"
