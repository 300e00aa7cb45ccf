"""The embedded server: Valkey in its own process, which ends with its owner, the process that started it."""

import logging
import os
import re
import secrets
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from ray_messaging.common.operating_system import is_alive
from ray_messaging.common.process_tuning import KEPT_VARIABLES
from ray_messaging.config import RedisConfig
from ray_messaging.default_limits_and_leases import EMBEDDED_CONNECT_S
from ray_messaging.embedded import data_directory
from ray_messaging.embedded.guard_client import GuardClient
from ray_messaging.embedded.machine import (
    backlog,
    find_binary,
    free_port,
    may_hold_sockets,
    memory_bytes,
    rewrite_bytes,
)
from ray_messaging.errors import ConfigError, ServerFailed

logger = logging.getLogger(__name__)


PORT_ATTEMPTS: Final = 5
_ANSWER_S: Final = 5.0  # the time limit for the server's answer to the question whether it stores any keys
# How long a new guard waits until the guard before it has left the data directory. Stopping a server takes seconds if
# it has to free gigabytes of memory.
HANDOVER_S: Final = 15.0
# The host is written into a line of Valkey's config, so only these characters are allowed.
HOST: Final = re.compile(r"[A-Za-z0-9:][A-Za-z0-9.:_%-]*")
LEFT: Final = re.compile(r"port (?P<port>\d+)\nrequirepass (?P<password>\S+)\n")
# latency-tracking is off, because it would measure the time of each command in a script, for a section of INFO that is
# never read. appendfsync is off, because the guard, the process that starts and stops Valkey, calls fsync. During a
# rewrite of the append-only file the server copies each page of memory that it changes. So rewrites are rare, and are
# not compressed, which makes them shorter.
CONFIG: Final = """\
bind {redis.server}
port {redis.port}
requirepass {redis.password}
protected-mode yes
enable-debug-command no
tcp-backlog {backlog}
logfile valkey.log
save ""
appendonly {append_only}
appendfsync no
aof-load-truncated yes
auto-aof-rewrite-min-size {rewrite_bytes}
rdbcompression no
maxmemory {maxmemory}
maxmemory-policy noeviction
latency-tracking no
"""
UNIX_SOCKET: Final = """\
unixsocket "{redis.socket_dir}/{redis.port}.sock"
unixsocketperm 700
"""
HINTS: Final = {
    "data_dir": "pass a directory, existing or new, in which this user may write",
    "held": "shut down that server's experiment, or pass another directory",
    "port": "other programs took each free port before the server could use it: try again",
    "server": "the log says why. You can also use a server of your own: redis=RedisConfig(...)",
}


@dataclass(frozen=True)
class Succession:
    """The conditions under which a successor may take a server over: within `grace_s` seconds of its owner's death.

    The temporary directory of the server is named after `name`, which only the owner and its successor know. Once
    the process `host_pid` has ended, no successor can come.
    """

    name: str
    grace_s: float
    host_pid: int


