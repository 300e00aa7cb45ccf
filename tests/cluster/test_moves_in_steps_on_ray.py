"""Agents that move while `messaging.run` goes on: the result is that of a run without moves."""

import os
import signal
import sys
import threading
import uuid

import numpy as np
import pandas as pd
import pytest
import ray
from support.step_society import AGENTS, SEED, STEPS, listen, sequential, spread

from ray_messaging import Messaging, Steps


@pytest.fixture
def messaging(ray_cluster):
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test's module
    with Messaging.start(f"moves-{uuid.uuid4().hex[:8]}", steps=Steps(seed=SEED, digest=True)) as started:
        yield started
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def person(me, inbox):
    heard = [(message.from_id, message.payload) for message in inbox]
    me.state["word"] = listen(me.state.get("word", "0"), heard, me.rng)
    assert me.data == {"home": me.id % 2}
    for friend, payload, later in spread(me.id, me.state["word"], me.step):
        me.send(friend, payload, deliver_at=later)


def moving(messaging, done):
    """Move agents to and fro between the groups until the run is done."""
    turn = np.random.default_rng(SEED)
    while not done.is_set() and messaging.steps.now < STEPS - 1:
        for source, target in (("group0", "group1"), ("group1", "group0")):
            hosted = [*messaging.agents().by_group.get(source, ())]
            if len(hosted) > 10 and messaging.steps.groups == ["group0", "group1"]:
                messaging.move_agents([int(agent) for agent in turn.choice(hosted, 5, replace=False)], to=target)


@pytest.mark.long
def test_moves_and_kills_change_nothing_in_a_run(messaging, tmp_path):
    def dying(me, inbox):
        person(me, inbox)
        mark = tmp_path / f"{me.id}"
        if me.step in {2, 5} and me.id in {7, 8} and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

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
