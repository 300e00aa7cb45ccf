"""Servers and brokers for tests: processes that can be killed, stopped, and started again on the same data."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import threading
import unittest
from collections import deque
from contextlib import contextmanager, suppress
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ray_messaging.compat.mqtt.mqtt_config import MqttConfig
from ray_messaging.config import RedisConfig
from ray_messaging.embedded import machine

HOST = "127.0.0.1"
PASSWORD = "a secret of the tests"


class MissingServer(unittest.SkipTest):
    """A program is not on this machine: the test that asks for it is skipped, from wherever it asks."""


def _ports():
    """Yield the ports of this process, each again only after all others: a server that is down keeps its own."""
    worker, workers = (os.environ.get(f"PYTEST_XDIST_{name}", "") for name in ("WORKER", "WORKER_COUNT"))
    share = len(_PORTS) // int(workers or 1)
    first = share * int(worker.removeprefix("gw") or 0)
    begin = secrets.randbelow(share)  # another run of the tests may use them, too
    while True:
        yield from (_PORTS[first + (begin + at) % share] for at in range(share))


_PORTS = range(20_000, 32_000)  # Ray's are below, Linux's for connections above
_own_ports, _choosing = _ports(), threading.Lock()


def free_port():
    """Return a port that no outgoing connection is given: a server that was killed finds it free again."""
    while True:
        with _choosing:
            port = next(_own_ports)
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, port))
            return port


def find_binary(name):
    """Return a program's path, of the package or on PATH.

    Raises MissingServer, or LookupError where RAY_MESSAGING_REQUIRE_SERVERS is 1: there a skip would hide a failure.
    """
    if name == "valkey":
        return machine.find_binary()  # the one that the product ships with
    found = shutil.which(name)
    if found is None:
        told = f"{name} is not on PATH: apt-get install {name.partition('_')[0]} (Debian may put it in /usr/sbin)"
        if os.environ.get("RAY_MESSAGING_REQUIRE_SERVERS") == "1":
            raise LookupError(f"{told}; RAY_MESSAGING_REQUIRE_SERVERS says that it must be here")
        raise MissingServer(told)
    return found


def redis_or_valkey():
    """Return which of them serves a test that asks for either; Valkey is here wherever the package is."""
    try:
        find_binary("redis-server")
    except MissingServer:
        return "valkey"
    return "redis-server"


class ServerProcess:
    """A program whose output says when it serves; as a context manager it leaves no process behind."""

    serving = ""  # words of its output
    process = None

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.kill()

    def _start(self, command, configuration, env):
        """Start it with its configuration as its input; return when it serves."""
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | env,
            restore_signals=False,  # SIGXFSZ stays ignored: a file that may not grow is an error of write()
        )
        self.process.stdin.write("\n".join([*configuration, ""]))
        self.process.stdin.close()
        self._lines, self._serves, serves = deque(maxlen=200), False, threading.Event()
        # It logs for as long as it lives, and a full pipe would stop it.
        self._reader = threading.Thread(target=self._read, args=(self.process, serves), daemon=True)
        self._reader.start()
        serves.wait()
        if not self._serves:
            self.kill()
            raise AssertionError("the server did not start:\n" + "".join(self._lines))
        return self

    def _read(self, process, serves):
        for line in process.stdout:
            self._lines.append(line)
            if self.serving in line:
                self._serves = True
                serves.set()
        serves.set()

    def kill(self):
        """End it as a power switch does; its files stay."""
        self._end(signal.SIGKILL)

    def _end(self, how):
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait()
            self._reader.join()
            self.process.stdout.close()
            self.process = None


class RedisProcess(ServerProcess):
    """A redis-server (or Valkey) on a free port, with a password and an append-only file in `folder`.

    `binary` None is either, whichever is here. `env` goes into its environment, a clock of its own (clock.ServerClock)
    for one. `options` are further lines of its configuration, by name; None leaves a default out.
    """

    serving = "eady to accept connections"

    def __init__(self, folder, *, binary=None, timeout=10.0, env=None, **options):
        self.binary = find_binary(binary or redis_or_valkey())
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.config = RedisConfig(server=HOST, port=free_port(), password=PASSWORD, timeout=timeout)
        self._env = env or {}
        defaults = {"appendonly": "yes", "appendfsync": "always", "save": "''", "maxmemory-policy": "noeviction"}
        self._options = defaults | {name.replace("_", "-"): value for name, value in options.items()}

    def set(self, name, value):
        """Set a line of its configuration, from the next start on."""
        self._options[name] = value

    @property
    def pid(self):
        return self.process.pid

    def start(self):
        """Start the server on the data in its folder; return when it serves."""
        lines = [f"bind {HOST}", f"port {self.config.port}", f"requirepass '{PASSWORD}'", f"dir {self.folder}"]
        lines += [f"{name} {value}" for name, value in self._options.items() if value is not None]
        return self._start([self.binary, "-"], lines, self._env)

    def client(self, **options):
        """Return a blocking client of it, for the test's own hand."""
        config = self.config
        options = {"retry": Retry(NoBackoff(), 0), "protocol": 2, "socket_timeout": 10} | options
        return redis.Redis(host=config.server, port=config.port, password=config.password, **options)

    def pause(self):
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self):
        os.kill(self.pid, signal.SIGCONT)

    @contextmanager
    def paused(self):
        """Let it stand still: it stays connected, and answers nothing."""
        self.pause()
        try:
            yield
        finally:
            self.resume()


class MosquittoProcess(ServerProcess):
    """Debian's Mosquitto on a free port.

    `durable` writes its database after each change; `users` maps names to passwords, nobody else is let in then.
    """

    serving = " running"

    def __init__(self, folder, *, durable=True, users=None):
        self.binary = find_binary("mosquitto")
        self.config = MqttConfig(server=HOST, port=free_port(), timeout=10)
        self._folder, self._durable, self._users = folder, durable, users

    def start(self):
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
            lines += ["persistence true", f"persistence_location {self._folder}/"]
            lines += ["autosave_interval 1", "autosave_on_changes true"]
        if self._users:
            names = self._folder / "users"
            names.touch(mode=0o600)
            for name, password in self._users.items():
                subprocess.run([find_binary("mosquitto_passwd"), "-b", str(names), name, password], check=True)
            lines.append(f"password_file {names}")
        return self._start([self.binary, "-c", "/dev/stdin"], lines, {})

    def stop(self):
        """Let it write its database and say farewell to its clients."""
        self._end(signal.SIGTERM)
