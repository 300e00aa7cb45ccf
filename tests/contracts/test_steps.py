"""Steps: the same society gives the same digests, on every layout and after every fault."""

import asyncio
from contextlib import aclosing
from functools import partial

import numpy as np
import pytest
from support.contracts import RedisStore
from support.patience import WAIT_S
from support.step_society import AGENTS, SEED, STEPS, agree, hears, live, run_step
from support.stepped import declare, fates_in, steps_of

from ray_messaging import Messager, MessagingError
from ray_messaging.errors import Closed, ConfigError, UndeclaredSend


@pytest.fixture
def groups(stepped_groups):
    return partial(stepped_groups, agents=AGENTS, seed=SEED)


@pytest.mark.parametrize(
    ("count", "mode"),
    [
        *((count, "all") for count in (1, 2, 8)),
        (3, "senders"),
        pytest.param(20, "senders", marks=pytest.mark.long),
    ],
)
async def test_states_and_digests_are_those_of_one_loop(groups, count, mode):
    opened = await groups(count, digest=True, wait_for=mode)
    if mode == "senders":
        await declare(opened[0], hears(count))
    async with asyncio.timeout(60):
        await agree(opened[0], *await asyncio.gather(*map(live, opened)))


async def test_a_send_to_a_group_that_does_not_hear_the_sender_commits_nothing(groups):
    first, second = await groups(2, wait_for="senders")
    await declare(first, {"group0": [], "group1": ["group0"]})
    ahead = [step.number async for step in first.steps(until=4)]  # it waits for nobody
    assert ahead == [0, 1, 2, 3]
    steps = second.steps(until=4)
    (await anext(steps)).send(1, 3, {})
    (await anext(steps)).send(1, 2, {})
    with pytest.raises(
        UndeclaredSend, match=r"'group1' is not committed, because it has messages for 'group0'.*declare"
    ) as raised:
        await anext(steps)
    assert (raised.value.group, raised.value.step, raised.value.hearers) == ("group1", 1, ("group0",))
    assert [step.number async for step in second.steps(until=4)] == [1, 2, 3]


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
        await agree(second, await live(first), await other)
    assert seen == [[]]


async def test_groups_that_loop_to_one_step_after_the_other_wait_for_each_other(groups):
    async def live_on(messager):
        for until in range(1, STEPS + 1):
            states = await live(messager, until=until)
        return states

    first, second = await groups(2, digest=True)
    async with asyncio.timeout(60):
        await agree(second, *await asyncio.gather(live_on(first), live_on(second)))
    assert await live(first) == {}  # it is at its end


async def test_a_foreign_client_hears_a_step_once_it_is_sealed(groups, server, exp_id):
    (group,) = await groups(1)
    store = RedisStore(server, exp_id)
    channel = group.get_agent_chat_channel(10**6)
    get = await store.subscribe(channel)
    async with asyncio.timeout(WAIT_S):
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


async def test_a_messager_without_steps_says_so(server, exp_id):
    async with Messager(server, exp_id, name="plain") as messager:
        await messager.host_agents([1], ["agent-chat"])
        with pytest.raises(ConfigError, match="has no steps"):
            messager.steps(until=3)


async def fates(group, step):
    """Return the fates of what group 0 has sent in a step."""
    return (await fates_in(await steps_of(group), step))["group0"]


async def test_messages_that_no_group_can_read_are_undeliverable(groups, server, exp_id):
    (group,) = await groups(1)
    async with Messager(server, exp_id, name="ear") as ear:  # it has no steps
        await ear.subscribe_and_start_listening([ear.get_agent_chat_channel(3), ear.get_agent_chat_channel(99)])
        heard = []
        async with asyncio.timeout(WAIT_S):
            async for step in group.steps(until=3):
                heard += [(step.number, message.to_id) for message in step.messages]
                if step.number == 0:
                    step.send_columns(1, [3, 99, 777], {})  # one sender and one payload for all
                if step.number == 1:
                    step.send_columns([1, 1], 777, [{}, {}])  # one recipient for all
    assert heard == [(1, 3)]
    assert await fates(group, 0) == {"delivered": 1, "undeliverable": 2}
    assert await fates(group, 1) == {"undeliverable": 2}


