"""Positions that groups change in their steps: one version in the next step for all groups."""

import asyncio
from contextlib import aclosing

import numpy as np
import pytest
from support.positions import PlacesInMemory
from support.stepped import begin_steps

from ray_messaging import Messager
from ray_messaging.errors import AudienceTooLarge, ConfigError, InvalidColumns, UnknownName, UnknownSender

AGENTS, RADIUS, STEPS = 40, 1.5, 5


def places_at(step):
    """Return where all agents are in a step."""
    return np.random.default_rng(step).uniform(0, 8, (AGENTS, 2))


@pytest.fixture
async def opened(server, exp_id):
    """Open groups that share the agents round robin, and an audience of agents that are near."""
    found, places = [], PlacesInMemory()

    async def open_groups(count, **settings):
        for number in range(-1, count):
            messager = Messager(server, exp_id, name=f"group{number}" if number >= 0 else "setup", audiences=places)
            found.append(messager)
            await messager.init()
            if number < 0:
                await begin_steps(messager, groups=count, digest=True, **settings)
                places.messager = messager
            else:
                await messager.host_agents(range(number, AGENTS, count), ["agent-chat"])
        await places.place("street", places_at(0), RADIUS)
        return found[1:]

    open_groups.places = places
    yield open_groups
    for messager in found:
        await messager.close()


async def walk(messager, again=()):
    """Move all agents in each step, and count the agents that each hears."""
    heard, done = {}, set()
    while True:
        async with aclosing(messager.steps(until=STEPS)) as steps:
            async for step in steps:
                heard[step.number] = dict(zip(step.agents, step.heard("street").count().tolist(), strict=True))
                ids = np.array(step.agents)
                step.move("street", ids, np.zeros((len(ids), 2)))
                step.move("street", ids, places_at(step.number + 1)[ids])
                step.broadcast_columns(ids, "street", {"n": step.number})
                if step.number in again and step.number not in done:
                    done.add(step.number)
                    break
            else:
                return heard


def near(step):
    """Return how many others each agent has near it in a step."""
    places = places_at(step)
    apart = np.linalg.norm(places[:, None] - places[None], axis=2)
    return dict(enumerate(((apart <= RADIUS).sum(axis=1) - 1).tolist()))


@pytest.mark.parametrize("count", [1, 3])
async def test_all_read_the_new_positions_in_the_next_step(opened, count):
    groups = await opened(count)
    async with asyncio.timeout(60):
        found = await asyncio.gather(*(walk(group, (1, 3) if not at else ()) for at, group in enumerate(groups)))
    for step in range(1, STEPS):
        assert {agent: n for part in found for agent, n in part[step].items()} == near(step - 1)
    assert opened.places.made == STEPS - 1  # one version a step, also where a step ran again


async def test_impossible_moves_are_refused(opened):
    (group,) = await opened(1)
    steps = group.steps(until=2)
    step = await anext(steps)
    with pytest.raises(UnknownName, match="no audience 'plaza'"):
        step.move("plaza", [1], [[0, 0]])
    with pytest.raises(UnknownSender, match="not an agent of this group"):
        step.move("street", [AGENTS], [[0, 0]])
    with pytest.raises(InvalidColumns, match="shape"):
        step.move("street", [1], [0, 0])
    with pytest.raises(InvalidColumns, match="finite"):
        step.move("street", [1], [[0, np.nan]])
    step.move("street", [1], [[0, 0, 0]])
    with pytest.raises(InvalidColumns, match="shape"):
        await anext(steps)


async def test_a_crowd_that_is_too_dense_is_refused_in_the_next_step(opened):
    (group,) = await opened(1)
    await opened.places.place("plaza", places_at(0), RADIUS, limit=AGENTS * (AGENTS - 1) - 1)
    steps = group.steps(until=2)
    (await anext(steps)).move("plaza", np.arange(AGENTS), np.zeros((AGENTS, 2)))
    with pytest.raises(AudienceTooLarge, match="makes 1,560 pairs of 40 agents, the limit is 1,559") as caught:
        await anext(steps)
    assert (caught.value.pairs, caught.value.limit) == (1560, 1559)


async def test_groups_that_wait_for_their_senders_alone_cannot_move_agents(opened):
    (group,) = await opened(1, wait_for="senders")
    steps = group.steps(until=2)
    (await anext(steps)).move("street", [1], [[0, 0]])
    with pytest.raises(ConfigError, match="wait_for='all'"):
        await anext(steps)
