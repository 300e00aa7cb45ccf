"""Agents that move in an experiment with steps: the same society, on any hosts of its agents."""

import asyncio
import json
from contextlib import aclosing
from functools import partial

import numpy as np
import pytest
from support.step_society import AGENTS, SEED, STEPS, LoggedGroups, agree, hears, live, run_step
from support.stepped import EVERYBODY, befriend, begin_steps, declare, fates_in, leave_steps, steps_of

from ray_messaging import rules
from ray_messaging.errors import AlreadyExists, MoveFailed, UnknownName

GROUPS = 3


@pytest.fixture
def opened(stepped_groups):
    return partial(stepped_groups, count=GROUPS, agents=AGENTS, seed=SEED, digest=True)


def run_with_arrivals(step):
    """Run one step of the society, with the states that agents bring from their former groups."""
    states = json.loads(step.state) if step.state else {}
    for arrival in step.arrivals:
        brought = json.loads(arrival.state) if arrival.state else {}
        states |= {str(agent): brought[str(agent)] for agent in arrival.agents if str(agent) in brought}
    step.state = json.dumps(states).encode()
    return run_step(step)


live = partial(live, run=run_with_arrivals)


async def test_states_and_digests_do_not_depend_on_moves(opened):
    first, second, third = await opened()

    async def hook(step):
        if step.number == 0:
            await first.move_agents([0, 3, 6], to="group1")
        if step.number == 1:
            await second.move_agents([1, 4], to="group2")
            await third.move_agents([2, 1], to="group0")
        if step.number == 2:
            await second.move_agents([0, 3], to="group0")
        if step.number == 3:
            await first.move_agents([1], to="group1")
            await third.move_agents([4], to="group1")

    async with asyncio.timeout(60):
        found = await asyncio.gather(live(first, hook=hook), live(second), live(third))
        await agree(first, *found)


async def test_groups_that_wait_for_their_senders_alone_hear_for_agents_that_came(opened):
    first, second, third = await opened(wait_for="senders")
    await declare(first, hears(GROUPS))

    async def hook(step):
        if step.number in (1, 3):
            await first.move_agents([3 * step.number, 3 * step.number + 3], to="group1")

    async with asyncio.timeout(60):
        found = await asyncio.gather(live(first, hook=hook), live(second), live(third))
        await agree(first, *found)


async def test_a_step_that_runs_again_reads_the_same_for_agents_that_came(opened):
    first, second, third = await opened()

    async def hook(step):
        if step.number == 1:
            await first.move_agents([0, 3, 6], to="group1")

    async def dies_once():
        seen = []
        async with aclosing(second.steps(until=STEPS)) as steps:
            async for step in steps:
                if step.number == 2:
                    seen.append(([*step.agents], [m.id for m in step.messages], step.arrivals))
                    break
                run_with_arrivals(step)
        again = []

        async def look(step):
            if step.number == 2:
                again.append(([*step.agents], [m.id for m in step.messages], step.arrivals))

        states = await live(second, hook=look)
        assert seen == again
        [arrival] = seen[0][2]
        assert ([*arrival.agents], arrival.group) == ([0, 3, 6], "group0")
        assert set(json.loads(arrival.state)) == {str(agent) for agent in range(0, AGENTS, 3)}
        return states

    async with asyncio.timeout(60):
        found = await asyncio.gather(live(first, hook=hook), dies_once(), live(third))
        await agree(first, *found)


@pytest.mark.parametrize("targets", [("group1", "group2"), ("group1", None), (None, "group1")])
async def test_of_two_calls_that_move_an_agent_at_once_one_succeeds(opened, targets):
    first, *_, last = await opened(count=4)

    def go(to):
        return first.remove_agents([0]) if to is None else first.move_agents([0], to=to)

    found = await asyncio.gather(*map(go, targets), return_exceptions=True)
    assert [type(error) for error in found if error is not None] == [UnknownName]
    [to] = [to for to, error in zip(targets, found, strict=True) if error is None]
    if to is None:
        await last.add_agents([0])
    else:
        with pytest.raises(AlreadyExists) as error:
            await last.add_agents([0])
        assert error.value.owner == to


