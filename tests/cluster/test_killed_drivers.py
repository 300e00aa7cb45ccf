"""The event log after any end of a driver: it has all rows, or says what it lacks and how to get that."""

import os
import signal

import pytest
from support.cluster import wait_for
from support.own_driver import Driver
from typer.testing import CliRunner

from ray_messaging import EventLog
from ray_messaging.cli import app

pytestmark = pytest.mark.long

SCRIPT = """
import os, time
from pathlib import Path
from ray_messaging import Messaging

home = Path(os.environ["TMPDIR"])
messaging = Messaging.start("ends", log_dir=home / "logs" / "town")
group = messaging.create_group("all", range(4))
assert {group.send(n % 4, (n + 1) % 4, {"n": n}).fate for n in range(100)} == {"delivered"}
print("ready", flush=True)
if BODY == "waits":
    assert len(messaging.log.query()) == 100
    print("seen", flush=True)
    time.sleep(1000)
"""


def driver_of(home, body):
    driver = Driver(f"BODY = {body!r}" + SCRIPT, home)
    assert driver.process.stdout.readline() == "ready\n", driver.process.stderr.read()
    return driver


def assert_complete(home):
    found = EventLog.open(home / "logs" / "town")
    assert found.unended is None
    assert found.balance().fates["delivered"] == len(found.query()) == 100
    assert [start["killed"] for start in found.run["starts"]] == [True]
    assert [path.name for path in (home / "logs").iterdir()] == ["town"]
    assert CliRunner().invoke(app, ["log", "stats", str(home / "logs" / "town")]).exit_code == 0


@pytest.mark.parametrize("end", ["killed", "killed with its process group", "returned without a shutdown"])
def test_the_log_of_a_driver_that_ends_without_a_shutdown_is_complete_soon(home, end):
    driver = driver_of(home, "returns" if end.startswith("returned") else "waits")
    if end.startswith("killed"):
        assert driver.process.stdout.readline() == "seen\n"
        os.killpg(driver.process.pid, signal.SIGKILL) if "group" in end else driver.process.kill()
    record = home / "logs" / "town" / "_run.json"
    wait_for(lambda: '"killed": true' in record.read_text(), "the end of the log", timeout=300)
    wait_for(lambda: not (home / "logs" / "town-server").exists(), "the removal of its server's data")
    assert_complete(home)
    driver.wait_end()
