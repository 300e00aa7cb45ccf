"""Servers for every suite, and messagers that are closed at the end of their test."""

import asyncio
import shutil
import signal
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from redis import Redis
from support.clock import ServerClock
from support.contracts import RedisStore
from support.patience import WAIT_S
from support.replicated import ReplicatedService
from support.servers import HOST, MosquittoProcess, RedisProcess, find_binary
from support.slots import ClusterService

from ray_messaging.compat.mqtt.mqtt_config import MqttConfig
from ray_messaging.config import MessagingConfig, RedisConfig, ShardsConfig
from ray_messaging.embedded.redis_server import EmbeddedServer
from ray_messaging.messager import Messager
from ray_messaging.transports.backend import open_transport

pytest_plugins = ["support.side_by_side", "support.skipped", "support.soak", "support.properties"]


def pytest_configure():
    """Have Ctrl-C interrupt tests and their processes, also in a job in the background, where a shell ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """Refuse a test named by a place in memory: two processes would not agree on its name."""
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"give this case an id of its own: {item.nodeid[:200]}")


def pytest_runtest_setup(item):
    """Skip the case of a Redis that is not here: its sibling asks the same of Valkey."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    if any(isinstance(param, str) and param == "redis" for param in params.values()):
        find_binary("redis-server")


@pytest.fixture(scope="session")
def valkey_config() -> Iterator[RedisConfig]:
    with EmbeddedServer(HOST) as server:
        yield server.start()


@pytest.fixture(scope="session")
def _local_config() -> Iterator[RedisConfig]:
    with EmbeddedServer(HOST, append_only=False) as server:
        yield server.start()


@pytest.fixture
def local(_local_config) -> RedisConfig:
    """Give an empty server, on which a test may take any name."""
    with Redis(_local_config.server, _local_config.port, password=_local_config.password) as client:
        client.flushall()
    return _local_config


@pytest.fixture
async def transports(local) -> AsyncIterator:
    """Open transports to the empty server."""
    opened = []

    async def open_one(exp_id="town"):
        opened.append(open_transport(local, exp_id, MessagingConfig()))
        await opened[-1].connect()
        return opened[-1]

    yield open_one
    for transport in opened:
        await transport.close()


@pytest.fixture(scope="session")
def shards_config(valkey_config) -> Iterator[ShardsConfig]:
    """Give three servers; in steps they share the bodies of all frames but the smallest."""
    with EmbeddedServer(HOST) as second, EmbeddedServer(HOST) as third:
        yield ShardsConfig(servers=(valkey_config, second.start(), third.start()), body_bytes=64)


@pytest.fixture(scope="session")
def redis_config(tmp_path_factory) -> Iterator[RedisConfig]:
    with RedisProcess(tmp_path_factory.mktemp("redis")) as process:
        yield process.config


@pytest.fixture(scope="session")
def cluster_config(tmp_path_factory) -> Iterator[RedisConfig]:
    with ClusterService(tmp_path_factory.mktemp("cluster")) as service:
        yield service.config


@pytest.fixture(scope="session")
def spread_config(cluster_config) -> ShardsConfig:
    """Give a cluster over which the bodies of each experiment's steps are spread; see `shards_config`."""
    return ShardsConfig(servers=(cluster_config.model_copy(update={"shards": 3}),) * 3, body_bytes=64)


@pytest.fixture(scope="session")
def sentinel_config(tmp_path_factory) -> Iterator[RedisConfig]:
    """Give a primary with a replica, by its Sentinels."""
    folder = tmp_path_factory.mktemp("sentinel")
    with ReplicatedService(folder, binary="valkey", down_after_ms=60_000) as service:
        yield service.config


@pytest.fixture
def redis_process(tmp_path) -> Iterator[RedisProcess]:
    """Start a server of the test's own, which it may kill."""
    with RedisProcess(tmp_path) as process:
        yield process


@pytest.fixture
def server_clock(tmp_path) -> ServerClock:
    """Give a clock for a server of the test's own, which the test steps."""
    return ServerClock(tmp_path)