async def test_messages_from_outside_and_later_ones_reach_agents_that_moved_once(opened, messagers):
    west, east = await opened(count=2)
    outside = await messagers()
    heard = {}

    async def run(messager):
        async with aclosing(messager.steps(until=8)) as steps:
            async for step in steps:
                for agent, inbox in step.by_agent():
                    heard.setdefault(agent, []).extend(message.payload["n"] for message in inbox)
                if step.number == 0 and messager is west:
                    for later in (1, 2, 3, 6):
                        step.send(0, 2, {"n": later}, deliver_at=later)
                    await outside.send(None, 2, {"n": "before"})
                    await west.move_agents([2], to="group1")
                    await outside.send(None, 2, {"n": "after"})
                if step.number == 3 and messager is east:
                    await east.move_agents([2], to="group0")

    async with asyncio.timeout(60):
        await asyncio.gather(run(west), run(east))
    assert heard[2] == [1, "before", "after", 2, 3, 6]


async def test_impossible_moves_in_steps(opened, messagers):
    west, east = await opened(count=2)
    for ids, to, error, match in [
        ([1], "group1", UnknownName, "hosts no agent 1"),
        ([0], "south", UnknownName, "no group 'south'"),
        ([0], "group0", AlreadyExists, "in group 'group0' already"),
    ]:
        with pytest.raises(error, match=match):
            await west.move_agents(ids, to=to)
    await asyncio.gather(live(west, until=1), live(east, until=1))
    late = await messagers(name="late", host=[1000])
    with pytest.raises(MoveFailed, match="takes part only from step 2 on"):
        await west.move_agents([0], to="late", timeout=0.1)
    await leave_steps(east)
    with pytest.raises(MoveFailed, match="is leaving the steps"):
        await late.move_agents([1000], to="group1")


async def test_agents_that_were_removed_are_in_no_later_step(opened):
    west, east = await opened(count=2)

    async def hook(step):
        if step.number == 2:
            await west.remove_agents([0, 2])

    async with asyncio.timeout(60):
        left, _ = await asyncio.gather(live(west, hook=hook), live(east))
    assert [*left] == [*range(4, AGENTS, 2)]


@pytest.mark.parametrize("ruled", [False, True])
async def test_broadcasts_reach_hearers_that_have_moved_since(server, exp_id, tmp_path, ruled):
    pairs = [(a, b) for a in range(AGENTS) for b in range(AGENTS) if (a * 7 + b) % 5 == 0 and a != b]
    barred = {pair for pair in pairs if sum(pair) % 3 == 0} if ruled else set()
    async with LoggedGroups(server, exp_id, tmp_path) as society:
        await begin_steps(society, groups=GROUPS, digest=True)
        await befriend(society, "friends", pairs)
        groups = await society.groups(GROUPS, society.judge(rules.BlackList(pairs=sorted(barred))) if ruled else None)
        await hears_its_friends(*groups, pairs, barred)


async def hears_its_friends(first, second, third, pairs, barred):
    """Fail unless all agents hear all broadcasts of their friends, but for pairs that are barred."""
    heard, read = {}, {}

    async def speak(messager):
        async with aclosing(messager.steps(until=STEPS)) as steps:
            async for step in steps:
                for agent, count in zip(step.agents, step.heard("friends").count().tolist(), strict=True):
                    heard[step.number, agent] = count
                    read[step.number, agent] = [message.from_id for message in step.inbox(agent)]
                step.broadcast_columns(np.array(step.agents), "friends", {"n": step.number})
                step.broadcast_columns(np.array(step.agents), "friends", {"n": step.number}, deliver_at=step.number + 3)
                if messager is first and step.number in (1, 2, 4):
                    await first.move_agents([step.number * 6, step.number * 6 + 3], to="group1")
                if messager is second and step.number == 3:
                    await second.move_agents([1, 6], to="group2")

    async with asyncio.timeout(60):
        await asyncio.gather(*map(speak, (first, second, third)))
    for (step, agent), count in heard.items():
        friends = sorted(a for a, b in pairs if b == agent and (a, b) not in barred)
        times = (step >= 1) + (step >= 3)
        assert count == len(friends) * times
        assert read[step, agent] == sorted(friends * int(step >= 3)) + friends * int(step >= 1)
    assert len(heard) == AGENTS * STEPS


