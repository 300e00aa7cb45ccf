"""The loop of a task that drives a group which another process hosts."""

import asyncio
from contextlib import aclosing

import pytest
from support.patience import WAIT_S
from support.step_faults import commit_in_parts
from support.stepped import begin_steps

from ray_messaging.errors import Fenced
from ray_messaging.steps import step_loop
from ray_messaging.transports import box_reader


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


async def driven(messagers):
    """Open a group of two agents, alone in its steps; return its messager and its store."""
    host = await messagers(name="all")
    store = await begin_steps(host)
    await host.host_agents([1, 2], ["agent-chat"])
    return host, store


async def test_a_loop_that_stands_keeps_its_driver_until_it_is_closed(messagers):
    host, store = await driven(messagers)
    loop = step_loop.step_loop(host.engine)
    seen, attempts = [], set()
    async with aclosing(loop.standing(2)) as steps:
        for until in (2, 3, 3, 5):
            loop.until = until
            async for step in steps:
                if step is None:
                    break
                seen.append((step.number, [message.payload for _, inbox in step.by_agent() for message in inbox]))
                step.send(1, 2, {"n": step.number})
            progress = await store.progress()
            assert (progress.sealed, progress.resting) == (until - 1, True)
            assert loop.sealed == progress.sealed  # known from the commit, without a question
            attempts.add((await store.closed_step(until - 1))["all"].attempt)
        assert (await store.progress()).groups["all"].driver is not None
    assert (await store.progress()).groups["all"].driver is None
    assert len(attempts) == 1
    assert seen == [(0, []), *((number, [{"n": number - 1}]) for number in range(1, 5))]


@pytest.mark.parametrize("is_told", [True, False])
async def test_a_loop_that_stands_begins_a_step_by_whatever_opens_it_first(messagers, monkeypatch, is_told):
    host, store = await driven(messagers)
    loop, seen = step_loop.step_loop(host.engine), []
    loop.is_told = True

    async def unanswered(*_question):
        await asyncio.Event().wait()

    async with aclosing(loop.standing(1)) as steps:
        for until in range(1, 5):
            loop.until = until
            if until > 1 and is_told:
                monkeypatch.setattr(store, "open", unanswered)
                await store.go_on(until - 1, until - 1, ["all"], 0.0)
            async for step in steps:
                if step is None:
                    break
                seen.append([message.payload["n"] for message in step.messages])
                step.send(1, 2, {"n": step.number})
    assert seen == [[], [0], [1], [2]]


async def test_a_loop_does_not_begin_a_step_that_was_opened_for_an_earlier_driver(messagers, monkeypatch):
    monkeypatch.setattr(box_reader, "_TOLD_S", WAIT_S)  # news that have come go before a question
    host, store = await driven(messagers)
    for until in (1, 2):
        loop = step_loop.step_loop(host.engine)
        loop.is_told = True
        async with aclosing(loop.standing(1)) as steps:
            while await anext(steps) is not None:
                pass
            if until == 1:  # the driver dies before it begins the step
                await store.go_on(1, 1, ["all"], 0.0)
                continue
            loop.until = 2
            assert (await anext(steps)).number == 1
            assert await anext(steps) is None
    assert (await store.progress()).sealed == 1


async def test_a_loop_that_asks_for_steps_after_one_that_was_opened_for_it_takes_that_for_no_loss(messagers, caplog):
    host, store = await driven(messagers)
    loop = step_loop.step_loop(host.engine)
    loop.is_told = True
    async with aclosing(loop.standing(1)) as steps:
        for until in range(1, 6):
            loop.until = until
            if until == 2:
                await store.go_on(1, 1, ["all"], 0.0)
            while await anext(steps) is not None:
                pass
    assert (await store.progress()).sealed == 4
    assert caplog.messages == []


@pytest.mark.parametrize("in_parts", [False, True])
async def test_a_group_that_writes_only_to_itself_reads_no_box(messagers, monkeypatch, in_parts):
    host, store = await driven(messagers)
    if in_parts:
        commit_in_parts(monkeypatch)
    seen, read = [], set()

    def noting(call):
        def noted(box, *args):
            read.add(box)
            return call(box, *args)

        return noted

    for name in ("read_box", "open_box"):
        monkeypatch.setattr(store, name, noting(getattr(store, name)))
    async for step in step_loop.step_loop(host.engine).steps(until=5):
        seen.append([message.payload["n"] for message in step.messages])
        step.send(1, 2, {"n": step.number})
        if step.number == 0:
            step.send(1, 1, {"n": 10}, deliver_at=3)
    assert seen == [[], [0], [1], [10, 2], [3]]
    assert read == {"all@0", "all@3"}  # the first box, and one that has messages of an earlier step too


async def test_a_loop_that_stands_is_fenced_by_another_driver(messagers):
    host, store = await driven(messagers)
    standing = step_loop.step_loop(host.engine)
    async with aclosing(standing.standing(1)) as steps:
        assert [step.number if step else None for step in [await anext(steps), await anext(steps)]] == [0, None]
        async for step in step_loop.step_loop(host.engine).steps(until=2):
            assert step.number == 1
        standing.until = 3
        with pytest.raises(Fenced):
            await anext(steps)
    assert (await store.progress()).sealed == 1


async def test_a_loop_that_stood_goes_on_after_the_group_is_asked_to_end_early(messagers):
    host, _ = await driven(messagers)
    loop = step_loop.step_loop(host.engine)
    async with aclosing(loop.standing(9)) as steps:
        assert (await anext(steps)).number == 0
        loop.until = 1
        assert await anext(steps) is None
        loop.until = 3
        assert [step and step.number for step in [await anext(steps) for _ in range(3)]] == [1, 2, None]