class EmbeddedServer:
    """One Valkey server with an append-only file and a random password, bound to `host` only.

    The server ends with its owner, the process that started it, even if the owner is killed. A temporary data directory
    is then removed. With a `succession`, the server runs on for a while, in which a successor can take over the server
    and its directory. If the server has died, `last_end` says how, and `last_log` has the last lines of its log.

    Args:
        host: The address, or host name, to listen on.
        data_dir: Keep the data in this directory. The next server on the same directory loads them. None: use a
            temporary directory.
        maxmemory_bytes: Refuse writes above this size; nothing is evicted. None: half of the memory of machine or
            container.
        fsync: Write a `data_dir` to the disk each second, so that a power cut loses about a second of data. Without
            this it loses about half a minute. If a process is killed, nothing is lost, unless the disk is full.
        succession: Allow a successor of the owner to take the server over.
        epilogue: A command to run after the server, if its owner died and no successor came.
        brief: This server will end soon. Another server that starts on the same `data_dir` waits for its end, however
            long that takes.
        append_only: Keep an append-only file. Without it nothing is written to the disk, and a restarted server is
            empty.

    Raises: ConfigError if the host is not valid.
    """

    def __init__(
        self,
        host: str,
        *,
        data_dir: str | None = None,
        maxmemory_bytes: int | None = None,
        fsync: bool = True,
        succession: Succession | None = None,
        epilogue: Sequence[str] = (),
        brief: bool = False,
        append_only: bool = True,
    ) -> None:
        if not HOST.fullmatch(host):
            raise ConfigError(f"host is {host!r}, but must be one address or one host name", host=host)
        self._host = host
        self._kept_dir = None if data_dir is None else str(Path(data_dir).absolute())
        self._maxmemory_bytes = maxmemory_bytes or memory_bytes() // 2
        self._fsync = fsync and data_dir is not None  # a temporary directory is not kept, so it needs no fsync
        self._succession = succession
        self._epilogue = epilogue
        self._brief = brief
        self._append_only = append_only
        self._guard: GuardClient | None = None
        # The config and the directory with which `restart` starts the server again.
        self._running: tuple[RedisConfig, Path] | None = None
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
        """Return whether the server runs. A dead server stays dead until `start` or `restart` is called."""
        return not self.wait(0.0)

    @property
    def pid(self) -> int | None:
        """Return the process id of Valkey, or None before `start` and after `stop`."""
        return self._started.get("pid")

    @property
    def data_dir(self) -> str | None:
        """Return the data directory, or None if there is only a temporary directory and it does not exist now."""
        return self._kept_dir or (str(self._running[1]) if self._running else None)

    def start(self) -> RedisConfig:
        """Start the server unless it runs, wait until it answers, and return its address and password.

        The start is given up after 10 s without a sign of life. Loading a long append-only file is a sign of life.

        Raises: ConfigError if the data directory cannot be used or another server runs on it; ServerFailed if the
        server does not start for another reason.
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
        """Take the server over as the successor of its previous owner.

        Raises: ServerFailed if the server does not start, or its data are gone; ConfigError if the data directory
        cannot be used.
        """
        path = Path(self._kept_dir or self._temporary_dir())
        try:
            if self._kept_dir is None and (path.is_symlink() or path.stat().st_uid != os.getuid()):
                raise PermissionError(f"{path} is a link, or belongs to another user")
            found = LEFT.search((path / data_directory.CONFIG_NAME).read_text())
            # Without a match the file is incomplete: the process that wrote it was killed, or the disk was full.
            if found is None:
                raise FileNotFoundError(f"{path / data_directory.CONFIG_NAME} is incomplete")
            owner = data_directory.lock_as_owner(path) if self._kept_dir is None else None
        except OSError as error:
            text = f"the embedded server on {self._host} ended, and its data are gone: no process could take it over"
            raise ServerFailed(f"{text} ({error}); start the experiment again", log="", host=self._host) from error
        self._owner = owner
        config = self._config(path, int(found["port"]), found["password"])
        self._running = config, path
        return self.restart()

    def restart(self) -> RedisConfig:
        """Start a dead server again with the same data, port and password; wait as `start` does.

        The data are kept until `stop` is called, even if the restart fails.

        Raises: ServerFailed if the server does not start; ConfigError if the data directory cannot be used.
        """
        if self._running is None:
            return self.start()
        if self._succession is not None and not is_alive(self._succession.host_pid):
            # A successor may already run on another node, so this server must not start again.
            raise ServerFailed(
                "Ray has ended on this node, and the embedded server with it: start Ray and the experiment again",
                log="",
                host=self._host,
            )
        config, path = self._running
        if self._guard is None or self._guard.gone:
            failure = self._launch(config, path, take_over=True)
        else:
            failure = self._note_start(self._guard.restart(self._text(config, path)))
        if failure is not None:
            raise self._error(**failure)
        return config

    def _launch(self, config: RedisConfig, path: Path, *, take_over: bool) -> dict[str, Any] | None:
        """Start a guard and its server. Return the event that describes a failure, or None if both have started.

        Args: with `take_over`, the guard takes over a server that runs in the directory.
        """
        if (former := self._guard) is not None:
            former.stop(None)
        self._started = {}  # the ids of ended processes may belong to other processes by now
        try:
            guard = self._guard = GuardClient()
        except OSError as error:  # memory, processes or files are used up; this may pass
            return {"kind": "server", "reason": f"cannot start a guard process: {error}", "log": ""}
        failure = self._note_start(guard.start(self._order(config, path, take_over=take_over)))
        if failure is None and not take_over:
            self._running = config, path
            if self._kept_dir is None:
                self._owner = data_directory.lock_as_owner(path)
        return failure

    def _note_start(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """Record whether the server has started, as `event` says. Return the event of a failure, or None."""
        if event.pop("event") == "failed":
            return event
        if event["truncated"]:
            text = "the append-only file in %s had a torn end, which was cut off; the data before it are complete"
            logger.error(text, event["data_dir"])
        self._started, self._dead = event, False
        return None

    def _config(self, path: Path, port: int, password: str) -> RedisConfig:
        # There is no socket if the name of a `data_dir` is too long for one, or if its file system has no sockets.
        with suppress(OSError):  # if the folder cannot be made, the guard reports the reason when it starts
            path.parent.mkdir(parents=True, exist_ok=True)
        socket_dir = str(path) if may_hold_sockets(path) else None
        return RedisConfig(
            server=self._host, port=port, password=password, socket_dir=socket_dir, connect_timeout=EMBEDDED_CONNECT_S
        )

    def _temporary_dir(self) -> Path:
        name = self._succession.name if self._succession else secrets.token_hex(6)
        return Path(tempfile.gettempdir()).absolute() / f"{data_directory.TEMPORARY_PREFIX}{name}"

    def _order(self, config: RedisConfig, path: Path, *, take_over: bool) -> dict[str, Any]:
        """Return the order that tells the guard how to start a server.

        The order has the password, so it goes through a pipe: every user of the machine can read a command line.

        Args: with `take_over`, the guard takes over a server that runs in the directory.
        """
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
            "config": self._text(config, path),
            "epilogue": self._epilogue,
            "modules": os.pathsep.join(sys.path),
            "brief": self._brief,
            "fsync": self._fsync,
        }

    def _text(self, config: RedisConfig, path: Path) -> str:
        """Return the text of the server's configuration file."""
        text = CONFIG.format(
            redis=config,
            backlog=backlog(),
            append_only="yes" if self._append_only else "no",
            maxmemory=self._maxmemory_bytes,
            rewrite_bytes=rewrite_bytes(path),
        )
        return text + (UNIX_SOCKET.format(redis=config) if config.socket_dir else "")

    def _error(self, kind: str, reason: str, log: str) -> ConfigError | ServerFailed:
        if kind in {"data_dir", "held"}:
            where = self.data_dir
            return ConfigError(f"cannot keep data in {where}: {reason}; {HINTS[kind]}", data_dir=where)
        text = f"the embedded server did not start on {self._host}: {reason}; {HINTS[kind]}\n{log}"
        return ServerFailed(text.rstrip(), log=log, host=self._host)

    def stop(self, *, erase: bool = False) -> None:
        """Stop the server, and wait until the server and its temporary directory are gone. A second call does nothing.

        With `erase`, the server's files in a `data_dir` are removed too, unless the server stores any keys.
        """
        erased = Path(self._kept_dir) if erase and self._kept_dir is not None and self._is_empty() else None
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
        if erased is not None:
            data_directory.erase(erased)

    def _is_empty(self) -> bool:
        """Return whether the server runs and stores no keys. Return False if it does not answer."""
        if self._running is None:
            return False
        import redis  # noqa: PLC0415 - takes half as long as `import ray`

        config = self._running[0]
        with redis.Redis(config.server, config.port, password=config.password, socket_timeout=_ANSWER_S) as client:
            try:
                return not client.info("keyspace")
            except redis.RedisError as error:
                logger.warning(
                    "the files in %s are not removed, because their server does not answer: %s", self._kept_dir, error
                )
                return False

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the server has ended, at most `timeout_s` seconds (None: no limit); return whether it has ended.

        One thread may wait here while another one stops the server.
        """
        guard, running = self._guard, self._running
        if guard is None or running is None or not self._started or self._dead:
            return True
        if (event := guard.event(timeout_s)) and self._running:
            self._dead = True
            self.last_end = event.get("reason", "its guard process was killed, and Valkey with it")
            self.last_log = event.get("log") or data_directory.last_lines(running[1])
        return event is not None
