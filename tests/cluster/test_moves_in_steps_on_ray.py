"""Agents that move while `messaging.run` goes on: the result is that of a run without moves."""

import os
import signal
import threading

import numpy as np
import pandas as pd
import pytest
from support.cluster import die_once
from support.step_society import AGENTS, SEED, STEPS, person, sequential

from ray_messaging import Messager, Messaging, Steps
from ray_messaging.errors import StepFailed

pytestmark = pytest.mark.long


@pytest.fixture
def messaging(by_value, exp_id):
    with Messaging.start(exp_id, steps=Steps(seed=SEED, digest=True), shards=3) as started:
        yield started


def at_home(me, inbox):
    assert me.data == {"home": me.id % 2}
    person(me, inbox)


def moving(messaging, done):
    """Move agents to and fro between the groups until the run is done."""
    turn = np.random.default_rng(SEED)
    while not done.is_set() and messaging.steps.now < STEPS - 1:
        for source, target in (("group0", "group1"), ("group1", "group0")):
            hosted = [*messaging.agents().by_group.get(source, ())]
            if len(hosted) > 10 and messaging.steps.groups == ["group0", "group1"]:
                messaging.move_agents([int(agent) for agent in turn.choice(hosted, 5, replace=False)], to=target)


def test_moves_and_kills_change_nothing_in_a_run(messaging, tmp_path):
    def dying(me, inbox):
        at_home(me, inbox)
        if me.step in {2, 5} and me.id in {7, 8}:
            die_once(tmp_path / f"{me.id}")

    done = threading.Event()
    agents = pd.DataFrame({"home": [agent % 2 for agent in range(AGENTS)]})
    mover = threading.Thread(target=moving, args=(messaging, done))
    mover.start()
    try:
        result = messaging.run(dying, agents=agents, groups=2, until=STEPS - 1)
    finally:
        done.set()
        mover.join()
    assert messaging.steps.moved()
    result = messaging.run(dying, agents=agents, groups=2, until=STEPS)  # agents are where they have moved to
    assert {agent: state["word"] for agent, state in result.states.items()} == sequential()[0]
    assert [messaging.steps.digest(step) for step in range(STEPS)] == sequential()[1]
    assert sorted(mark.name for mark in tmp_path.iterdir()) == ["7", "8"]


def dying_behind_a_move(mark):
    """Have this process die once it has moved agents, while their step is open."""
    real = Messager.move_agents

    async def move_agents(self, *args, **more):
        await real(self, *args, **more)
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)

    Messager.move_agents = move_agents


def test_agents_move_themselves(messaging, tmp_path):
    def home(agent, step):
        return f"group{(agent + step // 2) % 2}"

    def wandering(me, inbox):
        mark = tmp_path / f"{me.id}"
        if me.id in {6, 7} and me.step == 3 and not mark.exists():
            dying_behind_a_move(mark)
        at_home(me, inbox)
        me.move(to="group0")  # the last call counts
        me.move(to=home(me.id, me.step + me.step % 2))

    agents = pd.DataFrame({"home": [agent % 2 for agent in range(AGENTS)]})
    for until in (STEPS - 3, STEPS):  # it goes on where they have moved to
        result = messaging.run(wandering, agents=agents, groups=2, until=until)
        assert {agent: messaging.agents()[agent] for agent in range(AGENTS)} == {
            agent: home(agent, until - 1 + (until - 1) % 2) for agent in range(AGENTS)
        }
    assert {agent: state["word"] for agent, state in result.states.items()} == sequential()[0]
    assert [messaging.steps.digest(step) for step in range(STEPS)] == sequential()[1]
    assert list(tmp_path.iterdir())


def test_a_move_to_no_group_names_the_agent(messaging):
    def lost(me, inbox):
        if me.id == 7:
            me.move(to="nowhere")

    def early(me):
        me.move(to="group0")
        return {}

    with pytest.raises(StepFailed, match="cannot move in start="):
        messaging.run(lost, agents=AGENTS, groups=2, until=2, start=early)
    with pytest.raises(StepFailed, match="there is no group 'nowhere'") as caught:
        messaging.run(lost, agents=AGENTS, groups=2, until=2)
    assert (caught.value.agent, caught.value.step) == (7, 0)
    assert messaging.steps.now == 0
