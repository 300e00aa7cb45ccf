"""What a step knows of the blocked messages of the step before: after moves, faults, and on every server."""

import asyncio
from contextlib import aclosing

import pytest

from ray_messaging import Messager
from ray_messaging.interception.rules import BlackList
from ray_messaging.interception.server.interceptor import Interceptor
from ray_messaging.transports.step_values import StepSettings, WaitFor

AGENTS, UNTIL = 4, 5


@pytest.fixture
async def groups(server, exp_id, request):
    """Open two groups, whose agents may not write to agent 0."""
    opened = []

    async def open_groups(wait_for=WaitFor.ALL, *, blocks=True):
        rules = Interceptor(exp_id, [BlackList(pairs=[(agent, 0) for agent in range(AGENTS)] if blocks else [])])
        for name in ("group0", "group1", "setup"):
            opened.append(Messager(server, exp_id, rules, name=name))
            await opened[-1].init()
        await opened[-1].engine.transport.steps.begin(StepSettings(groups=2, wait_for=wait_for))
        for number in range(2):
            await opened[number].host_agents(range(number, AGENTS, 2), ["agent-chat"])
        return opened[:2]

    yield open_groups
    for messager in opened:
        await messager.close()


async def live(messager, learnt, hook=None, until=UNTIL):
    """Let each agent write to agents 0 and 1 in each step, and note what it learns of the step before."""
    async with aclosing(messager.steps(until=until)) as steps:
        async for step in steps:
            if hook is not None:
                await hook(step)
            for agent in step.agents:
                learnt[step.number, agent] = [tuple(each) for each in step.blocked.of(step.places.place(agent))]
                step.send(agent, 1, {})
                step.send(agent, 0, {})


def expected(until=UNTIL):
    blocked = {
        (step + 1, agent): [(f"{step}-1-{agent}", agent, 0, "black_list", f"agent {agent} may not write to agent 0")]
        for step in range(until - 1)
        for agent in range(AGENTS)
    }
    return blocked | {(0, agent): [] for agent in range(AGENTS)}


@pytest.mark.parametrize("wait_for", WaitFor)
async def test_agents_learn_it_wherever_they_move(groups, wait_for):
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
        await asyncio.gather(live(first, learnt, moves), live(second, learnt, back))
    assert learnt == expected()


async def test_a_step_that_runs_again_learns_the_same(groups):
    first, second = await groups()
    learnt = {}

    async def moves(step):
        if step.number == 1:
            await first.move_agents([0, 2], to="group1")

    async def dies_in_each_step():
        for number in range(UNTIL):
            async with aclosing(second.steps(until=number + 1)) as steps:
                async for step in steps:
                    seen = [tuple(each) for each in step.blocked]
                    step.send(1, 0, {})
                    break
            await live(second, learnt, until=number + 1)
            assert seen == [row for agent in step.agents for row in learnt[number, agent]]

    async with asyncio.timeout(60):
        await asyncio.gather(live(first, learnt, moves), dies_in_each_step())
    assert learnt == expected()


@pytest.mark.parametrize("blocks", [True, False])
async def test_the_server_keeps_it_for_one_step_and_nothing_where_nothing_is_blocked(groups, store, blocks):
    learnt = {}
    async with asyncio.timeout(60):
        await asyncio.gather(*(live(group, learnt) for group in await groups(blocks=blocks)))
    there = [step for step in range(UNTIL) if await store.client.exists(store.keys.steps(f"{step}:blocked"))]
    assert there == ([UNTIL - 1] if blocks else [])
