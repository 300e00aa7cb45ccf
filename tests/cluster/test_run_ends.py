"""A run that ends before its time: at Ctrl-C, or with its whole machine."""

import json
import os
import signal

import pytest
from support.cluster import wait_for
from support.own_driver import Driver
from support.step_society import SEED, STEPS, messages_of, sequential

from ray_messaging import EventLog

pytestmark = pytest.mark.long

SCRIPT = """
import json, os, signal, sys, threading, time
from pathlib import Path
from ray_messaging import Messaging, Steps

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
home = Path(os.environ["TMPDIR"])


def person(me, inbox):
    me.state["steps"] = me.state.get("steps", 0) + 1
    me.state["heard"] = me.state.get("heard", 0) + sum(message.payload["n"] for message in inbox)
    me.send((me.id + 1) % 10, {"n": me.id + me.step})
    (home / f"reached-{me.step}").touch()
    while me.step >= BARRIER and not (home / "go").exists():
        time.sleep(0.01)


def out(result):
    print(json.dumps([result.steps, result.stopped, [result.states[n] for n in range(10)], result.digests]), flush=True)

"""

CTRL_C = """
BARRIER = 3
with Messaging.start("ends", steps=Steps(digest=True)) as messaging:
    result = messaging.run(person, agents=10, groups=2, until=1000, progress=False)
    out(result)
    out(messaging.run(person, agents=10, groups=2, until=result.steps + 2, progress=False))
"""


RESUMED = """
from support.step_society import AGENTS, SEED, STEPS, listen, spread


def person(me, inbox):
    if KILLED and me.step == 4 and me.id == 7:
        (home / "reached-4").touch()
        threading.Event().wait()
    heard = [(message.from_id, message.payload) for message in inbox]
    me.state["word"] = listen(me.state.get("word", "0"), heard, me.rng)
    for friend, payload, later in spread(me.id, me.state["word"], me.step):
        me.send(friend, payload, deliver_at=later)


steps, mode = Steps(seed=SEED, digest=True), "error" if KILLED else "resume"
with Messaging.start("ends", steps=steps, log_dir=home / "log", on_existing=mode) as messaging:
    first = messaging.steps.now
    result = messaging.run(person, agents=AGENTS, groups=3, until=STEPS, progress=False)
    logged = [messaging.log.digest(step).hex() for step in range(STEPS)]
    words = [result.states[agent]["word"] for agent in range(AGENTS)]
    print(json.dumps([first, words, result.digests, logged, result.fates]), flush=True)
"""


RAISES = """
from ray_messaging import Messaging, Steps
from ray_messaging.errors import StepFailed


def person(me, inbox):
    if me.step == 3 and me.id == 1:
        raise ValueError("no")
    me.send((me.id + 1) % 40, {"n": 1})


with Messaging.start("ends", steps=Steps()) as messaging:
    try:
        messaging.run(person, agents=40, groups=4, until=9, progress=False)
    except StepFailed as error:
        print(error, flush=True)
"""


def reached(driver, home, step):
    wait_for(
        lambda: (home / f"reached-{step}").exists() or driver.process.poll() is not None, f"step {step}", timeout=300
    )
    assert driver.process.poll() is None, driver.process.stderr.read()


def says_that_it_ends(driver):
    assert any("the run ends after the open step" in line for line in driver.process.stderr)


def test_ctrl_c_ends_a_run_after_the_open_step(home):
    driver = Driver(SCRIPT + CTRL_C, home)
    reached(driver, home, 3)
    os.killpg(driver.process.pid, signal.SIGINT)
    says_that_it_ends(driver)
    (home / "go").touch()
    steps, stopped, states, digests = json.loads(driver.process.stdout.readline())
    assert steps >= 4
    assert stopped
    assert {state["steps"] for state in states} == {steps}
    assert len(digests) == steps
    again, stopped, states, _ = json.loads(driver.process.stdout.readline())
    assert (again, stopped) == (steps + 2, False)
    assert {state["steps"] for state in states} == {steps + 2}
    code, errors = driver.wait_end()
    assert code == 0, errors
    driver.assert_nothing_left()


@pytest.mark.parametrize("end", ["with its whole machine", "and its log is finished"])
def test_a_run_that_is_killed_resumes(home, end):
    killed = Driver(SCRIPT + "KILLED = True" + RESUMED, home)
    reached(killed, home, 4)
    if end == "with its whole machine":
        killed.kill_all()
    else:
        killed.process.kill()
        record = home / "log" / "_run.json"
        wait_for(lambda: '"killed": true' in record.read_text(), "the end of the log", timeout=300)
        assert EventLog.open(home / "log").balance().sends == messages_of(4)
        killed.wait_end()
    assert (home / "log-server").is_dir()
    driver = Driver(SCRIPT + "KILLED = False" + RESUMED, home)
    output, errors = driver.process.communicate(timeout=300)
    assert driver.process.returncode == 0, errors
    assert (home / "log-server").is_dir()
    assert "log-server" not in errors  # it is small
    first, words, digests, logged, fates = json.loads(output)
    states, expected = sequential()
    assert first == 4  # steps 0 to 3 were committed
    assert words == list(states.values())
    assert list(digests.values()) == logged == [digest.hex() for digest in expected]
    assert sum(fates.values()) == messages_of(STEPS)
    record = EventLog.open(home / "log").run
    assert record["groups"] == {f"group{n}": 20 for n in range(3)}
    assert (record["steps"]["seed"], record["model"]["until"], record["model"]["by"]) == (SEED, STEPS, "agent")
    assert [(start["on_existing"], start["ended"] is None) for start in record["starts"]] == [
        ("error", end == "with its whole machine"),
        ("resume", False),
    ]


def test_of_a_model_that_raises_ray_says_nothing_of_its_own(home):
    """Calls of the other groups are under way then: Ray told that it repeats them."""
    driver = Driver(RAISES, home)
    out, errors = driver.process.communicate(timeout=300)
    assert driver.process.returncode == 0, errors
    assert "agent 1 of group 'group0' in step 3" in out or "agent 1 of group 'group1' in step 3" in out
    assert "RunActor" not in out + errors
