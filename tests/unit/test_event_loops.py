"""A messager, and the event loop in which it was opened."""

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.patience import WAIT_S

from ray_messaging import Messager
from ray_messaging.errors import Closed, ConfigError

CALLS = {
    "send_message": lambda messager: messager.send_message("news", {}, from_id=1),
    "send_columns": lambda messager: messager.send_columns([1], [1], [{}]),
    "fetch_messages": lambda messager: messager.fetch_messages(timeout=None),
    "ask": lambda messager: messager.ask(1, 1, {}),
    "init": lambda messager: messager.init(),
}


@pytest.fixture
def messager(server, exp_id):
    """Return a messager that was opened and used in an event loop that has ended."""
    messager = Messager(server, exp_id, name="west")

    async def use(messager):
        await messager.init()
        await messager.host_agents([1], ["agent-chat"])
        assert await messager.send(1, 1, {})
        assert await messager.fetch_messages(timeout=WAIT_S)
        answers = await messager.ask_columns([1], [1], [{}], timeout=WAIT_S)
        assert len(answers) == 1

    asyncio.run(use(messager))
    yield messager
    gc.collect()  # an open socket would be an error here


@pytest.mark.parametrize("call", CALLS)
def test_calls_in_another_event_loop_raise_closed_and_say_why_and_a_close_does_nothing(messager, call):
    async def again():
        async with asyncio.timeout(WAIT_S):
            await CALLS[call](messager)

    async def end():
        await messager.close()
        await messager.close()

    with pytest.raises(Closed, match="event loop in which this messager was opened has ended"):
        asyncio.run(again())
    asyncio.run(asyncio.wait_for(end(), WAIT_S))  # it does nothing there


def test_its_name_waits_for_a_successor(messager, server, exp_id):
    async def go_on():
        async with Messager(server, exp_id, name="west") as successor:
            await successor.host_agents([1], ["agent-chat"])
            return [message.payload for message in await successor.fetch_messages(timeout=WAIT_S)]

    assert {} in asyncio.run(go_on())


@pytest.mark.parametrize("name", ["west", "east", "north", "south"])  # asyncio ends generators in any order
def test_a_generator_that_ends_with_the_loop_closes_its_messager_by_itself(server, exp_id, name):
    kept = []

    async def incoming():
        messager = await opened()
        try:
            await messager.send(1, 1, {})
            while True:
                for message in await messager.fetch_messages(timeout=WAIT_S):
                    yield message
        finally:
            await messager.close()

    async def opened():
        messager = Messager(server, exp_id, name=name)
        await messager.init()
        await messager.host_agents([1], ["agent-chat"])
        return messager

    async def first():
        kept.append(incoming())
        return (await anext(kept[0])).payload

    async def left():
        successor = await opened()
        found = await successor.fetch_messages(complete=True)
        await successor.close()
        return len(found)

    assert asyncio.run(first()) == {}
    assert asyncio.run(left()) == 0  # it was committed


def test_a_messager_that_is_opened_twice_at_once_stays_open(server, exp_id):
    async def use():
        messager = Messager(server, exp_id)
        await asyncio.gather(messager.init(), messager.init())
        gc.collect()
        await asyncio.sleep(0)
        assert await messager.send(1, 1, {}) is not None
        await messager.close()

    asyncio.run(use())


async def test_a_send_in_another_loop_that_runs_is_refused_and_nothing_is_sent(server, exp_id):
    async with Messager(server, exp_id, name="west") as messager:
        await messager.host_agents([1], ["agent-chat"])
        for send in (
            lambda: messager.send(1, 1, {"n": 0}),
            lambda: messager.send_columns([1], [1], {"n": 1}),
            lambda: messager.ask(1, 1, {"n": 2}),
        ):

            async def elsewhere(send=send):
                await send()

            with pytest.raises(ConfigError, match="nothing was sent"):
                await asyncio.to_thread(asyncio.run, elsewhere())
        assert len(await messager.ask_columns([1], [1], {"n": 3}, timeout=WAIT_S)) == 1
        assert [message.payload["n"] for message in await messager.fetch_messages(timeout=WAIT_S)] == [3]


async def test_a_send_in_another_loop_is_refused_while_others_are_under_way(server, exp_id):
    async with Messager(server, exp_id, name="west") as messager, Messager(server, exp_id, name="east") as east:
        await messager.host_agents([1], ["agent-chat"])
        await east.host_agents([2], ["agent-chat"])
        sends = [asyncio.create_task(messager.send(1, 2, {"n": n})) for n in range(3)]
        await asyncio.sleep(0)  # a batch is open
        with ThreadPoolExecutor(1) as elsewhere:
            for call in (
                lambda: messager.send(1, 2, {}),
                lambda: messager.send_message(messager.get_agent_chat_channel(2), {}, 1),
            ):
                # This loop is blocked meanwhile, and the batch stays open.
                refused = elsewhere.submit(lambda call=call: asyncio.run(asyncio.wait_for(call(), WAIT_S))).exception()
                assert isinstance(refused, ConfigError), refused
        await asyncio.gather(*sends)
        assert [m.payload["n"] for m in await east.fetch_messages(timeout=WAIT_S, complete=True)] == [0, 1, 2]
