"""Injection of faults into servers, their files, and processes."""

import asyncio
import itertools
import resource
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def full_disk(pid, folder, room=0):
    """Let a server's files grow by `room` bytes and no further, as on a disk that is full."""
    largest = max(path.stat().st_size for path in aof_files(folder))
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (largest + room, hard))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):  # it has died of it
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


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


def aof_files(folder):
    """Return a server's append-only files, the one that grows last."""
    found = sorted((Path(folder) / "appendonlydir").glob("*.aof"), key=lambda path: path.stat().st_mtime)
    return [path for path in found if ".incr." in path.name] or found


def tear(server, nbytes):
    """Cut bytes off the end of a dead server's append-only file; return them."""
    path = aof_files(server.folder)[-1]
    size = path.stat().st_size
    cut = min(nbytes, size)
    with path.open("rb+") as file:
        file.seek(size - cut)
        torn = file.read()
        file.truncate(size - cut)
    return torn


def memory_of(pid):
    """Return how much memory a process had at most, in MiB."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return int(fields["VmHWM"].split()[0]) / 1024


def at_call(owner, name, when, act, nth=1):
    """Act right before, during, or after the nth call of a method from now on.

    During it the request is on its way, and nobody has read the answer. `owner` is an object, or a class of all calls.
    """
    real, calls = getattr(owner, name), itertools.count(1)

    def call(*args, **options):
        if next(calls) != nth:
            return real(*args, **options)
        if when == "before":
            act()
        elif when == "during":
            asyncio.get_running_loop().call_later(0, act)
        result = real(*args, **options)
        if when != "after":
            return result
        if hasattr(result, "__await__"):
            return answered(result)
        act()
        return result

    async def answered(result):
        found = await result
        act()
        return found

    setattr(owner, name, call)
