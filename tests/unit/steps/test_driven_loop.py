"""The drivers of a group that another process hosts: one after another."""

import asyncio

import pytest

from ray_messaging import Messager
from ray_messaging.steps import step_loop
from ray_messaging.steps.step_loop import driven_loop
from ray_messaging.transports.step_values import StepSettings


@pytest.fixture
async def host(local, transports):
    await (await transports("town")).steps.begin(StepSettings())
    async with Messager(local, "town", name="west") as opened:
        await opened.host_agents(range(3), ["agent-chat"])
        yield opened


@pytest.fixture
async def drive(local, host):
    """Return a function that begins to drive the group, as a process of a task."""
    opened = []

    async def begin(task):
        messager = Messager(local, "town", name="west")
        await messager.init()
        opened.append(messager)
        opened.append((await driven_loop(messager.engine, task)).steps(until=9))
        return opened[-1]

    yield begin
    for steps, messager in zip(opened[1::2], opened[::2], strict=True):
        await steps.aclose()
        await messager.close()


@pytest.mark.parametrize("dies", [True, False])
async def test_a_second_driver_gets_the_group_of_one_that_has_ended(drive, monkeypatch, dies):
    async def dead(_loop, _attempt):
        await asyncio.Event().wait()

    if dies:
        monkeypatch.setattr(step_loop, "STEP_LEASE_S", 0.05)
        monkeypatch.setattr(step_loop.StepLoop, "_renew", dead)
    first, second = await drive("first"), await drive("second")
    await anext(first)
    waiting = asyncio.create_task(anext(second))
    await asyncio.sleep(0)
    assert not waiting.done()
    if not dies:
        await first.aclose()
    assert (await waiting).number == 0


async def test_agents_that_the_host_gets_come_with_the_next_step(drive, host):
    steps = await drive("task")
    assert len((await anext(steps)).agents) == 3
    await host.host_agents(range(3, 6), ["agent-chat"])
    assert list((await anext(steps)).agents) == list(range(6))
