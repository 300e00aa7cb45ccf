"""Large steps and slow groups: all arrives, or too much is refused at once; nobody waits for ever."""

import asyncio
import time
from contextlib import aclosing

import numpy as np
import pytest
from support.patience import AT_ONCE_S, WAIT_S
from support.stepped import begin_steps, declare

from ray_messaging.errors import StepTooLarge


@pytest.fixture
def groups(messagers):
    """Open groups of ten agents each, of which the first alone hears the others."""

    async def open_groups(count, **settings):
        setup = await messagers(name="setup")
        store = await begin_steps(setup, groups=count, **settings)
        names = [f"group{number}" for number in range(count)]
        await declare(setup, {name: names if number == 0 else [name] for number, name in enumerate(names)})
        return store, [await messagers(name=name, host=range(10 * n, 10 * n + 10)) for n, name in enumerate(names)]

    return open_groups


def sent_columns(group, count):
    """Return the columns of one group's messages to the first group, and their numbers."""
    numbers = np.arange(count)
    return 10 * group + numbers % 10, numbers * 7 % 10, numbers


@pytest.mark.parametrize("columns", [True, False], ids=["columns", "one by one"])
@pytest.mark.parametrize("count", [17_000, pytest.param(75_000, marks=pytest.mark.long)])
async def test_a_large_step_arrives_whole_and_in_order(groups, count, columns):
    _, opened = await groups(5)

    async def send(number):
        async for step in opened[number].steps(until=2):
            if step.number:
                continue
            from_ids, to_ids, numbers = sent_columns(number, count)
            if columns:
                step.send_columns(from_ids, to_ids, [{"n": n} for n in range(count)])
            else:
                for from_id, to_id, n in zip(from_ids.tolist(), to_ids.tolist(), numbers.tolist(), strict=True):
                    step.send(from_id, to_id, {"n": n})

    async def read():
        async for step in opened[0].steps(until=2):
            found = step.messages, [message.payload["n"] for _, inbox in step.by_agent() for message in inbox]
        return found

    async with asyncio.timeout(120):
        (found, by_agent), *_ = await asyncio.gather(read(), *map(send, range(1, 5)))
    from_ids, to_ids, numbers = np.hstack([sent_columns(number, count) for number in range(1, 5)])
    order = np.lexsort((numbers, from_ids, to_ids))  # canonical: by to_id, from_id, n-th send
    assert (found.to_ids.tolist(), found.from_ids.tolist()) == (to_ids[order].tolist(), from_ids[order].tolist())
    assert [payload["n"] for payload in found.payloads] == by_agent == numbers[order].tolist()


@pytest.mark.parametrize("each", [400, pytest.param(20_000, marks=pytest.mark.long)])
@pytest.mark.parametrize(("name", "per_row"), [("box_rows", 2.5), ("box_bytes", 50)], ids=["rows", "bytes"])
async def test_too_much_for_one_group_is_refused_at_once_with_the_figures(groups, name, per_row, each):
    most, refused = int(each * per_row), []
    _, opened = await groups(5, digest=True, **{name: most})

    async def send(messager, ids):
        count = each
        while True:
            try:
                async with aclosing(messager.steps(until=2)) as steps:
                    async for step in steps:
                        if step.number == 0:
                            began = time.monotonic()
                            step.send_columns([ids[0]] * count, [3] * count, [{"n": n} for n in range(count)])
            except StepTooLarge as error:
                refused.append((error, time.monotonic() - began))
                count //= 4
            else:
                return count

    async def read():
        async for step in opened[0].steps(until=2):
            found = len(step.messages)
        return found

    async with asyncio.timeout(WAIT_S):
        senders = [send(messager, range(10 * n, 10 * n + 10)) for n, messager in enumerate(opened[1:], 1)]
        found, *sent = await asyncio.gather(read(), *senders)
    assert found == sum(sent) < 4 * each
    assert refused
    for error, took in refused:
        limits = {"box_rows": error.limit_rows, "box_bytes": error.limit_bytes}
        has = {"box_rows": error.rows, "box_bytes": error.nbytes}
        assert limits[name] == most >= has[name]
        assert f"{most:,}" in str(error)
        assert took < AT_ONCE_S


@pytest.mark.parametrize(("mode", "ahead"), [("all", 1), ("senders", 8)])
async def test_a_group_that_reads_slowly_stops_the_others_at_the_barrier_and_loses_nothing(groups, mode, ahead):
    store, (slow, fast) = await groups(2, wait_for=mode)

    async def send():
        async for step in fast.steps(until=20):
            step.send_columns([10] * 500, [3] * 500, [{"step": step.number}] * 500)

    async def read():
        found = []
        async for step in slow.steps(until=20):
            found.append([payload["step"] for payload in step.messages.payloads])
            while step.number == 1 and (progress := await store.progress()).groups["group1"].closed < ahead:
                await store.wait(progress.news, 1.0)
        return found

    async with asyncio.timeout(WAIT_S):
        found, _ = await asyncio.gather(read(), send())
    assert found == [[]] + [[number] * 500 for number in range(19)]
