"""The calls of a group's handle for async code: `group.aio`."""

import asyncio
import gc
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from support.cluster import drain, kill_and_wait, new_handle, numbered, numbers
from support.patience import WAIT_S

from ray_messaging import Messaging
from ray_messaging.cluster.handles.group.waiting import InLoop
from ray_messaging.errors import ConfigError, NoQuestion, UnknownSender


class CountedCalls:
    """An actor's handle that notes the methods which are called by Ray."""

    def __init__(self, actor):
        self._actor, self.called = actor, []

    def __getattr__(self, name):
        self.called.append(name)
        return getattr(self._actor, name)


async def test_hundreds_of_sends_at_once_go_over_the_lane(pair, monkeypatch):
    monkeypatch.setattr("ray_messaging.cluster.handles.group.group_lane._SENDS", 100)  # the others wait for their turn
    west, east = pair
    aio = new_handle(west).aio
    assert await aio.send(west.agents[0], east.agents[0], {"n": 0})
    aio.actor, before = CountedCalls(aio.actor), threading.active_count()
    sends = [asyncio.create_task(aio.send(west.agents[0], east.agents[0], {"n": n})) for n in range(1, 400)]
    await asyncio.sleep(0)
    assert threading.active_count() == before
    async with asyncio.timeout(WAIT_S):
        assert all(await asyncio.gather(*sends))
    assert not [name for name in aio.actor.called if name.startswith("relay")]
    assert numbers(await asyncio.to_thread(drain, east, 400)) == list(range(400))


async def test_a_block_commits_what_was_fetched_and_an_error_returns_it(pair):
    west, _ = pair
    sender, receiver = west.agents[:2]
    await west.aio.send_columns([sender] * 3, receiver, numbered(3))
    with pytest.raises(KeyError):
        async with await west.aio.fetch_messages(timeout=WAIT_S) as messages:
            raise KeyError(len(messages))
    async with await west.aio.fetch_messages(timeout=WAIT_S) as messages:
        assert numbers(messages) == [0, 1, 2]
    assert not await west.aio.fetch_messages()
    assert (await west.aio.stats())["lent"] == 0


async def test_each_door_refuses_the_block_of_the_other(pair):
    west, _ = pair
    with pytest.raises(ConfigError, match="async with"), await west.aio.fetch_messages():
        pass
    with pytest.raises(ConfigError, match="need `with`"):
        async with west.fetch_messages():
            pass


async def test_agents_ask_and_answer_in_one_loop(pair):
    west, east = pair
    asker, asked = west.agents[0], east.agents[0]

    async def answer(count):
        while count:
            async with await east.aio.fetch_messages(timeout=WAIT_S) as questions:
                await east.aio.reply_columns(questions, [{"twice": 2 * each.payload["n"]} for each in questions])
                count -= len(questions)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(answer(21))
        answers = await west.aio.ask_columns(asker, asked, numbered(20), timeout=WAIT_S)
        lone = tasks.create_task(west.aio.ask(asker, asked, {"n": 20}, timeout=WAIT_S))
        found = [answer.payload["twice"] async for answer in answers]
    assert sorted(found) == list(range(0, 40, 2))
    assert lone.result().payload == {"twice": 40}
    await west.aio.send(asker, asked, {})
    async with await east.aio.fetch_messages(timeout=WAIT_S) as messages:
        with pytest.raises(NoQuestion):
            await east.aio.reply(messages[0], {})


async def test_errors_are_those_of_the_blocking_calls(pair):
    west, _ = pair
    with pytest.raises(UnknownSender, match="-77"):
        await west.aio.send(-77, west.agents[0], {})
    west.step = 7
    assert (west.aio.step, pickle.loads(pickle.dumps(west.aio)).step) == (7, 7)


def test_a_handle_serves_one_event_loop_after_the_other(pair):
    west, _ = pair
    sender, receiver = west.agents[:2]
    for n in range(2):
        assert asyncio.run(west.aio.send(sender, receiver, {"n": n}))
    assert numbers(drain(west, 2)) == [0, 1]


