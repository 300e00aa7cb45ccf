"""Bad input in steps: each is a typed error that says what to do, and nothing of the step is lost."""

import asyncio
import math
import pickle
from functools import partial

import numpy as np
import pytest
from support.stepped import begin_steps
from support.steps_on_the_server import resume, steps_driven_by

from ray_messaging import Outgoing, Steps
from ray_messaging.errors import (
    AlreadyExists,
    Closed,
    ConfigError,
    Fenced,
    InvalidAddress,
    InvalidColumns,
    InvalidPayload,
    PayloadTooLarge,
    StepAborted,
    UnknownName,
    UnknownSender,
)

AGENTS = [1, 2, "ann"]


@pytest.fixture
async def group(messagers):
    messager = await messagers(name="all", state_bytes=1000, payload_bytes=1000)
    await begin_steps(messager, seed=7)
    await messager.host_agents(AGENTS, ["agent-chat"])
    return messager


def heard(step):
    return [(message.from_id, message.to_id, message.payload["n"]) for message in step.messages]


LOOP = {}
LOOP["me"] = LOOP
BAD_SENDS = [
    ((3, 1, {}), UnknownSender, "3 is not an agent of this group"),
    (("bob", 1, {}), UnknownSender, "'bob' is not an agent of this group"),
    ((1.5, 1, {}), InvalidAddress, "1.5"),
    ((None, 1, {}), InvalidAddress, "None"),
    ((True, 1, {}), InvalidAddress, "True"),
    ((1, 2.5, {}), InvalidAddress, "2.5"),
    ((1, None, {}), InvalidAddress, "None"),
    ((1, b"ann", {}), InvalidAddress, "ann"),
    ((1, 2**70, {}), InvalidAddress, str(2**70)),
    ((1, 2, "text"), InvalidPayload, "must be a dict"),
    ((1, 2, {"object": object()}), InvalidPayload, "cannot become JSON"),
    ((1, 2, LOOP), InvalidPayload, "cannot become JSON"),
    ((1, 2, {"mood": math.nan}), InvalidPayload, r'"mood". is nan'),
    ((1, 2, {"text": "x" * 1000}), PayloadTooLarge, "the limit is 1,000"),
]
BAD_COLUMNS = [
    (([1, 3], [1, 1], {}), UnknownSender, "3 is not an agent of this group"),
    ((None, [1, 1], {}), UnknownSender, "None is not an agent"),
    (([1, 1.5], [1, 1], {}), InvalidAddress, "1.5"),
    (([1, 1], [1, None], {}), InvalidAddress, "None"),
    ((np.array([1.0, 1.0]), [1, 1], {}), InvalidAddress, r"1\.0"),
    (([1, 1], [2], {}), InvalidColumns, "2 from_ids, 1 to_ids"),
    (([1, 1], [2, 2], [{}]), InvalidColumns, "1 payloads"),
    (([1, 1], [2, 2], "ab"), InvalidColumns, "list of dicts"),
    (([1, 1], [2, 2], [{}, {"object": object()}]), InvalidPayload, "row 1"),
    (([1, 1], [2, 2], [{}, {"text": "x" * 1000}]), PayloadTooLarge, "row 1"),
]


async def test_a_send_that_is_refused_leaves_those_before_and_after_it(group):
    async for step in group.steps(until=2):
        if step.number == 1:
            assert heard(step) == [(1, 2, n) for n in range(len(BAD_SENDS) + len(BAD_COLUMNS))]
            assert [message.id for message in step.messages] == [f"0-{n}-1" for n in range(len(step.messages))]
            assert {message.subtopic for message in step.messages} == {"agent-chat"}
            return
        for n, (arguments, error, text) in enumerate(BAD_SENDS):
            with pytest.raises(error, match=text):
                step.send(*arguments, subtopic="user-chat")
            step.send(1, 2, {"n": n})
        for n, (arguments, error, text) in enumerate(BAD_COLUMNS, len(BAD_SENDS)):
            with pytest.raises(error, match=text):
                step.send_columns(*arguments)
            step.send_columns([1], [2], [{"n": n}])


async def test_a_payload_with_nan_is_refused_also_after_an_equal_one_with_none(group):
    async for step in group.steps(until=1):
        for payload in ({"mood": None}, {"mood": "null"}, {"mood": None}):
            step.send(1, 2, payload)
            with pytest.raises(InvalidPayload, match="mood"):
                step.send(1, 2, {"mood": math.nan})


@pytest.mark.parametrize("deliver_at", [1, 0, -1, 66, 2.0, "3", True])
async def test_a_message_is_read_in_a_later_step_within_the_horizon(group, deliver_at):
    async for step in group.steps(until=2):
        if step.number == 1:
            for call in (partial(step.send, 1, 2, {}), partial(step.send_columns, [1], [2], {})):
                with pytest.raises(ConfigError, match="a later step, an int from 2 to 65, at most 64 steps ahead"):
                    call(deliver_at=deliver_at)


@pytest.mark.parametrize("subtopic", ["", "a:b", "*", 3])
async def test_a_subtopic_that_cannot_be(group, subtopic):
    async for step in group.steps(until=1):
        with pytest.raises(InvalidAddress):
            step.send(1, 2, {}, subtopic=subtopic)
        with pytest.raises(InvalidAddress):
            step.send_columns([1], [2], {}, subtopic=subtopic)


async def test_a_state_that_is_refused_leaves_the_one_before(group):
    async for step in group.steps(until=2):
        if step.number == 1:
            assert step.state == b"kept"
            return
        step.state = b"kept"
        with pytest.raises(PayloadTooLarge, match=r"1,001 bytes, the limit is 1,000: .*state_bytes"):
            step.state = b"x" * 1001
        with pytest.raises(InvalidPayload, match=r"step\.state"):
            step.state = {"a": "dict"}


