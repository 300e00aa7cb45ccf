"""After any end of a driver: no server, no guard and no data of its run remain."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.cluster import wait_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(90)]

SCRIPT = """
import os, signal, sys, time
import ray
from ray_messaging import Messaging

assert not ray.is_initialized()
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
def run():
    messaging = Messaging.start("life")
    group = messaging.create_group("all", range(4))
    assert group.send(1, 2, {{}})
    print("ready", flush=True)
    return messaging, group

{body}
"""

RETURNS = "messaging, group = run()"

SHUTS_DOWN = """
messaging, group = run()
messaging.shutdown()
messaging.shutdown()
assert not ray.is_initialized()
from pathlib import Path
assert not list(Path(os.environ["TMPDIR"]).glob("ray_messaging-valkey-*"))
"""

RAISES = """
with run()[0] as messaging:
    raise RuntimeError("on purpose")
"""

SENDS = """
messaging, group = run()
while True:
    group.send_columns([1] * 100, [2] * 100, {})
    group.fetch()
"""

SENDS_IN_A_BLOCK = """
messaging, group = run()
with messaging:
    while True:
        group.send_columns([1] * 100, [2] * 100, {})
        group.fetch()
"""


@pytest.fixture
def home():
    """Give a short path: Ray puts sockets there, with paths of at most 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="rm-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


class Driver:
    """A driver in a process group of its own, as a shell starts one."""

    def __init__(self, body, home):
        self.home = home
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT.format(body=body)],
            env=environment | {"TMPDIR": str(home)},
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

    def wait_end(self):
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors

    def servers(self):
        """Return the processes with a working directory in our home: Valkey's is its data directory."""
        return [pid for pid in processes() if where(pid).startswith(f"{self.home}/ray_messaging-valkey-")]

    def related(self):
        """Return all processes that belong to this run, guards too: they have its TMPDIR in their environment.

        Not Ray's agents: when a raylet is killed, they may take a minute to notice.
        """
        mark = f"TMPDIR={self.home}".encode()
        return [pid for pid in processes() if mark in environment_of(pid) and "Agent " not in command_of(pid) + " "]

    def folders(self):
        return list(self.home.glob("ray_messaging-valkey-*"))

    def assert_nothing_left(self):
        wait_for(lambda: not self.servers(), "the end of the server")
        wait_for(lambda: not self.folders(), "the removal of its data")
        try:
            wait_for(lambda: not self.related(), "the end of all of its processes")
        except AssertionError:
            pytest.fail("left: " + "; ".join(map(command_of, self.related())))


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


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [(RETURNS, 0, ""), (SHUTS_DOWN, 0, ""), (RAISES, 1, "RuntimeError: on purpose")],
    ids=["returns", "shuts down twice", "raises"],
)
def test_a_driver_that_ends_leaves_nothing(home, body, code, words):
    driver = Driver(body, home)
    driver.process.stdout.readline()
    found, errors = driver.wait_end()
    assert found == code, errors
    assert words in errors
    if not words:
        assert "Traceback" not in errors
    driver.assert_nothing_left()


@pytest.mark.parametrize("body", [SENDS, SENDS_IN_A_BLOCK], ids=["bare", "in a with block"])
def test_an_interrupted_driver_leaves_nothing(home, body):
    """Ctrl-C goes to the whole group of processes."""
    driver = Driver(body, home)
    driver.wait_ready()
    os.killpg(driver.process.pid, signal.SIGINT)
    code, errors = driver.wait_end()
    assert code in {-signal.SIGINT, 128 + signal.SIGINT, 1}, errors
    assert "KeyboardInterrupt" in errors
    driver.assert_nothing_left()


def test_a_killed_driver_leaves_nothing(home):
    driver = Driver(SENDS, home)
    driver.wait_ready()
    driver.process.kill()
    driver.wait_end()
    driver.assert_nothing_left()
