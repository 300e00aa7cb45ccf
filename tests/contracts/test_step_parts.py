"""Parts of a step: other tasks run them, and the result is that of the whole."""

import asyncio
import pickle
import random
from contextlib import aclosing
from functools import partial

import pytest
from support.patience import WAIT_S
from support.step_society import AGENTS, SEED, STEPS, digests_of, listen, sequential, spread

from ray_messaging import Closed, Fenced, InvalidParts, Messager, UnknownName, UnknownSender


@pytest.fixture
async def group(stepped_groups):
    [group] = await stepped_groups(1, AGENTS, seed=SEED, digest=True)
    return group


def think(pickled, states):
    """Run a part of a step, as another process does; return its sends, and the states of its agents."""
    part, found = pickle.loads(pickled), {}
    for agent, inbox in part.by_agent():
        heard = [(message.from_id, message.payload) for message in inbox]
        found[agent] = listen(states.get(agent, "0"), heard, part.rng(agent))
        for friend, payload, later in spread(agent, found[agent], part.number):
            part.send(agent, friend, payload, deliver_at=later)
    return pickle.dumps(part if part.number % 2 else part.sends), found


@pytest.mark.parametrize("count", [1, 8, 200])
async def test_the_result_is_that_of_the_whole_for_any_number_of_parts_and_order(group, count):
    states, order = {}, random.Random(count)
    async with asyncio.timeout(60):
        async for step in group.steps(until=STEPS):
            parts = step.split(count)
            assert [agent for part in parts for agent in part.agents] == list(range(AGENTS))
            done = [think(pickle.dumps(part), states) for part in order.sample(parts, len(parts))]
            states = {agent: state for _, found in done for agent, state in found.items()}
            for part, _ in done[:2]:  # one by one, and then all others
                step.join([pickle.loads(part)])
            step.join(pickle.loads(part) for part, _ in done[2:])
    assert states == sequential()[0]
    assert await digests_of(group.engine.transport.steps) == sequential()[1]


async def test_an_agents_sends_before_in_and_after_its_part_are_in_order(group):
    async for step in group.steps(until=2):
        if step.number == 1:
            assert [message.payload["n"] for message in step.inbox(7)] == [*range(9)]
            assert [message.id for message in step.inbox(7)] == [f"0-{n}-3" for n in range(9)]
        step.send(3, 7, {"n": 0})
        for n, last in ((1, "columns"), (3, "send"), (5, "ask")):
            parts = step.split(4)
            parts[0].send(3, 7, {"n": n})
            match last:
                case "columns":
                    parts[0].send_columns([3], [7], [{"n": n + 1}])
                case "send":
                    parts[0].send(3, 7, {"n": n + 1})
                case "ask":
                    assert parts[0].ask(3, 7, {"n": n + 1}) == f"{step.number}-{n + 1}-3"
            step.join(parts)
        assert step.ask(3, 7, {"n": 7}) == f"{step.number}-7-3"
        step.send(3, 7, {"n": 8})


async def test_a_part_that_stays_here_is_over_once_its_copy_is_joined(group):
    async for step in group.steps(until=1):
        parts = step.split(2)
        parts[0].send(3, 7, {"n": 0})  # the copy has it, too
        copies = [pickle.loads(pickle.dumps(part)) for part in parts]
        parts[1].send(AGENTS - 1, 7, {"n": 1})
        pickle.dumps(parts[1])  # a later copy has it; the earlier one has not
        with pytest.raises(InvalidParts, match="part 2 of 2 of step 0 has sent 1 messages here, and a copy of it"):
            step.join(copies)
        step.join([copies[0], parts[1]])
        for part in parts:
            with pytest.raises(Closed, match="was joined"):
                part.send(part.agents[0], 7, {"n": 2})
        assert step.sends.rows == 2


