"""Servers for every suite, and messagers that are closed at the end of their test."""

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import uuid
from collections import deque
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis import Redis
from support.clock import ServerClock
from support.own_driver import kill_related
from support.replicated import ReplicatedService
from support.servers import HOST, RedisProcess, find_binary, free_port
from support.slots import ClusterService

from ray_messaging.compat.mqtt.config import MqttConfig
from ray_messaging.config import MessagingConfig, RedisConfig, ShardsConfig
from ray_messaging.embedded.server import EmbeddedServer
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
    process = RedisProcess(tmp_path_factory.mktemp("redis"))
    try:
        yield process.start().config
    finally:
        process.kill()


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
    process = RedisProcess(tmp_path)
    try:
        yield process.start()
    finally:
        process.kill()


@pytest.fixture
def server_clock(tmp_path) -> ServerClock:
    """Give a clock for a server of the test's own, which the test steps."""
    return ServerClock(tmp_path)


@pytest.fixture(params=["valkey", "redis-server"])
def clocked_server(request, tmp_path, server_clock) -> Iterator[RedisProcess]:
    """Start each kind of server on a clock that the test steps: `server_clock.step(client, seconds)`."""
    process = RedisProcess(tmp_path, binary=request.param, env=server_clock.env)
    try:
        yield process.start()
    finally:
        process.kill()


class MosquittoProcess:
    """Debian's Mosquitto on a free port; it can be killed, stopped, and started again on the same data.

    `durable` writes its database after each change; `users` maps names to passwords, nobody else is let in then; `tls`
    is a folder with ca.pem, server.pem and server.key; `options` are further lines of its configuration.
    """

    def __init__(self, folder, *, durable=True, users=None, tls=None, options=()):
        self.binary = find_binary("mosquitto")
        self.folder = folder
        self.config = MqttConfig(server=HOST, port=free_port(), timeout=10)
        self.lines = deque(maxlen=200)
        self.process = None
        self._reader = None
        self._durable, self._users, self._tls, self._options = durable, users, tls, list(options)

    def _configured(self):
        lines = [
            f"listener {self.config.port} {HOST}",
            f"allow_anonymous {'false' if self._users else 'true'}",
            "max_queued_messages 0",
            "connection_messages false",
            "log_dest stderr",  # it writes stdout by the bufferful
        ]
        if os.geteuid() == 0:
            lines.append("user root")  # else it becomes a user who may not write here
        if self._durable:
            lines += ["persistence true", f"persistence_location {self.folder}/"]
            lines += ["autosave_interval 1", "autosave_on_changes true"]
        if self._users:
            names = self.folder / "users"
            names.touch(mode=0o600)
            for name, password in self._users.items():
                subprocess.run([find_binary("mosquitto_passwd"), "-b", str(names), name, password], check=True)
            lines.append(f"password_file {names}")
        if self._tls:
            lines += [
                f"cafile {self._tls}/ca.pem",
                f"certfile {self._tls}/server.pem",
                f"keyfile {self._tls}/server.key",
            ]
        path = self.folder / "mosquitto.conf"
        path.write_text("\n".join([*lines, *self._options, ""]))
        return path

    def start(self):
        self.process = subprocess.Popen(
            [self.binary, "-c", str(self._configured())], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        running = threading.Event()
        # It logs for as long as it lives, and a full pipe would stop it.
        self._reader = threading.Thread(target=self._read, args=(self.process, running))
        self._reader.start()
        running.wait()
        if self.process.poll() is not None or not any(" running" in line for line in self.lines):
            self.kill()
            raise AssertionError("mosquitto did not start:\n" + "".join(self.lines))
        return self

    def _read(self, process, running):
        for line in process.stdout:
            self.lines.append(line)
            if line.rstrip().endswith(" running"):
                running.set()
        running.set()

    def kill(self):
        self._end(lambda process: process.kill())

    def stop(self):
        """Let it write its database and say farewell to its clients."""
        self._end(lambda process: process.terminate())

    def _end(self, signal):
        if self.process is not None:
            signal(self.process)
            self.process.wait()
            self._reader.join()
            self.process.stdout.close()
            self.process = None


@pytest.fixture(scope="session")
def mosquitto_config(tmp_path_factory) -> Iterator[MqttConfig]:
    process = MosquittoProcess(tmp_path_factory.mktemp("mosquitto"), durable=False)
    try:
        yield process.start().config
    finally:
        process.kill()


@pytest.fixture
def mosquittos(tmp_path) -> Iterator:
    """Start brokers of the test's own, with options of MosquittoProcess."""
    started = []

    def start(**options):
        folder = tmp_path / f"mosquitto-{len(started)}"
        folder.mkdir()
        started.append(MosquittoProcess(folder, **options))
        return started[-1].start()

    yield start
    for process in started:
        process.kill()


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
        await messager.close()
    left = [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("ray_messaging")]
    assert not left


@pytest.fixture(params=["valkey", "redis-server"])
def own_server(request, tmp_path):
    """Start each kind of server, for a test that kills it or deletes its data."""
    process = RedisProcess(tmp_path, binary=request.param)
    try:
        yield process.start()
    finally:
        process.kill()


@pytest.fixture
def messagers(opener, server):
    """Open messagers on the server under test."""

    async def open_one(*args, **settings):
        return await opener(server, *args, **settings)

    return open_one


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
    path = Path(tempfile.mkdtemp(prefix="rm-", dir="/tmp"))
    yield path
    kill_related(path)
    shutil.rmtree(path, ignore_errors=True)