async def test_a_broadcast_on_a_subtopic_of_few_reaches_its_hearer_after_two_moves(opened, exp_id):
    first, second, third = await opened()
    await first.subscribe_and_start_listening([f"exps:{exp_id}:agents:0:gossip"])
    heard = []

    async def run(messager):
        async with aclosing(messager.steps(until=4)) as steps:
            async for step in steps:
                heard.extend((step.number, m.to_id, m.payload["n"]) for m in step.messages)
                if step.number == 0 and messager is second:
                    step.broadcast(1, "*", {"n": 5}, subtopic="gossip", deliver_at=3)
                if step.number == 1 and messager is first:
                    await first.move_agents([0], to="group1")
                if step.number == 2 and messager is first:
                    await first.move_agents([3], to="group2")  # it looks into the box of group0, and does not hear this

    async with asyncio.timeout(60):
        await asyncio.gather(*map(run, (first, second, third)))
    assert heard == [(3, 0, 5)]


async def test_until_a_move_counts_an_agent_listens_as_before(opened, exp_id):
    first, second, third = await opened(wait_for="senders")
    await declare(first, {"group0": ["group1"], "group1": [], "group2": []})
    await first.subscribe_and_start_listening([f"exps:{exp_id}:agents:0:gossip"])
    loops = [aclosing(group.steps(until=STEPS)) for group in (first, second, third)]
    async with asyncio.timeout(60), loops[0] as mine, loops[1] as theirs, loops[2] as ahead:
        while (await anext(ahead)).number < 3:
            pass
        await anext(mine)
        await first.move_agents([3], to="group1")  # from step 4 on
        step = await anext(theirs)
        for agent in (0, 3):
            step.send(1, agent, {"n": agent}, subtopic="gossip")
        await anext(theirs)
        assert [message.to_id for message in (await anext(mine)).messages] == [0]
    assert (await fates_in(await steps_of(first), 0))["group1"] == {"delivered": 1, "undeliverable": 1}


async def test_everybody_is_who_reads_the_step_where_groups_run_apart(messagers):
    store = await begin_steps(await messagers(name="setup"), groups=3, wait_for="senders")
    speaker, hearer = await messagers(name="speaker", host=[0]), await messagers(name="hearer", host=[1, 2])
    ahead = await messagers(name="ahead")
    await ahead.host_agents([9], ["other"])
    await declare(speaker, {"speaker": ["speaker"], "hearer": ["speaker"], "ahead": ["ahead"]})
    gone = asyncio.Event()

    async def run_ahead():
        async for step in ahead.steps(until=6):
            if step.number == 3:
                await hearer.remove_agents([2])  # with step 4, which nobody has opened
                gone.set()

    async def speak():
        await gone.wait()
        async for step in speaker.steps(until=6):
            step.broadcast(0, EVERYBODY, {})

    async def hear():
        await gone.wait()
        return [[*step.messages.to_ids] async for step in hearer.steps(until=6)]

    async with asyncio.timeout(60):
        heard = (await asyncio.gather(hear(), speak(), run_ahead()))[0]
    assert heard == [[], [1, 2], [1, 2], [1, 2], [1], [1]]
    assert [(await fates_in(store, number))["speaker"] for number in range(6)] == [{"delivered": 2}] * 3 + [
        {"delivered": 1}
    ] * 3