async def test_a_part_has_its_own_agents_and_their_messages_and_random_numbers(group):
    async for step in group.steps(until=2):
        parts = step.split(7)
        assert [message.id for part in parts for message in part.messages] == [each.id for each in step.messages]
        assert [row.tolist() for part in parts for row in part.uniform(2)] == step.uniform(2).tolist()
        assert parts[6].rng(AGENTS - 1).random() == step.rng(AGENTS - 1).random()
        assert len(parts[6].inbox(AGENTS - 1)) == step.number
        with pytest.raises(UnknownName, match=r"agent 59 is none of the \d agents"):
            parts[0].inbox(AGENTS - 1)
        with pytest.raises(UnknownSender, match="part 1 of 7"):
            parts[0].send(AGENTS - 1, 0, {})
        for part in parts:
            for agent in part.agents:
                part.send(agent, agent, {})
        step.join(parts)


async def test_only_the_parts_send_until_all_are_joined(group):
    async for step in group.steps(until=1):
        parts = step.split(3)
        step.join(parts[:1])
        for call in (partial(step.send, 1, 2, {}), partial(step.send_columns, [1], [2], {}), partial(step.split, 2)):
            with pytest.raises(InvalidParts, match="step 0 was split, and lacks part 2 of 3, part 3 of 3"):
                call()
        step.join(parts[1:])
        step.send(1, 2, {})
        with pytest.raises(Closed, match="part 1 of 3 of step 0 was joined"):
            parts[0].send(1, 2, {})


async def test_a_part_that_is_missing_leaves_the_step_uncommitted(group):
    async with aclosing(group.steps(until=1)) as steps:
        async for step in steps:
            parts = step.split(3)
            parts[0].send(0, 1, {"never": "seen"})
            step.join(parts[:2])
            with pytest.raises(InvalidParts, match="lacks part 3 of 3") as caught:
                await anext(steps)
            assert caught.value.step == 0
    async for step in group.steps(until=2):
        assert not len(step.messages)


async def test_parts_that_do_not_belong_to_the_step_are_refused_and_nothing_is_joined(group, server, exp_id):
    before = None
    async for step in group.steps(until=2):
        parts = step.split(3)
        parts[0].send(0, 1, {"from": step.number})
        for foreign, why in (
            (before, "part 1 of 2 is of step 0: step 1 joins"),
            (step, "is of another split, or of another group"),
            (pickle.loads(pickle.dumps(parts[1])), "part 2 of 3 of step . was joined twice"),
            ({"part": 1}, "not a dict"),
        ):
            if foreign is not None:
                with pytest.raises(InvalidParts, match=why):
                    step.join([parts[1], foreign])
        with pytest.raises(InvalidParts, match="lacks part 1 of 3, part 2 of 3, part 3 of 3"):
            step.send(0, 1, {})
        step.join(parts)
        with pytest.raises(InvalidParts, match="another split"):
            step.join(parts[:1])
        with pytest.raises(InvalidParts, match="at least 1"):
            step.split(0)
        before, others = step.split(2)
        step.join([before, others])
        if step.number:
            assert [message.payload for message in step.inbox(1)] == [{"from": 0}]
    with pytest.raises(Closed, match="step 1 is over"):
        step.split(2)
    with pytest.raises(Closed, match="step 1 is over"):
        step.join([before])


async def test_parts_of_an_attempt_that_is_over_are_refused_in_the_next_one(group):
    steps = group.steps(until=1)
    step = await anext(steps)
    old = step.split(2)
    again = group.steps(until=1)
    later = await anext(again)
    later.split(2)
    with pytest.raises(InvalidParts, match="another split"):
        later.join(old)
    step.join(old)
    with pytest.raises(Fenced):
        await anext(steps)
    await again.aclose()


async def test_a_group_without_agents_has_no_parts(group, server, exp_id):
    async with Messager(server, exp_id, name="empty") as empty:
        await empty.host_agents([], ["agent-chat"])

        async def numbers(messager):
            seen = []
            async for step in messager.steps(until=1):
                step.join(step.split(8))
                seen.append(step.number)
            return seen

        async with asyncio.timeout(WAIT_S):
            assert await asyncio.gather(numbers(empty), numbers(group)) == [[0], [0]]
