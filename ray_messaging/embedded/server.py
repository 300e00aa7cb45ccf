"""The embedded server: Valkey in a process of its own that does not outlive its owner."""

import logging
import os
import re
import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self, get_args

from ray_messaging.common.process_tuning import KEPT_VARIABLES
from ray_messaging.config import RedisConfig
from ray_messaging.embedded import data_directory
from ray_messaging.embedded.guard_client import GuardClient
from ray_messaging.embedded.machine import backlog, find_binary, free_port, may_hold_sockets, memory_bytes
from ray_messaging.errors import ConfigError, ServerFailed

logger = logging.getLogger(__name__)

Durability = Literal["no", "everysec", "always"]

PORT_ATTEMPTS: Final = 5
HANDOVER_S: Final = 15.0  # a server that stops, and gives back gigabytes of memory, takes seconds
HOST: Final = re.compile(r"[A-Za-z0-9:][A-Za-z0-9.:_%-]*")  # it becomes a line of Valkey's config
LEFT: Final = re.compile(r"port (?P<port>\d+)\nrequirepass (?P<password>\S+)\n")
# Latencies are not tracked: each command in a script would be timed, for a section of INFO that nobody asks for.
# The last line: what a client does not read counts for its limit only where it is copied, and would fill the memory.
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
aof-load-truncated yes
auto-aof-rewrite-min-size 256mb
maxmemory {maxmemory}
maxmemory-policy noeviction
latency-tracking no
min-string-size-avoid-copy-reply 1073741824
"""
UNIX_SOCKET: Final = """\
unixsocket "{redis.socket_dir}/{redis.port}.sock"
unixsocketperm 700
"""
HINTS: Final = {
    "data_dir": "stop that server, or give another directory that this user can write to",
    "port": "other programs take the free ports faster than they are found; try again",
    "server": "the log says why; a server of your own works, too: redis=RedisConfig(...)",
}


@dataclass(frozen=True)
class Succession:
    """Let the owner's successor take the server over, within `grace_s` of the owner's death.

    `name` is what both know, and nobody else; without the process `host_pid` no successor can come.
    """

    name: str
    grace_s: float
    host_pid: int


class EmbeddedServer:
    """Own one Valkey server: AOF, a random password, bound to `host` alone.

    It ends with its owner, however that ends, and so does its temporary data directory; with a `succession` a
    successor may come before that. With a `data_dir` the data stay, and the next server there loads them.
    `maxmemory_bytes` (None: half of the memory of machine or container): a write above it is refused, nothing is
    evicted. `durability` is Valkey's appendfsync: "always" survives a power cut; "everysec" (None, with a `data_dir`)
    loses a second to one, and two to a kill while the disk is slow; "no" (None, without) loses nothing to a kill, and
    half a minute to a power cut, which ends a temporary directory anyway. `last_end`, `last_log`: how a server ended
    that died, and its last lines. Raises ConfigError.
    """

    def __init__(
        self,
        host: str,
        *,
        data_dir: str | None = None,
        maxmemory_bytes: int | None = None,
        durability: Durability | None = None,
        succession: Succession | None = None,
    ) -> None:
        if not HOST.fullmatch(host):
            raise ConfigError(f"host is {host!r}, but must be one address or one host name", host=host)
        if durability is None:
            durability = "no" if data_dir is None else "everysec"
        if durability not in get_args(Durability):
            raise ConfigError(f"durability is {durability!r}, but must be one of {get_args(Durability)}")
        if maxmemory_bytes is not None and maxmemory_bytes <= 0:
            raise ConfigError(f"maxmemory_bytes is {maxmemory_bytes}, but must be positive")
        self._host = host
        self._kept_dir = None if data_dir is None else str(Path(data_dir).absolute())
        self._maxmemory_bytes = maxmemory_bytes or memory_bytes() // 2
        self._durability = durability
        self._succession = succession
        self._guard: GuardClient | None = None
        self._running: tuple[RedisConfig, Path] | None = None  # what restart() brings back
        self._owner: int | None = None
        self._started: dict[str, Any] = {}
        self.last_end = self.last_log = ""
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
        """Say whether the server runs; one that died stays dead until start() or restart()."""
        return not self.wait(0.0)

    @property
    def pid(self) -> int | None:
        """Return the process id of Valkey, None before start() and after stop()."""
        return self._started.get("pid")

    @property
    def data_dir(self) -> str | None:
        """Return where the data are; None for a temporary directory that is not there (any more)."""
        return self._kept_dir or (str(self._running[1]) if self._running else None)

    def start(self) -> RedisConfig:
        """Start the server, and return how to connect once it serves; leave a running one as it is.

        Blocks, at most 10 s without a sign of life (loading a long AOF is one). Raises ConfigError when the
        data directory cannot be used or another server runs on it, ServerFailed for all else.
        """
        if self._running and self.alive:
            return self._running[0]
        for attempts_left in reversed(range(PORT_ATTEMPTS)):
            self.stop()
            path = Path(self._kept_dir or self._temporary_dir())
            config = self._config(path, free_port(self._host), secrets.token_urlsafe(32))
            try:
                failure = self._launch(config, path, take_over=False)
            finally:
                if not self._started:
                    self.stop()
            if failure is None:
                break
            if failure["kind"] != "port" or not attempts_left:
                raise self._error(**failure)
        return config

    def take_over(self) -> RedisConfig:
        """Start on what an owner of the same succession left behind: its data, port and password.

        Raises as restart() does, and ServerFailed when nothing is left.
        """
        path = self._temporary_dir()
        try:
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                raise PermissionError(f"{path} is not ours")
            found = LEFT.search((path / data_directory.CONFIG_NAME).read_text())
            if found is None:  # whoever wrote it was killed, or its disk was full
                raise FileNotFoundError(f"{path / data_directory.CONFIG_NAME} is torn")
            owner = data_directory.own(path)
        except OSError as error:
            text = f"the embedded server on {self._host} ended, and its data are gone, as nobody took it over in time"
            raise ServerFailed(f"{text} ({error}); start the experiment again", log="", host=self._host) from error
        self._owner = owner
        config = self._config(path, int(found["port"]), found["password"])
        self._running = config, path
        return self.restart()

    def restart(self) -> RedisConfig:
        """Start a server that died again: the same data, port and password.

        Blocks as start() does. Raises ServerFailed or ConfigError; the data are still there then, until stop().
        """
        if self._running is None:
            return self.start()
        config, path = self._running
        if self._guard is None or self._guard.gone:
            failure = self._launch(config, path, take_over=True)
        else:
            failure = self._became(self._guard.restart())
        if failure is not None:
            raise self._error(**failure)
        return config

    def _launch(self, config: RedisConfig, path: Path, *, take_over: bool) -> dict[str, Any] | None:
        """Start a guard and its server; return why it failed, or None."""
        if (former := self._guard) is not None:
            former.stop(None)
        self._started = {}  # its pids may be others' by now
        try:
            guard = self._guard = GuardClient()
        except OSError as error:  # no memory, no process, no file is left: that may pass
            return {"kind": "server", "reason": f"cannot start a guard process: {error}", "log": ""}
        # The guard's interpreter starts while we look for the binary, whose package is slow to import.
        failure = self._became(guard.start(self._order(config, path, take_over=take_over)))
        if failure is None and not take_over:
            self._running = config, path
            if self._kept_dir is None:
                self._owner = data_directory.own(path)
        return failure

    def _became(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """Note what became of a start; return why it failed, or None."""
        if event.pop("event") == "failed":
            return event
        if event["truncated"]:
            text = "the AOF in %s had a torn end, which is cut off: what was written before it is there"
            logger.error(text, event["data_dir"])
        self._started, self._dead = event, False
        return None

    def _config(self, path: Path, port: int, password: str) -> RedisConfig:
        # A user's directory may be on a file system that knows no sockets, and have a longer name than they can.
        socket_dir = str(path) if self._kept_dir is None and may_hold_sockets(path) else None
        return RedisConfig(server=self._host, port=port, password=password, socket_dir=socket_dir)

    def _temporary_dir(self) -> Path:
        name = self._succession.name if self._succession else secrets.token_hex(6)
        return Path(tempfile.gettempdir()).absolute() / f"{data_directory.TEMPORARY_PREFIX}{name}"

    def _order(self, config: RedisConfig, path: Path, *, take_over: bool) -> dict[str, Any]:
        """Return what the guard has to do; it goes through a pipe: no process list shows the password."""
        return {
            "binary": find_binary(),
            "environment": dict(KEPT_VARIABLES),
            "host": config.server,
            "port": config.port,
            "password": config.password,
            "path": str(path),
            "temporary": self._kept_dir is None,
            "take_over": take_over,
            "handover_s": HANDOVER_S,
            "grace_s": self._succession.grace_s if self._succession else 0.0,
            "host_pid": self._succession.host_pid if self._succession else os.getpid(),
            "config": CONFIG.format(
                redis=config, backlog=backlog(), durability=self._durability, maxmemory=self._maxmemory_bytes
            )
            + (UNIX_SOCKET.format(redis=config) if config.socket_dir else ""),
        }

    def _error(self, kind: str, reason: str, log: str) -> ConfigError | ServerFailed:
        if kind == "data_dir":
            where = self.data_dir
            return ConfigError(f"cannot keep data in {where}: {reason}; {HINTS[kind]}", data_dir=where)
        text = f"the embedded server did not start on {self._host}: {reason}; {HINTS[kind]}\n{log}"
        return ServerFailed(text.rstrip(), log=log, host=self._host)

    def stop(self) -> None:
        """Stop the server and wait until it and its temporary directory are gone; do nothing if they are."""
        guard, self._guard = self._guard, None
        started, self._started = self._started, {}
        running, self._running = self._running, None
        owner, self._owner = self._owner, None
        self._dead, self.last_end, self.last_log = False, "", ""
        if guard is not None:
            guard.stop(started.get("guard_pid"))
        if owner is not None and running is not None:
            data_directory.discard(running[1])
            os.close(owner)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the server is dead or stopped, at most `timeout_s` (None: for ever); return if it is.

        A thread of its own may wait here while another stops the server.
        """
        guard, running = self._guard, self._running
        if guard is None or running is None or not self._started or self._dead:
            return True
        if (event := guard.event(timeout_s)) and self._running:
            self._dead = True
            self.last_end = event.get("reason", "its guard process was killed, and Valkey with it")
            self.last_log = event.get("log") or data_directory.last_lines(running[1])
        return event is not None