async def test_a_group_that_left_comes_back_where_the_others_are_by_then(groups):
    first, second = await groups(2)
    seen = []

    async def write(group, until, to_id, leave=False):
        async with aclosing(group.steps(until=until, leave=leave)) as steps:
            async for step in steps:
                if group is second:
                    seen.extend((step.number, message.payload["in"]) for message in step.messages)
                step.send(step.agents[0], to_id, {"in": step.number})

    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(write(first, 7, 1), write(second, 3, 0, leave=True))
        assert seen == [(1, 0), (2, 1)]
        await asyncio.gather(write(first, 12, 1), write(second, 12, 0))
    assert seen[2:] == [(number, number - 1) for number in range(seen[2][0], 12)]
    assert seen[2][0] >= 8
    assert [await fates(first, step) for step in (1, 2)] == [{"delivered": 1}, {"undeliverable": 1}]


async def test_break_and_a_second_loop(groups):
    (group,) = await groups(1)
    async for step in group.steps(until=4):
        if step.number == 1:
            break
    seen = []
    async with asyncio.timeout(WAIT_S):
        async for again in group.steps(until=4):
            await asyncio.sleep(0)  # the first loop ends meanwhile
            seen.append(again.number)
    assert seen == [1, 2, 3]
    with pytest.raises(Closed, match="step 1 is over"):
        step.send(1, 2, {})


async def test_a_driver_that_is_cancelled_again_and_again_leaves_no_task(groups):
    (group,) = await groups(1)
    before = sorted(task.get_name() for task in asyncio.all_tasks())
    begun = asyncio.Event()

    async def drive():
        async with aclosing(group.steps(until=STEPS)) as steps:
            async for step in steps:
                run_step(step)
                begun.set()
                await asyncio.Event().wait()

    driving = asyncio.create_task(drive())
    await begun.wait()
    while not driving.done():
        driving.cancel()
        await asyncio.sleep(0)
    assert sorted(task.get_name() for task in asyncio.all_tasks()) == before


async def test_a_messager_that_is_closed_in_a_step_commits_nothing(groups, messagers):
    (group,) = await groups(1)
    steps = group.steps(until=2)
    (await anext(steps)).send(1, 2, {})
    await group.close()
    with pytest.raises(MessagingError, match="closed"):
        await anext(steps)
    successor = await messagers(name="group0", host=range(AGENTS))
    async for step in successor.steps(until=2):
        assert not len(step.messages)


@pytest.mark.parametrize("silent", [False, True])
async def test_agents_that_come_later_are_in_the_next_steps(groups, silent):
    (group,) = await groups(1)
    known, new = range(AGENTS), [-5, AGENTS + 3, "ann"]
    heard = {}
    async for step in group.steps(until=4):
        heard[step.number] = {agent: [message.to_id for message in inbox] for agent, inbox in step.by_agent()}
        if step.number == 0:
            await group.host_agents(new, ["agent-chat"])
        for agent in [] if silent else [*known, *new]:
            step.send(1, agent, {})
    assert heard[1] == heard[3] == {agent: [] if silent else [agent] for agent in [*known, *new]}


async def test_a_group_without_agents_takes_part(groups, messagers):
    first, empty = await groups(1), await messagers(name="empty")
    await empty.host_agents([], ["agent-chat"])

    async def numbers(group):
        return [(step.number, len(step.agents)) async for step in group.steps(until=2)]

    async with asyncio.timeout(WAIT_S):
        assert await asyncio.gather(numbers(first[0]), numbers(empty)) == [[(0, AGENTS), (1, AGENTS)], [(0, 0), (1, 0)]]


async def test_numpy_integers_are_ids_and_steps(groups):
    (group,) = await groups(1)
    async for step in group.steps(until=3):
        if step.number == 0:
            step.send(np.int64(3), np.int64(4), {}, deliver_at=np.int64(2))
        assert step.rng(np.int64(3)).random() == step.rng(3).random()
        assert [message.from_id for message in step.inbox(np.int64(4))] == [3] * (step.number == 2)


@pytest.mark.parametrize("until", [None, "3", 2.5, -1, True])
async def test_an_until_that_is_no_number_of_steps(groups, until):
    (group,) = await groups(1)
    with pytest.raises(ConfigError, match="until="):
        await anext(group.steps(until=until))
    assert [step.number async for step in group.steps(until=0)] == []
