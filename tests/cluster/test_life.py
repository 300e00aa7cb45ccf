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
from ray_messaging.errors import Closed

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


REFUSES = """
def refuse(messaging, group):
    calls = messaging.stats, messaging.health, messaging.agents, messaging.groups, group.fetch_messages
    for call in (*calls, lambda: group.send(1, 2, {}), lambda: messaging.create_group("late", [3])):
        before = ray.is_initialized()
        try:
            found = call()
        except Closed as error:
            assert f"experiment {messaging.exp_id!r} has ended: " in str(error), error
        else:
            raise AssertionError((call, found))
        assert ray.is_initialized() == before
"""

ENDS_ONE_OF_TWO = """
first, (other, others) = Messaging.start("first"), run()
first.shutdown()
assert ray.is_initialized()
assert others.send(1, 2, {})
assert other.agents()
other.shutdown()
assert not ray.is_initialized()
refuse(other, others)
"""

ENDS_RAY = """
messaging, group = run()
ray.shutdown()
refuse(messaging, group)
again, groups = run()  # this takes no minute, and Ray does not end this process
refuse(messaging, group)  # in another Ray
messaging.shutdown()
assert groups.send(1, 2, {})
again.shutdown()
assert not ray.is_initialized()
"""

STARTS_IN_THREADS = """
import threading
started = []
start = lambda name: started.append(Messaging.start(name))
threads = [threading.Thread(target=start, args=(name,)) for name in ("first", "other")]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(started) == 2
time.sleep(2)  # the kernel kills what a thread has started when the thread ends
for messaging in started:
    assert messaging.create_group("all", range(4)).send(1, 2, {})
    assert ray.is_initialized()
    messaging.shutdown()
assert not ray.is_initialized()
print("ready")
"""


@pytest.mark.parametrize("body", [ENDS_ONE_OF_TWO, ENDS_RAY, STARTS_IN_THREADS], ids=["two", "ray ends", "threads"])
def test_ray_stays_for_all_experiments_of_a_process_and_no_call_starts_it(home, body):
    script = SCRIPT.replace("{{}}", "{}").replace("{body}", REFUSES + body)
    driver = Driver(script, home)
    driver.process.stdout.readline()
    code, errors = driver.wait_end()
    assert code == 0, errors
    assert "Traceback" not in errors
    driver.assert_nothing_left()


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
