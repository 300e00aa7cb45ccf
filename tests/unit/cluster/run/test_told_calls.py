"""What a group tells the interceptor about its calls through `me.remember` that are under way."""

import asyncio
from types import SimpleNamespace

from support.patience import WAIT_S

from ray_messaging import LocalServer, Steps
from ray_messaging.cluster.run import run_actor
from ray_messaging.cluster.run.run_actor import RunActor, RunInputs
from ray_messaging.cluster.run.run_plan import RunOptions, plans_for
from ray_messaging.cluster.spec import SUBTOPICS
from ray_messaging.messager import GroupMessager

OPTIONS = RunOptions(None, "agent", 100, None)


async def test_a_run_that_has_ended_has_no_calls_under_way(monkeypatch):
    monkeypatch.setattr(run_actor, "CALLS_TOLD_S", 0.001)
    plan, told, seen = plans_for(OPTIONS, 2, 1, None, 1)[0], [], asyncio.Event()

    def tell(group, now):
        told.append((group, now.calls))
        if now.calls == 2:  # the first time may come before both agents have begun their calls
            monkeypatch.setattr(run_actor, "CALLS_TOLD_S", WAIT_S)  # the run ends before the next time
            seen.set()

    async def ask(agent):
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(seen.wait(), loop))

    async def person(me, inbox):
        await me.remember(ask, me.id)

    async def known(value):
        return value

    loop = asyncio.get_running_loop()
    messaging = SimpleNamespace(
        log_dir=None,
        calls=None,
        interceptor=SimpleNamespace(tell_calls=SimpleNamespace(remote=tell)),
        _connection=SimpleNamespace(experiment=SimpleNamespace(settings=SimpleNamespace(cut_timeout_s=WAIT_S))),
    )
    inputs = RunInputs(known(person), known(OPTIONS), known(None), {plan.name: known(plan)})
    with LocalServer(Steps(groups=1)) as server:
        async with GroupMessager(server, "told", None, name=plan.name) as messager:
            await messager.host_agents(plan.agents, SUBTOPICS)
            actor = RunActor(messager)
            async with asyncio.timeout(WAIT_S):
                await actor.run(plan.name, [known((messaging, inputs))], 1, 1, with_states=False)
            await actor.close()
    assert told[-2:] == [(plan.name, 2), (plan.name, 0)]
