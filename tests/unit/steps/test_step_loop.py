"""The loop of a task that drives a group which another process hosts."""

import asyncio

from support.stepped import begin_steps

from ray_messaging.steps import step_loop


async def test_a_second_driver_gets_the_group_of_one_that_died(messagers, monkeypatch):
    async def dead(_loop, _attempt):
        await asyncio.Event().wait()

    monkeypatch.setattr(step_loop, "STEP_LEASE_S", 0.05)
    monkeypatch.setattr(step_loop.StepLoop, "_renew", dead)
    host = await messagers(name="all")
    await begin_steps(host)
    await host.host_agents([1, 2], ["agent-chat"])
    loops = [await step_loop.driven_loop((await messagers(name="all")).engine, task) for task in ("first", "second")]
    first, second = (loop.steps(until=5) for loop in loops)
    await anext(first)
    assert (await anext(second)).number == 0
    for steps in (first, second):
        await steps.aclose()
