"""Steps with very many messages to one group: they arrive whole, or are refused at once."""

import asyncio
import time
from contextlib import aclosing

import numpy as np
import pytest
from support.patience import AT_ONCE_S

from ray_messaging import Messager, StepTooLarge
from ray_messaging.transports.steps.values import StepSettings

SENDERS, EACH = 4, 100  # groups that send, and agents of each group


@pytest.fixture
async def groups(server, exp_id):
    """Open a group that hears, and some that send to it."""
    opened = []

    async def open_groups(**settings):
        for number in range(SENDERS + 1):
            opened.append(Messager(server, exp_id, name=f"group{number}"))
            await opened[-1].init()
            if not number:
                await opened[0].engine.transport.steps.begin(StepSettings(groups=SENDERS + 1, **settings))
            await opened[-1].host_agents(range(number * EACH, (number + 1) * EACH), ["agent-chat"])
        return opened

    yield open_groups
    for messager in opened:
        await messager.close()


async def live(messager, count, *, columns=True):
    """Send so many messages to the first group in step 0; return the messages of step 1."""
    number = int(messager.engine.name.removeprefix("group"))
    from_ids, to_ids = np.arange(count) % EACH + number * EACH, np.arange(count) * 7 % EACH
    read = None
    async with aclosing(messager.steps(until=2)) as steps:
        async for step in steps:
            if step.number:
                read = step.messages
            elif columns and count:
                step.send_columns(from_ids, to_ids, [{"n": n} for n in range(count)])
            else:
                for n, (from_id, to_id) in enumerate(zip(from_ids.tolist(), to_ids.tolist(), strict=True)):
                    step.send(from_id, to_id, {"n": n})
    return read


async def ended(tasks):
    """Cancel tasks, and wait for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def check_whole(read, count):
    """Check that all messages of each sender are there, in canonical order."""
    assert len(read) == SENDERS * count
    keys = list(zip(read.to_ids.tolist(), read.from_ids.tolist(), strict=True))
    assert keys == sorted(keys)
    expected = [number * count + n for number in range(SENDERS) for n in range(count)]
    groups = read.from_ids // EACH - 1
    found = [int(group) * count + message.payload["n"] for group, message in zip(groups, read, strict=True)]
    assert sorted(found) == expected


@pytest.mark.parametrize(
    ("count", "columns"),
    [
        (500, True),
        pytest.param(25_000, True, marks=pytest.mark.long),
        pytest.param(25_000, False, marks=pytest.mark.long),
    ],
)
async def test_a_large_step_arrives_whole_and_in_order(groups, count, columns):
    opened = await groups()
    async with asyncio.timeout(120):
        read, *_ = await asyncio.gather(*(live(m, count if n else 0, columns=columns) for n, m in enumerate(opened)))
    check_whole(read, count)


@pytest.mark.parametrize("limit", ["rows", "bytes"])
@pytest.mark.parametrize("count", [600, pytest.param(20_000, marks=pytest.mark.long)])
async def test_a_step_above_the_limit_is_refused_at_once_and_passes_with_less(groups, count, limit):
    most = 3 * count + count // 2
    opened = await groups(**{"box_rows": most} if limit == "rows" else {"box_bytes": 20 * most})
    begun = time.monotonic()
    tasks = [asyncio.create_task(live(messager, count if n else 0)) for n, messager in enumerate(opened)]
    async with asyncio.timeout(AT_ONCE_S):
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    assert time.monotonic() - begun < AT_ONCE_S
    errors = [task.exception() for task in done if task.exception() is not None]
    assert all(type(error) is StepTooLarge for error in errors)
    assert (errors[0].limit_rows == most) is (limit == "rows")
    assert errors[0].rows <= errors[0].limit_rows
    assert errors[0].nbytes <= errors[0].limit_bytes
    await ended(tasks)
    # What the refused attempts had sent counts nowhere: there is room for a smaller step.
    async with asyncio.timeout(120):
        read, *_ = await asyncio.gather(*(live(m, count // 20 if n else 0) for n, m in enumerate(opened)))
    assert len(read) >= SENDERS * (count // 20)
