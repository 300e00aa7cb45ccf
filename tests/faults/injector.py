"""Injection of faults into servers, their files, and processes."""

import os
import resource
import signal
from contextlib import contextmanager
from pathlib import Path


def kill(pid):
    """End a process as the kernel does when memory is short."""
    os.kill(pid, signal.SIGKILL)


@contextmanager
def stopped(pid):
    """Let a process stand still."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def full_disk(server, room=0):
    """Let a server's files grow by `room` bytes and no further, as on a disk that is full."""
    largest = max(path.stat().st_size for path in aof_files(server))
    _, hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (largest + room, hard))
    try:
        yield
    finally:
        if server.process.poll() is None:
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (hard, hard))


@contextmanager
def full_memory(server, room=0):
    """Let a server's memory grow by `room` bytes and no further."""
    with server.client() as client:
        before = client.config_get("maxmemory")["maxmemory"]
        client.config_set("maxmemory", client.info("memory")["used_memory"] + room)
        try:
            yield
        finally:
            client.config_set("maxmemory", before)


def kill_clients(client, kind="normal"):
    """Cut all connections of a kind (normal, pubsub) but the one that asks; return how many."""
    return client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


def aof_files(server):
    """Return a server's append-only files, the one that grows last."""
    found = sorted((Path(server.folder) / "appendonlydir").glob("*.aof"), key=lambda path: path.stat().st_mtime)
    return [path for path in found if ".incr." in path.name] or found


def tear(server, nbytes):
    """Cut bytes off the end of a dead server's append-only file; return them."""
    path = aof_files(server)[-1]
    size = path.stat().st_size
    cut = min(nbytes, size)
    with path.open("rb+") as file:
        file.seek(size - cut)
        torn = file.read()
        file.truncate(size - cut)
    return torn


def memory_of(pid):
    """Return how much memory a process has now and had at most, in MiB."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return int(fields["VmRSS"].split()[0]) / 1024, int(fields["VmHWM"].split()[0]) / 1024
