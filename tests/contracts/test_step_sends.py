"""Sends of steps and others: each goes to its own destination, and a step that cannot be sent is aborted soon."""

import asyncio
from contextlib import aclosing

import pytest
from support.audience_society import AGENTS, LOST, Society
from support.contracts import WAIT_S, fetch_all
from support.delegation import Actor, InterceptorEpoch, delegate_at_once
from support.interceptors import Held, interceptor_with
from support.judged_steps import Seen
from support.step_faults import commit_in_parts, without_verdicts
from support.step_society import LoggedGroups
from support.stepped import begin_steps

from ray_messaging import rules
from ray_messaging.errors import StepAborted


@pytest.fixture
async def groups(server, exp_id, tmp_path):
    async with LoggedGroups(server, exp_id, tmp_path / "log") as found:
        yield found


@pytest.fixture
async def actor(server, exp_id):
    epoch = InterceptorEpoch(server, exp_id)
    made = await Actor(epoch, exp_id).begin(rules.BlackList([(-1, None)]))
    yield made
    await made.close()
    await epoch.close()


async def drive(messager, until, act=lambda step: None):
    """Drive a group; return the payloads' `n` that it reads in its last step, with the labels."""
    async with aclosing(messager.steps(until=until)) as steps:
        async for step in steps:
            act(step)
            found = [(message.payload["n"], message.labels) for message in step.messages]
    return found


async def test_messages_accepted_before_the_agents_are_hosted_go_where_they_would_have_gone(messagers):
    slow = Held("slow", at_once=lambda message: None if message.payload.get("slow") else rules.ALLOW)
    west, listener = await messagers(interceptor_with(slow), name="west"), await messagers()
    await begin_steps(west)
    await listener.subscribe_and_start_listening(["news", *map(west.get_agent_chat_channel, (50, 51))])
    sends = [
        asyncio.ensure_future(west.send_message("news", {"n": 0, "slow": True})),
        asyncio.ensure_future(west.send(1, 50, {"n": 1, "slow": True})),
    ]
    asked = asyncio.ensure_future(west.ask(1, 51, {"n": 2, "slow": True}, timeout=WAIT_S))
    await slow.called(3)
    await west.host_agents([1, 2], ["agent-chat"])
    read = []

    def act(step):
        read.extend(message.payload["n"] for message in step.messages)
        step.send(1, 2, {"n": 10 + step.number})
        if step.number == 1:
            slow.release()

    async def answer():
        found = {message.payload["n"]: message for message in await fetch_all(listener, 3)}
        await listener.reply(found[2], {"n": 3})
        return sorted(found)

    async with asyncio.timeout(WAIT_S):
        _, heard = await asyncio.gather(drive(west, 4, act), answer())
        receipts = [await sent for sent in sends[:2]]
        assert (await asked).payload == {"n": 3}
    assert heard == [0, 1, 2]
    assert [receipt.fate for receipt in receipts] == ["delivered"] * 2
    assert read == [10, 11, 12]


@pytest.mark.parametrize("in_parts", [False, True], ids=["whole", "in parts"])
async def test_rules_that_change_between_steps_leave_the_lanes_open(actor, groups, monkeypatch, in_parts):
    delegate_at_once(monkeypatch)
    if in_parts:
        commit_in_parts(monkeypatch)
    await begin_steps(groups, groups=3)
    found = await groups.groups(3, actor, agents=range(9))
    changed, opened = asyncio.Event(), []

    async def live(messager):
        async with aclosing(messager.steps(until=12)) as steps:
            async for step in steps:
                first = next(iter(step.places.agents))
                step.send(first, (first + 1) % 9, {"n": step.number})
                if step.number == 8 and not changed.is_set():
                    changed.set()
                    opened.append(len(actor.lane.calls))
                    await actor.interceptor.change(lambda: actor.interceptor.black_list.add((0, None)))

    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*map(live, found))
    assert len(actor.lane.calls) == opened[0]
    assert actor.interceptor.blocked > 0


@pytest.mark.parametrize("call", ["judge", "pass_whole"])
async def test_a_broadcast_without_verdict_aborts_the_step(server, exp_id, tmp_path, call):
    async with Society(server, exp_id, tmp_path / "log") as society:
        await society.begin({"seed": 1, "groups": 2})
        hosted = [*range(1, AGENTS - LOST)]
        await society.gather("all", hosted)
        messager = society.messagers[0]

        def act(step):
            without_verdicts(messager, call)
            step.broadcast(next(agent for agent in hosted if agent in step.places.agents), "all", {"n": 1})

        async with asyncio.timeout(WAIT_S):
            with pytest.raises(StepAborted, match="gave no verdict"):
                await drive(messager, 2, act)


async def test_what_rules_add_to_a_box_that_is_nearly_full_ends_the_step(groups):
    await begin_steps(groups, groups=2, box_rows=10)
    interceptor = groups.judge(Seen())
    supervisor = await groups.supervise(interceptor)
    west, east = await groups.groups(2, interceptor, agents=range(4))

    def act(step):
        if step.number == 0:
            for n in range(8):
                step.send(0, 1, {"n": n})

    async with asyncio.timeout(WAIT_S):
        _, read = await asyncio.gather(drive(west, 2, act), drive(east, 2))
    assert read == [(n, ("seen 8",)) for n in range(8)]
    assert supervisor.error == ""


@pytest.mark.parametrize("in_parts", [False, True], ids=["whole", "in parts"])
async def test_an_interceptor_that_stands_still_aborts_the_step_once_its_time_is_over(
    actor, messagers, in_parts, monkeypatch
):
    if in_parts:
        commit_in_parts(monkeypatch)
    setup = await messagers(name="setup")
    await begin_steps(setup)
    west = await messagers(actor, name="west", host=[1, 2], interceptor_timeout_s=0.2)
    asked = []

    def act(step):
        step.send(1, 2, {"n": step.number})
        if step.number == 1:
            actor.silent = True
            asked.append(actor.asked)

    async with asyncio.timeout(WAIT_S):
        with pytest.raises(StepAborted, match=r"within 0\.2 s"):
            await drive(west, 3, act)
    assert actor.asked == asked[0] + 1
