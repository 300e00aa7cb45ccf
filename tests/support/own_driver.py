"""Drivers in processes of their own, each with a Ray cluster and an embedded server of its own."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from support.cluster import alive, wait_for

BARE = "from support.bare_ray import only_bare_nodes\nonly_bare_nodes(logs=True)\n"


class Driver:
    """A driver in a process group of its own, as a shell starts one; its Ray has no autoscaler and no dashboard."""

    def __init__(self, script, home):
        self.home = home
        path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", BARE + script],
            env=environment | {"TMPDIR": str(home), "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_ready(self):
        assert self.process.stdout.readline() == "ready\n", self.process.stderr.read()
        assert len(self.servers()) == 1
        assert len(self.folders()) == 1
        assert len(self.related()) > 4  # Ray, the guard, the server, actors

    def kill_all(self):
        """Kill the driver, its Ray cluster and its server at once, as the end of a machine does."""
        os.killpg(self.process.pid, signal.SIGSTOP)
        kill_related(self.home)
        self.process.communicate(timeout=300)

    def wait_end(self):
        _, errors = self.process.communicate(timeout=300)
        return self.process.returncode, errors

    def servers(self):
        """Return the processes with a working directory in our home: Valkey's is its data directory."""
        return [pid for pid in processes() if where(pid).startswith(f"{self.home}/ray_messaging-valkey-")]

    def related(self):
        """Return all processes of this run but Ray's agents: they may take a minute to notice a killed raylet."""
        return [pid for pid in related_to(self.home) if "Agent " not in command_of(pid) + " "]

    def folders(self):
        return list(self.home.glob("ray_messaging-valkey-*"))

    def assert_nothing_left(self):
        wait_for(lambda: not self.servers(), "the end of the server")
        wait_for(lambda: not self.folders(), "the removal of its data")
        try:
            wait_for(lambda: not self.related(), "the end of all of its processes")
        except AssertionError:
            pytest.fail("left: " + "; ".join(map(command_of, self.related())))


def related_to(home):
    """Return all processes of the drivers with this home, guards too: they have its TMPDIR in their environment."""
    mark = f"TMPDIR={home}".encode()
    return [pid for pid in processes() if mark in environment_of(pid)]


def kill_related(home):
    """Kill all processes of the drivers with this home, and those that they start meanwhile."""
    while related := related_to(home):
        for pid in related:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_for(lambda found=related: not any(map(alive, found)), "the end of all processes of a driver")


def processes():
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def where(pid):
    try:
        return str(Path(f"/proc/{pid}/cwd").readlink())
    except OSError:
        return ""


def command_of(pid):
    try:
        return f"{pid} " + Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
    except OSError:
        return f"{pid} gone"


def environment_of(pid):
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
