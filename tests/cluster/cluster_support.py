"""What the tests of the cluster share: waiting, killing, and emptying groups."""

import os
import signal
import time
from pathlib import Path

import ray

from ray_messaging import Group

PATIENCE_S = 30.0


def wait_for(condition, what="it", timeout=PATIENCE_S):
    """Return the first true value of a condition; fail after the deadline."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen within {timeout:g} s"
        time.sleep(0.02)
    return found


def pid_of(actor):
    """Return the pid of an actor's process; one that starts again is waited for."""

    def ask():
        try:
            return ray.get(actor.__ray_call__.remote(lambda self: os.getpid()), timeout=PATIENCE_S)
        except ray.exceptions.ActorUnavailableError:
            return None

    return wait_for(ask, "an answer of the actor")


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill(actor):
    """Kill an actor's process as a crash does; Ray starts it again."""
    pid = pid_of(actor)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not alive(pid), f"the death of process {pid}")
    return pid


def kill_and_wait(actor):
    """Kill an actor's process, and wait until another one answers in its place."""
    pid = kill(actor)
    wait_for(lambda: pid_of(actor) != pid, "the restart")


def drain(group, count, *, limit=None):
    """Fetch until so many messages came and one more fetch found nothing; return them as Message objects."""
    found, deadline = [], time.monotonic() + PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"only {len(found)} of {count} messages came"
        found += group.fetch(limit=limit, timeout=1.0)
    found += group.fetch(timeout=0.2)
    group.ack()
    return found


def numbers(messages):
    return [message.payload["n"] for message in messages]


def numbered(count, start=0):
    return [{"n": n} for n in range(start, start + count)]


def new_handle(group):
    """Return another handle of a group, as a task would have."""
    return Group(group._experiment, group.name, group.actor)
