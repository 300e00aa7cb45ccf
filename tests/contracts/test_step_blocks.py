"""What a step knows of the blocked messages of the step before: after moves, faults, and on every server."""

import asyncio
from contextlib import aclosing

import pytest
from support.interceptors import interceptor_with
from support.stepped import begin_steps

from ray_messaging import rules

AGENTS, UNTIL = 4, 5


@pytest.fixture
def groups(messagers, exp_id):
    """Open two groups, whose agents may not write to agent 0."""

    async def open_groups(wait_for="all", *, blocks=True):
        judge = interceptor_with(rules.BlackList(pairs=[(agent, 0) for agent in range(AGENTS)] if blocks else []))
        setup = await messagers(judge, name="setup")
        await begin_steps(setup, groups=2, wait_for=wait_for)
        return [await messagers(judge, name=f"group{n}", host=range(n, AGENTS, 2)) for n in range(2)]

    return open_groups


async def live(messager, learnt, hook=None, breaks=()):
    """Let each agent write to agents 0 and 1 in each step, and note what it learns of the step before.

    The first attempt at each of the steps `breaks` is given up, and the second one must learn the same.
    """
    breaks = set(breaks)
    while True:
        async with aclosing(messager.steps(until=UNTIL)) as steps:
            async for step in steps:
                if hook is not None:
                    await hook(step)
                for agent in step.agents:
                    found = [tuple(each) for each in step.blocked.of(step.places.place(agent))]
                    assert learnt.setdefault((step.number, agent), found) == found
                    step.send(agent, 1, {})
                    step.send(agent, 0, {})
                if step.number in breaks:
                    breaks.remove(step.number)
                    break
            else:
                return


def expected():
    blocked = {
        (step + 1, agent): [(f"{step}-1-{agent}", agent, 0, "black_list", f"agent {agent} may not write to agent 0")]
        for step in range(UNTIL - 1)
        for agent in range(AGENTS)
    }
    return blocked | {(0, agent): [] for agent in range(AGENTS)}


async def steps_kept(store):
    """Return the steps of which the server has what was blocked."""
    return [step for step in range(UNTIL) if await store.client.exists(store.keys.steps(f"{step}:blocked"))]


@pytest.mark.parametrize("wait_for", ["all", "senders"])
async def test_agents_learn_it_wherever_they_move_and_the_server_keeps_it_for_one_step(groups, store, wait_for):
    first, second = await groups(wait_for)
    learnt = {}

    async def moves(step):
        if step.number in (1, 2):
            await first.move_agents([0 if step.number == 1 else 1], to="group1")

    async def back(step):
        if step.number == 1:
            await second.move_agents([1], to="group0")
        if step.number == 3:
            await second.move_agents([0, 1], to="group0")

    async with asyncio.timeout(60):
        await asyncio.gather(live(first, learnt, moves, breaks=(0, 3, 4)), live(second, learnt, back, breaks=(2, 4)))
    assert learnt == expected()
    assert await steps_kept(store) == [UNTIL - 1]


async def test_the_server_keeps_nothing_where_nothing_is_blocked(groups, store):
    learnt = {}
    async with asyncio.timeout(60):
        await asyncio.gather(*(live(group, learnt) for group in await groups(blocks=False)))
    assert not any(learnt.values())
    assert await steps_kept(store) == []
