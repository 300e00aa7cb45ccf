"""Positions that groups change in their steps: one version in the next step for all groups."""

import asyncio
from contextlib import aclosing

import numpy as np
import pytest

from ray_messaging import AudienceTooLarge, ConfigError, InvalidColumns, Messager, UnknownName, UnknownSender
from ray_messaging.audiences.audience_records import AudienceFacts, AudienceKind, encode_facts
from ray_messaging.audiences.building import Positions
from ray_messaging.model.columns import IdColumn
from ray_messaging.transports.step_values import StepSettings, WaitFor

AGENTS, RADIUS, STEPS = 40, 1.5, 5


def places_at(step):
    """Return where all agents are in a step."""
    return np.random.default_rng(step).uniform(0, 8, (AGENTS, 2))


class Shelf(dict):
    """A source of audiences in memory that makes versions."""

    def __init__(self):
        self.made = 0
        self.transport = None
        self.lock = asyncio.Lock()

    async def load(self, name, version):
        return self[name, version]

    async def publish(self, name, version, edges, since=None):
        self[name, version] = edges
        facts = AudienceFacts(
            AudienceKind.POSITIONS, edges.pairs, edges.digest.hex(), -1 if since is None else since - 1
        )
        assert await self.transport.set_audience(name, version, encode_facts(facts), since) is not None

    async def move_in_step(self, name, step, ids, points):
        async with self.lock:
            audiences = (await self.transport.load_directory(0)).audiences
            last = audiences[name][-1]
            if last.since < step:
                self.made += 1
                moved = self[name, last.version].positions.moved(ids, points)
                await self.publish(name, last.version + 1, moved.edges(), step)


@pytest.fixture
async def opened(server, exp_id):
    """Open groups that share the agents round robin, and an audience of agents that are near."""
    found, shelf = [], Shelf()

    async def open_groups(count, **settings):
        for number in range(-1, count):
            messager = Messager(server, exp_id, name=f"group{number}" if number >= 0 else "setup", audiences=shelf)
            found.append(messager)
            await messager.init()
            if number < 0:
                await messager.engine.transport.steps.begin(StepSettings(groups=count, digest=True, **settings))
                shelf.transport = messager.engine.transport
            else:
                await messager.host_agents(range(number, AGENTS, count), ["agent-chat"])
        placed = Positions.given(IdColumn(np.arange(AGENTS)), places_at(0), RADIUS, 10_000)
        await shelf.publish("street", 1, placed.edges())
        return found[1:]

    open_groups.shelf = shelf
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
    assert opened.shelf.made == STEPS - 1  # one version a step, also where a step ran again


async def test_impossible_moves_are_refused(opened):
    (group,) = await opened(1)
    steps = group.steps(until=2)
    step = await anext(steps)
    with pytest.raises(UnknownName, match="no audience 'plaza'"):
        step.move("plaza", [1], [[0, 0]])
    with pytest.raises(UnknownSender, match="no agent of this group"):
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
    sparse = Positions.given(IdColumn(np.arange(AGENTS)), places_at(0), RADIUS, AGENTS * (AGENTS - 1) - 1)
    await opened.shelf.publish("plaza", 1, sparse.edges())
    steps = group.steps(until=2)
    (await anext(steps)).move("plaza", np.arange(AGENTS), np.zeros((AGENTS, 2)))
    with pytest.raises(AudienceTooLarge, match="makes 1,560 pairs of 40 agents, the limit is 1,559") as caught:
        await anext(steps)
    assert (caught.value.pairs, caught.value.limit) == (1560, 1559)


async def test_groups_that_wait_for_their_senders_alone_cannot_move_agents(opened):
    (group,) = await opened(1, wait_for=WaitFor.SENDERS)
    steps = group.steps(until=2)
    (await anext(steps)).move("street", [1], [[0, 0]])
    with pytest.raises(ConfigError, match="wait_for='all'"):
        await anext(steps)