@pytest.fixture(params=["valkey", "redis-server"])
def clocked_server(request, tmp_path, server_clock) -> Iterator[RedisProcess]:
    """Start each kind of server on a clock that the test steps: `server_clock.step(client, seconds)`."""
    with RedisProcess(tmp_path, binary=request.param, env=server_clock.env) as process:
        yield process


@pytest.fixture(scope="session")
def mosquitto_config(tmp_path_factory) -> Iterator[MqttConfig]:
    with MosquittoProcess(tmp_path_factory.mktemp("mosquitto"), durable=False) as process:
        yield process.config


@pytest.fixture
def mosquittos(tmp_path) -> Iterator:
    """Start brokers of the test's own, with options of MosquittoProcess."""
    with ExitStack() as started:
        yield lambda **options: started.enter_context(
            MosquittoProcess(Path(tempfile.mkdtemp(prefix="mosquitto-", dir=tmp_path)), **options)
        )


@pytest.fixture
def mosquitto(mosquittos) -> MosquittoProcess:
    """Start a broker of the test's own, which it may kill."""
    return mosquittos()


@pytest.fixture
def exp_id() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture(params=["valkey", "redis"])
def server(request):
    """Give each kind of server that keeps an event log, too."""
    return request.getfixturevalue(f"{request.param}_config")


@pytest.fixture
async def opener(exp_id) -> AsyncIterator:
    """Open messagers on any server; at the end they are closed, and none of their tasks may be left."""
    opened = []

    async def open_one(server, interceptor=None, *, name=None, listen=(), host=(), owner="", exp_id=exp_id, **settings):
        messager = Messager(
            server, exp_id, interceptor, name=name, settings=MessagingConfig(**open_one.defaults | settings)
        )
        opened.append(messager)
        await messager.init()
        if listen:
            await messager.subscribe_and_start_listening(list(listen))
        if host:
            await messager.host_agents(host, ["agent-chat", "user-chat"], owner=owner)
        return messager

    open_one.opened, open_one.defaults = opened, {}
    yield open_one
    for messager in reversed(opened):
        async with asyncio.timeout(WAIT_S):  # a failed test may still hold up its messages
            await messager.close()
    left = [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("ray_messaging")]
    assert not left


@pytest.fixture(params=["valkey", "redis-server"])
def own_server(request, tmp_path):
    """Start each kind of server, for a test that kills it or deletes its data."""
    with RedisProcess(tmp_path, binary=request.param) as process:
        yield process


@pytest.fixture
def messagers(opener, server):
    """Open messagers on the server under test."""

    async def open_one(*args, **settings):
        return await opener(server, *args, **settings)

    return open_one


@pytest.fixture
async def store(server, exp_id):
    """Give direct access to the store of the server under test."""
    opened = RedisStore(server, exp_id)
    yield opened
    await opened.close()


@pytest.fixture(scope="session")
def data(request):
    """Return a function from a real data set's name to its path; it skips the test where there is none."""

    def path_of(name):
        path = request.config.rootpath.parent / "shared" / "data" / name
        if not path.exists():
            pytest.skip(f"{path} is absent: the real traces are not part of the repository")
        return path

    return path_of


@pytest.fixture(scope="session")
def ray_cluster():
    """Run Ray on this machine, once; imported here, as most suites do without it."""
    import ray
    from support import cluster as cluster_support
    from support import step_society
    from support.bare_ray import start_ray

    start_ray()
    # Tasks of the tests may use it, and workers cannot import it.
    for module in (cluster_support, step_society):
        ray.cloudpickle.register_pickle_by_value(module)
    yield
    for module in (cluster_support, step_society):
        ray.cloudpickle.unregister_pickle_by_value(module)
    ray.shutdown()


@pytest.fixture
def home():
    """Give drivers of the test's own a short path, as Ray puts sockets there; none of them outlives the test."""
    from support.own_driver import kill_related

    path = Path(tempfile.mkdtemp(prefix="rm-", dir="/tmp"))
    yield path
    kill_related(path)
    shutil.rmtree(path, ignore_errors=True)