def in_threads(*coroutines):
    """Run each in an event loop of a thread of its own; return what came of them."""
    with ThreadPoolExecutor(len(coroutines)) as threads:
        ended = [threads.submit(asyncio.run, asyncio.wait_for(each, 3 * WAIT_S)) for each in coroutines]
        return [each.exception() or each.result() for each in ended]


def test_event_loops_send_by_one_handle_at_once(pair):
    west, east = pair
    senders, receiver = west.agents[:2], east.agents[0]
    together = threading.Barrier(2)

    async def send(sender):
        together.wait(WAIT_S)
        return [bool(await west.aio.send(sender, receiver, {"n": n})) for n in range(100)]

    assert in_threads(*map(send, senders)) == [[True] * 100] * 2
    found = drain(east, 200)
    for sender in senders:
        assert [each.payload["n"] for each in found if each.from_id == sender] == list(range(100))


@pytest.mark.parametrize("call", ["fetch_messages", "ack"])
def test_of_two_event_loops_that_receive_at_once_the_later_one_gets_an_error(pair, call):
    _, east = pair
    waits = threading.Event()

    async def first():
        fetching = asyncio.create_task(east.aio.fetch_messages(timeout=WAIT_S))
        await asyncio.sleep(0)
        waits.set()
        return numbers(await fetching)

    async def second():
        await asyncio.to_thread(waits.wait, WAIT_S)
        try:
            await getattr(east.aio, call)()
        finally:
            assert await east.aio.send(east.agents[0], east.agents[1], {"n": 7})

    found, error = in_threads(first(), second())
    assert found == [7]
    assert isinstance(error, ConfigError), error
    assert "another handle in each event loop: Messaging.connect(exp_id).group(name).aio" in str(error)
    asyncio.run(east.aio.ack())
    exp_id = east._experiment.exp_id
    one, other = (Messaging.connect(exp_id).group(east.name).aio for _ in range(2))
    assert one is not other


def test_a_call_that_its_event_loop_left_behind_keeps_nobody_from_the_lock():
    lock = InLoop().lock()

    async def hold():
        async with lock.held():
            await asyncio.sleep(WAIT_S)

    def leave_behind():
        loop = asyncio.new_event_loop()
        task = loop.create_task(hold())
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        task._log_destroy_pending = False
        return task

    left = [leave_behind()]

    async def hold_too():
        async with lock.held():
            left.clear()
            gc.collect()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05), lock.held():
                    pass

    asyncio.run(hold_too())


async def test_fetches_that_are_cut_all_the_time_keep_the_order(pair):
    west, east = pair
    aio, count, found = new_handle(east).aio, 60, []

    async def send():
        for n in range(0, count, 5):
            await west.aio.send_columns([west.agents[0]] * 5, east.agents[0], numbered(5, n))
            await asyncio.sleep(0.03)

    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(send())
        while len(found) < count:
            with suppress(TimeoutError):
                found += numbers(await asyncio.wait_for(aio.fetch_messages(timeout=1), 0.02))
    await aio.ack()
    assert found == list(range(count))


@pytest.mark.parametrize("waited_s", [0.1, 0.8])  # over the lane, and by a Ray call
@pytest.mark.parametrize("commit", ["next", "acked"])
async def test_a_cancelled_fetch_takes_nothing_from_the_next_one(pair, waited_s, commit):
    west, east = pair
    fetching = asyncio.create_task(new_handle(east).aio.fetch_messages(timeout=None, commit=commit))
    await asyncio.sleep(waited_s)
    fetching.cancel()
    await asyncio.gather(fetching, return_exceptions=True)
    for n in range(2):
        assert await west.aio.send(west.agents[0], east.agents[0], {"n": n})
    assert numbers(await asyncio.to_thread(drain, east, 2)) == [0, 1]


@pytest.mark.long
async def test_a_handle_waits_for_its_actor_to_start_again(pair):
    west, _ = pair
    sender, receiver = west.agents[:2]
    assert await west.aio.send(sender, receiver, {"n": 0})
    await asyncio.to_thread(kill_and_wait, west.actor)  # meanwhile the loop sees the end of the connection
    assert await west.aio.send(sender, receiver, {"n": 1})
    async with await west.aio.fetch_messages(timeout=WAIT_S) as messages:
        assert numbers(messages) == [0, 1]
