"""Ctrl-C at each moment of a run: it gives the result so far, or a clear end, and no step waits for it afterwards."""

import os
import signal
import threading
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest
from support.cluster import control, wait_for

from ray_messaging import Messaging, Steps
from ray_messaging.cluster.run.run import EarlyEnd

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("by_value")]

AGENTS, GROUPS = 4, 2


@pytest.fixture(scope="module")
def town(ray_cluster):
    with Messaging.start(f"ctrl-c-{uuid.uuid4().hex[:8]}", steps=Steps()) as messaging:
        yield messaging


@pytest.fixture
def first(town):
    """Give the first step that no other test has run."""
    return town.steps.now


def wait_for_file(reached, go):
    """Say in a process of the run that it is here, and wait."""
    Path(reached).touch()
    while not Path(go).exists():
        time.sleep(0.01)


class Late:
    """A value for which a process of the run waits."""

    def __init__(self, *paths):
        self.paths = paths

    def __reduce__(self):
        return wait_for_file, self.paths


def count(me, inbox):
    me.state["steps"] = me.state.get("steps", 0) + 1
    me.send((me.id + 1) % AGENTS, {"step": me.step})


def waiting_in(step, folder):
    """Return a model that waits in a step for the file "go"."""

    def model(me, inbox):
        count(me, inbox)
        if me.step == step:
            wait_for_file(folder / f"reached-{me.id}", folder / "go")

    return model


def run(messaging, until, model=count, agents=AGENTS):
    return messaging.run(model, agents=agents, groups=GROUPS, until=until, progress=False)


@contextmanager
def at(*moments):
    """Do something at moments of the run in the block: pairs of a condition to wait for and an action."""

    def act():
        for condition, action in moments:
            wait_for(condition, "the moment")
            action()

    thread = threading.Thread(target=act)
    thread.start()
    yield
    thread.join()


def ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)


def driven(messaging):
    """Return whether all groups have a driver, and no step begins."""
    progress = messaging.steps.progress()
    return len(progress.groups) == GROUPS and all(each.driver for each in progress.groups.values())


def handled():
    """Return whether the next Ctrl-C is the run's."""
    return getattr(signal.getsignal(signal.SIGINT), "__self__", None).__class__ is EarlyEnd


def goes_on(messaging, until):
    """Check that steps wait for nothing, and a run goes on where the one before has ended."""
    progress = messaging.steps.progress()
    assert (progress.target, progress.holds) == (None, {})
    result = run(messaging, until)
    assert (result.steps, result.stopped) == (until, False)
    assert [state["steps"] for state in result.states.values()] == [until] * AGENTS


def test_before_step_0_of_steps_that_are_paused(start_steps):
    new_town = start_steps()
    new_town.steps.pause()
    with at((lambda: driven(new_town) and handled(), ctrl_c)):
        result = run(new_town, 3)
    assert (result.steps, result.stopped, dict(result.fates)) == (0, True, {})
    assert result.states == {agent: {} for agent in range(AGENTS)}
    assert new_town.steps.progress().target == -1  # a pause lasts until somebody ends it
    new_town.steps.resume()
    goes_on(new_town, 2)
    new_town.steps.advance(2)
    with at((lambda: new_town.steps.now == 4 and driven(new_town) and handled(), ctrl_c)):
        result = run(new_town, 9)
    assert (result.steps, result.stopped) == (4, True)
    assert new_town.steps.progress().target == 3
    new_town.steps.resume()
    goes_on(new_town, 5)


def test_while_somebody_resumes_the_steps(town, first, tmp_path):
    town.steps.advance(1)
    moments = (
        (lambda: (tmp_path / "reached-0").exists() and handled(), ctrl_c),
        (lambda: "Ctrl-C" in town.steps.progress().holds, town.steps.resume),
        (lambda: town.steps.progress().target is None, (tmp_path / "go").touch),
    )
    with at(*moments):
        result = run(town, first + 9, waiting_in(first, tmp_path))
    assert (result.steps, result.stopped) == (first + 1, True)
    goes_on(town, first + 2)


def test_while_groups_start(town, first, tmp_path):
    agents = pd.DataFrame({"late": [Late(tmp_path / "started", tmp_path / "go"), 1, 2, 3]})
    with at(((tmp_path / "started").exists, ctrl_c)), pytest.raises(KeyboardInterrupt):
        run(town, first + 9, agents=agents)
    goes_on(town, first + 2)


def test_twice(town, first, tmp_path):
    moments = (
        (lambda: (tmp_path / "reached-0").exists() and handled(), ctrl_c),
        (lambda: "Ctrl-C" in town.steps.progress().holds and not handled(), ctrl_c),
    )
    with at(*moments), pytest.raises(KeyboardInterrupt):
        run(town, first + 9, waiting_in(first + 1, tmp_path))
    goes_on(town, first + 3)


@pytest.mark.parametrize("call", ["hold_steps", "release_steps"])
def test_again_while_the_interceptor_answers_the_first_one(town, call):
    class Impatient:
        """The interceptor; during one of its calls comes another Ctrl-C."""

        def __getattr__(self, name):
            return self if name == call else getattr(town.interceptor, name)

        def remote(self, *args):
            ref = getattr(town.interceptor, call).remote(*args)
            ctrl_c()
            return ref

    end = EarlyEnd(Impatient(), [], 1)

    def end_early():
        with end:
            ctrl_c()
            wait_for(lambda: end.asked)
            end.tell()

    with pytest.raises(KeyboardInterrupt):
        end_early()
    wait_for(lambda: not town.steps.progress().holds, "the end of the hold")


def test_a_hold_that_its_release_has_overtaken_holds_nothing(town):
    control(town, "release_steps", "first")
    control(town, "hold_steps", "first")
    assert not town.steps.progress().holds
    control(town, "hold_steps", "second")
    assert town.steps.progress().holds
    control(town, "release_steps", "second")
    assert not town.steps.progress().holds
