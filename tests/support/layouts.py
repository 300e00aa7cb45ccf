"""The layouts of servers on which the suites of contracts and of stores run, and what a test opens on them."""

from contextlib import ExitStack

import pytest

from ray_messaging.config import MessagingConfig, ShardsConfig
from ray_messaging.transports.backend import open_transport
from support.servers import RedisProcess

LAYOUTS = ("valkey", "redis", "cluster", "sentinel", "shards")

# The default suite asks Valkey, and Redis in these files; `-m long` asks the rest, and CI all but the soaking ones.
ASK_REDIS = {
    "test_clock_steps.py",
    "test_columns.py",
    "test_forgotten_commits.py",
    "test_inboxes.py",
    "test_keys_left_behind.py",
    "test_large_frames.py",
    "test_lost_state.py",
    "test_redis_faults.py",
    "test_refusals_that_stay.py",
    "test_schemas.py",
    "test_server_health.py",
    "test_strict_senders.py",
    "test_typed_messages.py",
    "test_unreadable_frames.py",
}
SOAKING = {"sentinel", "redis"}  # with the code of Valkey, and a way of their own
# What is asked with bodies on three servers; of a cluster all suites of steps ask it with bodies on each primary.
OF_BODIES = {"test_full_and_slow_steps.py", "test_step_log.py", "test_steps.py"}


@pytest.hookimpl(tryfirst=True)  # before pytest looks at -m
def pytest_collection_modifyitems(config, items):
    for item in items:
        server = _server_of(item)
        usual = {"valkey", "redis"} if item.path.name in ASK_REDIS else {"valkey"}
        if server in set(LAYOUTS) - usual:
            item.add_marker(pytest.mark.long)
            if server in SOAKING:
                item.add_marker(pytest.mark.soak)
    beyond = {item for item in items if _is_beyond(item)}
    if beyond:
        config.hook.pytest_deselected(items=list(beyond))
        items[:] = [item for item in items if item not in beyond]


def _is_beyond(item):
    """Return whether a layout is none of those that a file asks."""
    server = _server_of(item)
    lone = item.get_closest_marker("one_server") and server in {"cluster", "sentinel"}
    return lone or (server == "shards" and item.path.name not in OF_BODIES)


def _server_of(item):
    """Return the layout that a test asks, or that it names by itself."""
    found = item.callspec.params.get("server") if hasattr(item, "callspec") else None
    return found if isinstance(found, str) else None


@pytest.fixture(params=LAYOUTS)
def server(request):
    """Yield each kind of server that a messager can connect to."""
    if request.param == "cluster" and "step" in request.path.name:
        return request.getfixturevalue("spread_config")
    return request.getfixturevalue(f"{request.param}_config")


@pytest.fixture
def opener(opener, request):
    """Open messagers, which wait for a replica where there is one."""
    if _server_of(request.node) == "sentinel":
        opener.defaults = {"wait_replicas": 1}
    return opener


@pytest.fixture
async def transports(server, exp_id):
    """Open transports to the server under test, each as another process does."""
    opened = []

    async def open_one(config=server, **settings):
        opened.append(open_transport(config, exp_id, MessagingConfig(**settings)))
        await opened[-1].connect()
        return opened[-1]

    yield open_one
    for transport in opened:
        await transport.close()


@pytest.fixture
async def transport(transports):
    """Open one."""
    return await transports()


@pytest.fixture
def processes(tmp_path):
    """Start three servers of the test's own, which it may kill."""
    with ExitStack() as started:
        yield [started.enter_context(RedisProcess(tmp_path / str(n), binary="valkey")) for n in range(3)]


@pytest.fixture
def own_shards(processes):
    """Give the config of these servers, on which the bodies of one experiment's steps are."""
    return ShardsConfig(servers=tuple(process.config for process in processes))


@pytest.fixture
def news(exp_id):
    """Give a plain channel of this test alone: in a cluster, publications of others may come late."""
    return f"news-{exp_id}"
