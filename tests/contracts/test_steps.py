"""Steps: the same society gives the same digests, on every layout and after every fault."""

import asyncio
from contextlib import aclosing

import pytest
from support.contracts import store_of
from support.step_society import AGENTS, SEED, STEPS, digests_of, run_step, sequential

from ray_messaging import ConfigError, Messager, StepAborted, Steps, UnknownSender
from ray_messaging.transports.memory import MemoryServer
from ray_messaging.transports.steps.values import StepSettings


@pytest.fixture(params=["memory", "valkey", "redis"])
def server(request):
    return MemoryServer() if request.param == "memory" else request.getfixturevalue(f"{request.param}_config")


async def live(messager, *, until=STEPS):
    """Drive a group through the society; return the states of its agents."""
    states = {}
    async with aclosing(messager.steps(until=until)) as steps:
        async for step in steps:
            states = run_step(step)
    return states


@pytest.fixture
async def groups(server, exp_id):
    """Open stepped groups, which share the agents round robin."""
    opened = []

    async def open_groups(count, **settings):
        first = Messager(server, exp_id, name="setup")
        await first.init()
        opened.append(first)
        await first.engine.transport.steps.begin(StepSettings(seed=SEED, groups=count, **settings))
        return [await one(number, range(number, AGENTS, count)) for number in range(count)]

    async def one(number, agents):
        messager = Messager(server, exp_id, name=f"group{number}")
        opened.append(messager)
        await messager.init()
        await messager.host_agents(agents, ["agent-chat", "user-chat"])
        return messager

    open_groups.one = one
    yield open_groups
    for messager in opened:
        await messager.close()


@pytest.mark.parametrize("count", [1, 2, 8])
async def test_states_and_digests_are_those_of_one_loop(groups, count):
    opened = await groups(count, digest=True)
    async with asyncio.timeout(60):
        found = await asyncio.gather(*map(live, opened))
    states, digests = sequential()
    assert {agent: state for part in found for agent, state in part.items()} == states
    assert await digests_of(opened[0].engine.transport.steps) == digests


async def test_a_step_that_was_not_committed_runs_again_with_the_same_inbox(groups):
    first, second = await groups(2, digest=True)
    other = asyncio.create_task(live(second))
    seen = []
    async with aclosing(first.steps(until=STEPS)) as steps:
        async for step in steps:
            seen.append([message.id for message in step.messages])
            for agent in step.agents:
                step.send(agent, agent, {"word": "never seen"})
            break
    async with asyncio.timeout(60):
        states = await live(first) | await other
    assert states == sequential()[0]
    assert await digests_of(second.engine.transport.steps) == sequential()[1]
    assert seen == [[]]


async def test_a_group_goes_on_where_it_stopped(groups):
    first, second = await groups(2, digest=True)
    await asyncio.gather(live(first, until=3), live(second, until=3))
    async with asyncio.timeout(60):
        found = await asyncio.gather(live(first), live(second))
    assert found[0] | found[1] == sequential()[0]
    assert await digests_of(second.engine.transport.steps) == sequential()[1]
    assert await live(first) == {}


async def test_a_successor_has_the_step_and_the_first_process_has_not(groups):
    first, second = await groups(2, digest=True)
    other = asyncio.create_task(live(second))
    steps = first.steps(until=STEPS)
    step = await anext(steps)
    step.send(0, 1, {"word": "from the dead"})
    successor = await groups.one(0, range(0, AGENTS, 2))
    async with asyncio.timeout(60):
        states = await live(successor) | await other
    with pytest.raises(StepAborted, match="another driver"):
        await anext(steps)
    assert states == sequential()[0]
    assert await digests_of(second.engine.transport.steps) == sequential()[1]


async def test_a_message_from_outside_is_read_in_a_later_step(groups, server, exp_id):
    (group,) = await groups(1)
    user = Messager(server, exp_id)
    await user.init()
    heard = []
    async for step in group.steps(until=4):
        heard += [(step.number, message.from_id, message.payload) for message in step.messages]
        if step.number == 1:
            await user.send_message(user.get_user_chat_channel(3), {"n": 1}, to_id=3)
            await user.send_message(user.get_agent_chat_channel(3), {"n": 2}, to_id=3)
    await user.close()
    assert heard == [(2, None, {"n": 1}), (2, None, {"n": 2})]


async def test_a_foreign_client_hears_a_step_once_it_is_sealed(groups, server, exp_id):
    (group,) = await groups(1)
    store = store_of(server, exp_id)
    channel = group.get_agent_chat_channel(10**6)
    get = await store.subscribe(channel)
    async with asyncio.timeout(30):
        async with aclosing(group.steps(until=2)) as steps:
            async for step in steps:
                step.send(0, 10**6, {"in": step.number})
                if step.number == 0:
                    step.send(1, 10**6, {"also": 0})
                else:
                    break  # this attempt does not count
        async for step in group.steps(until=2):
            step.send(0, 10**6, {"again": step.number})
        heard = [await get() for _ in range(3)]
    await store.close()
    assert heard == [(channel, b'{"in":0}'), (channel, b'{"also":0}'), (channel, b'{"again":1}')]


async def test_bad_input(groups):
    (group,) = await groups(1)
    with pytest.raises(ConfigError, match="steps"):
        await group.send_message(group.get_agent_chat_channel(2), {}, from_id=1)
    with pytest.raises(ConfigError, match="steps"):
        await group.fetch_messages()
    with pytest.raises(ConfigError, match="steps"):
        group.step = 3
    async for step in group.steps(until=2):
        with pytest.raises(UnknownSender):
            step.send(AGENTS, 1, {})
        with pytest.raises(ConfigError, match="deliver_at"):
            step.send(1, 1, {}, deliver_at=step.number)


async def test_a_messager_without_steps_says_so(server, exp_id):
    async with Messager(server, exp_id, name="plain") as messager:
        await messager.host_agents([1], ["agent-chat"])
        with pytest.raises(ConfigError, match="has no steps"):
            messager.steps(until=3)


async def test_a_server_in_memory_can_have_steps():
    server = MemoryServer(steps=Steps(seed=SEED, digest=True))
    async with Messager(server, "town", name="all") as messager:
        await messager.host_agents(range(AGENTS), ["agent-chat"])
        assert await live(messager) == sequential()[0]
