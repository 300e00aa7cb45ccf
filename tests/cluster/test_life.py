"""After any end of a driver: no server, no guard and no data of its run remain."""

import os
import signal

import pytest
from support.own_driver import Driver

pytestmark = pytest.mark.long

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

SENDS = """
messaging, group = run()
while True:
    group.send_columns([1] * 100, [2] * 100, {})
    group.fetch_messages()
"""

SENDS_IN_A_BLOCK = """
messaging, group = run()
with messaging:
    while True:
        group.send_columns([1] * 100, [2] * 100, {})
        group.fetch_messages()
"""


@pytest.mark.parametrize("body", [RETURNS, SHUTS_DOWN], ids=["returns", "shuts down twice"])
def test_a_driver_that_ends_leaves_nothing(home, body):
    driver = Driver(SCRIPT.format(body=body), home)
    driver.process.stdout.readline()
    code, errors = driver.wait_end()
    assert code == 0, errors
    assert "Traceback" not in errors
    driver.assert_nothing_left()


@pytest.mark.parametrize("body", [SENDS, SENDS_IN_A_BLOCK], ids=["bare", "in a with block"])
def test_an_interrupted_driver_leaves_nothing(home, body):
    """Ctrl-C goes to the whole group of processes; it passes through the block as any other error does."""
    driver = Driver(SCRIPT.format(body=body), home)
    driver.wait_ready()
    os.killpg(driver.process.pid, signal.SIGINT)
    code, errors = driver.wait_end()
    assert code in {-signal.SIGINT, 128 + signal.SIGINT, 1}, errors
    assert "KeyboardInterrupt" in errors
    driver.assert_nothing_left()


def test_a_killed_driver_leaves_nothing(home):
    driver = Driver(SCRIPT.format(body=SENDS), home)
    driver.wait_ready()
    driver.process.kill()
    driver.wait_end()
    driver.assert_nothing_left()
