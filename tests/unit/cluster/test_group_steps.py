"""The drivers of a group's steps: one after another, and calls that come twice."""

import asyncio

import pytest

from ray_messaging import AlreadyExists, Messager, Steps
from ray_messaging.cluster.actors.group import group_steps
from ray_messaging.cluster.actors.group.group_steps import GroupSteps
from ray_messaging.cluster.step_calls import StepDone, StepDriver
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.transports.memory import MemoryServer

FIRST, SECOND = StepDriver("first", "a"), StepDriver("second", "b")


@pytest.fixture
async def messager():
    async with Messager(MemoryServer(steps=Steps()), "town", name="west") as opened:
        await opened.host_agents(range(3), ["agent-chat"])
        yield opened


@pytest.fixture
async def steps(messager):
    found = GroupSteps(messager)
    assert (await found.advance(FIRST, 5, None)).number == 0
    yield found
    for driver in (FIRST, SECOND):
        await found.end(driver)


async def waiting(steps):
    """Return the call of a second driver, which waits."""
    call = asyncio.create_task(steps.advance(SECOND, 5, None))
    await asyncio.sleep(0)
    assert not call.done()
    return call


async def test_a_second_driver_gets_the_group_when_the_first_one_ends(steps):
    call = await waiting(steps)
    await steps.end(FIRST)
    assert (await call).number == 0


async def test_a_second_driver_gets_an_error_at_the_first_ones_sign_of_life(steps):
    call = await waiting(steps)
    steps.alive(FIRST)
    with pytest.raises(AlreadyExists, match="one task at a time"):
        await call


async def test_a_second_driver_gets_the_group_of_one_that_died(steps, monkeypatch):
    monkeypatch.setattr(group_steps, "LEASE_S", 0.05)
    assert (await steps.advance(SECOND, 5, None)).number == 0


async def test_a_call_that_comes_twice_has_the_new_agents_both_times(steps, messager):
    await messager.host_agents(range(3, 6), ["agent-chat"])
    done = StepDone(0, [], None, 3)
    for opened in [await steps.advance(FIRST, 5, done) for _ in range(2)]:
        assert list(AgentSet.of(opened.agents)) == list(range(6))
    assert (await steps.advance(FIRST, 5, StepDone(1, [], None, 6))).agents is None