async def test_agents_and_numbers_that_are_none(group):
    async for step in group.steps(until=1):
        with pytest.raises(UnknownName, match="agent 3 is not one of the 3 agents"):
            step.inbox(3)
        with pytest.raises(InvalidAddress):
            step.inbox(None)
        with pytest.raises(InvalidAddress):
            step.rng(1.5)
        for k in (-1, 1.5, "2", True):
            with pytest.raises(ConfigError, match="how many numbers"):
                step.uniform(k)


async def first_of(group):
    return await anext(aiter(group))


async def test_a_group_in_steps_sends_and_receives_in_its_steps_only(group):
    channel = group.get_agent_chat_channel(2)
    calls = [
        partial(group.send_message, channel, {}, 1),
        partial(group.send_messages, [Outgoing.to_agent(2, {}, 1)]),
        partial(group.send_columns, [1], [2], {}),
        partial(group.fetch_messages),
        partial(group.fetch_messages, timeout=0.1, commit="acked"),
        partial(group.ack),
        partial(first_of, group),
        partial(group.transaction().__aenter__),
    ]
    async for step in group.steps(until=2):
        assert heard(step) == [(1, 2, 0)] * step.number
        for call in calls:
            with pytest.raises(ConfigError, match="in its steps"):
                await call()
        with pytest.raises(ConfigError, match="loop"):
            group.step = 4
        step.send(1, 2, {"n": 0})


async def test_a_step_that_is_over_takes_nothing(group):
    steps = [step async for step in group.steps(until=2)]
    for step in steps:
        for call in (partial(step.send, 1, 2, {}), partial(step.send_columns, [1], [2], {})):
            with pytest.raises(Closed, match=f"step {step.number} is over: send, and set the state, in the step that"):
                call()
        with pytest.raises(Closed, match="is over"):
            step.state = b"late"


async def test_another_thread_cannot_send_in_the_step(group):
    async for step in group.steps(until=2):
        assert heard(step) == [(1, 2, 0), (2, 2, 0)] * step.number
        step.send(1, 2, {"n": 0})
        for call in (partial(step.send, 2, 2, {}), partial(step.send_columns, [1], [2], {})):
            with pytest.raises(ConfigError, match=r"another thread, but can send from one thread .* over more groups"):
                await asyncio.to_thread(call)
        step.send(2, 2, {"n": 0})


async def test_a_step_cannot_go_to_another_task(group):
    async for step in group.steps(until=1):
        with pytest.raises(ConfigError, match=r"because only the process that drives the group .* over more groups"):
            pickle.dumps(step)


@pytest.fixture
async def drive(group, messagers):
    """Return a function that begins to drive the group, as a process of a task."""
    begun = []

    async def begin(task):
        begun.append(await steps_driven_by(await messagers(name="all"), task, until=5))
        return begun[-1]

    yield begin
    for steps in begun:
        await steps.aclose()


async def test_a_second_driver_gets_the_group_of_one_that_has_ended(drive):
    first, second = await drive("first"), await drive("second")
    await anext(first)
    waiting = asyncio.create_task(anext(second))
    await asyncio.sleep(0)
    assert not waiting.done()
    await first.aclose()
    assert (await waiting).number == 0


async def test_agents_that_the_host_gets_come_with_the_drivers_next_step(group, drive):
    steps = await drive("task")
    assert [*(await anext(steps)).agents] == AGENTS
    await group.host_agents([3, 5], ["agent-chat"])
    assert [*(await anext(steps)).agents] == [1, 2, 3, 5, "ann"]


async def test_a_group_has_one_driver(drive):
    steps = await drive("task 1")
    await anext(steps)
    refused = asyncio.create_task(anext(await drive("task 2")))
    while not refused.done():  # the second driver looks for signs of life
        step = await anext(steps)
        step.state = b"kept"
        await asyncio.wait([refused], timeout=1)
    with pytest.raises(AlreadyExists, match=r"already has a driver, 'task 1'.*end that task") as caught:
        await refused
    assert (caught.value.kind, caught.value.value, caught.value.owner) == ("driver", "all", "task 1")
    again = await drive("task 1")  # as Ray runs a task again
    assert (await anext(again)).number == step.number
    with pytest.raises(Fenced, match="another task or process has taken them over"):
        await anext(steps)


@pytest.mark.parametrize("processes", [1, 2])
async def test_of_two_loops_the_later_one_has_the_group(group, messagers, processes):
    steps = group.steps(until=3)
    (await anext(steps)).send(1, 2, {"n": "never"})
    successor = group if processes == 1 else await messagers(name="all", host=AGENTS)
    async for step in successor.steps(until=3):
        assert heard(step) == [(1, 2, 1)] * (step.number == 1)
        if not step.number:
            with pytest.raises(StepAborted, match="taken over by another task"):
                await anext(steps)
            if successor is not group:
                with pytest.raises(Fenced, match="end this"):
                    await anext(group.steps(until=3))
            step.send(1, 2, {"n": 1})


@pytest.mark.parametrize("other", [Steps(seed=8), Steps(seed=7, digest=True), Steps(seed=7, groups=2), None])
async def test_a_resume_with_other_steps_names_the_difference(group, other):
    await resume(group, Steps(seed=7))
    with pytest.raises(
        ConfigError, match=r"began with Steps\(seed=7, .* and this start has (Steps|no steps)"
    ) as caught:
        await resume(group, other)
    assert "on_existing='reset'" in str(caught.value)
    await resume(group, Steps(seed=7))
