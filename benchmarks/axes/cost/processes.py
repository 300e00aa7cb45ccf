"""Memory of processes on this machine."""

import os
from pathlib import Path
from typing import Any

import ray
import redis

from ray_messaging import Messaging, RedisConfig


def pid_of(actor: Any) -> int:
    """Return the process id of an actor on this machine."""
    pid: int = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))
    return pid


def client(config: RedisConfig) -> redis.Redis:
    """Return a plain client of a server."""
    return redis.Redis(host=config.server, port=config.port, password=config.password)


def server_pid(messaging: Messaging) -> int:
    """Return the process id of an experiment's embedded server."""
    with client(messaging.redis) as asked:
        return int(asked.info("server")["process_id"])


def pss_bytes(pid: int) -> int:
    """Return the memory of a process with its share of shared pages."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("Pss:")).split()[1])


def held_bytes(messaging: Messaging, groups: list[Any]) -> dict[str, int]:
    """Return the memory of each part of an experiment; `groups` are its actors."""
    return {
        "driver": pss_bytes(os.getpid()),
        "groups": sum(pss_bytes(pid_of(group)) for group in groups),
        "interceptor": pss_bytes(pid_of(messaging.interceptor)),
        "server": pss_bytes(server_pid(messaging)),
    }


def ray_bytes() -> int:
    """Return the memory of Ray's own processes of this cluster: the daemons and the idle workers."""
    parents = {int(entry.name): _parent(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    ours, found = {os.getpid()}, 0
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    for pid in ours - {os.getpid()}:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
            idle = words.startswith("ray::IDLE") or not words.startswith("ray::")
            found += pss_bytes(pid) if idle and "ray" in words else 0
        except (OSError, StopIteration):  # it has just ended
            continue
    return found


def _parent(entry: Path) -> int:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
