"""Inboxes of agents: each message is committed by itself, once its agent asks for the next one."""

import asyncio
import logging
import uuid

import pytest
from support.contracts import WAIT_S, fetch_all, until
from support.server_side import waiting_in

from ray_messaging.errors import Closed, ConfigError, NotListening


async def send(west, *messages):
    for to_id, n in messages:
        assert await west.send(1, to_id, {"n": n})


async def died(messager):
    """End a messager without a commit of the messages in hand."""
    await messager.__aexit__(RuntimeError, RuntimeError("died"), None)


async def test_each_agent_gets_its_own_messages_in_order(pair):
    west, east = pair
    agents = [11, 12, "ann"]
    found = {agent: [] for agent in agents}

    async def live(agent):
        async for message in east.inbox(agent):
            assert message.to_id == agent
            found[agent].append(message.payload["n"])
            if len(found[agent]) == 40:
                return

    async with asyncio.TaskGroup() as tasks:
        for agent in agents:
            tasks.create_task(live(agent))
        await west.send_columns(1, [agents[n % 3] for n in range(120)], [{"n": n} for n in range(120)])
    assert [found[agent] for agent in agents] == [list(range(first, 120, 3)) for first in range(3)]


async def test_what_is_in_hand_comes_again_and_the_rest_is_committed(pair, messagers):
    west, east = pair
    await send(west, (11, 0), (12, 1), (11, 2), (12, 3), ("ann", 4))
    first, second = east.inbox(11), east.inbox(12)
    assert (await anext(first)).payload == {"n": 0}  # in hand from now on
    assert [(await anext(second)).payload["n"] for _ in range(2)] == [1, 3]

    async def committed():
        return await waiting_in(east, "east") == 4

    await until(committed)
    await died(east)
    again = await messagers(name="east", host=[11, 12, "ann"])
    assert [message.payload["n"] for message in await fetch_all(again, 4)] == [0, 2, 3, 4]


async def test_a_block_that_breaks_off_leaves_its_message_to_the_next_reader(pair):
    west, east = pair
    await send(west, (11, 0), (11, 1), (11, 2))
    async for message in east.inbox(11):
        assert message.payload == {"n": 0}
        break
    reader = east.inbox(11)
    assert [(await anext(reader)).payload["n"] for _ in range(2)] == [0, 1]
    await reader.aclose()
    async for message in east.inbox(11):
        assert message.payload == {"n": 1}
        await east.ack(message)  # handled, and the last one
        break
    assert (await anext(east.inbox(11))).payload == {"n": 2}


async def test_a_reader_hears_that_its_agent_has_left(pair):
    west, east = pair
    await send(west, (11, 0), (12, 1))

    async def live(agent):
        return [message.payload["n"] async for message in east.inbox(agent)]

    readers = [asyncio.create_task(live(agent)) for agent in (11, 12)]
    async with asyncio.timeout(WAIT_S):
        await east.add_agents([14])
        idle = east.inbox(14)
        await east.move_agents([11, 14], to="west")  # once its message is handled
        with pytest.raises(
            NotListening, match=r"agent 11 is not in 'east' any more: open its inbox at the messager that hosts it"
        ):
            await readers[0]
        with pytest.raises(NotListening, match="agent 14 is not in 'east' any more"):
            await anext(idle)  # which had not begun to read
        await send(west, (11, 2))
        async for message in west.inbox(11):
            assert message.payload == {"n": 2}
            await west.ack(message)
            break
        await east.add_agents([13])  # the others go on
        await send(west, (12, 3), (13, 4))
        assert (await anext(east.inbox(13))).payload == {"n": 4}
        await west.move_agents([11, 14], to="east")
        await send(west, (11, 5), (14, 6))
        assert (await anext(east.inbox(11))).payload == {"n": 5}
        assert (await anext(idle)).payload == {"n": 6}  # its agent is back
    assert not readers[1].done()
    readers[1].cancel()


async def test_close_commits_what_was_handled(pair, messagers):
    west, east = pair
    await send(west, (11, 0), (11, 1))
    reader = east.inbox(11)
    assert [(await anext(reader)).payload["n"] for _ in range(2)] == [0, 1]
    waiting = asyncio.create_task(anext(east.inbox(12)))
    await asyncio.sleep(0)
    await east.close()
    with pytest.raises(Closed):
        await waiting
    with pytest.raises(Closed):
        await anext(reader)
    again = await messagers(name="east", host=[11, 12, "ann"])
    assert [message.payload["n"] for message in await fetch_all(again, 1)] == [1]
    assert not await again.fetch_messages()


async def test_an_agent_answers_from_its_inbox(pair):
    west, east = pair

    async def live(agent):
        async for question in east.inbox(agent):
            await east.reply(question, {"twice": 2 * question.payload["n"]})

    lives = [asyncio.create_task(live(agent)) for agent in (11, 12)]
    answers = await asyncio.gather(*(west.ask(1, 11 + n % 2, {"n": n}, timeout=WAIT_S) for n in range(50)))
    assert [answer.payload["twice"] for answer in answers] == list(range(0, 100, 2))
    for task in lives:
        task.cancel()
    await asyncio.gather(*lives, return_exceptions=True)


async def test_an_inbox_takes_an_id_in_any_form_and_none_for_messages_to_no_agent(messagers):
    agent = uuid.uuid4()
    west = await messagers(name="west", host=[4, agent])
    channel = west.get_user_payback_channel()
    await west.subscribe_and_start_listening([channel])
    await west.send_columns(4, [4, agent], [{"n": 0}, {"n": 1}])
    await west.send_message(channel, {"n": 2}, 4)
    async with asyncio.timeout(WAIT_S):
        found = [(await anext(west.inbox(given))).payload["n"] for given in ("4", agent, None)]
    assert found == [0, 1, 2]
    with pytest.raises(ConfigError, match="does not listen for agent 99"):
        west.inbox(99)


async def test_an_agent_without_a_reader_is_named_before_it_holds_up_the_others(messagers, caplog):
    west, east = await messagers(name="west", host=[1]), await messagers(name="east", host=[11, 12])
    with caplog.at_level(logging.WARNING, logger="ray_messaging"):
        await west.send_columns(1, [11] * 2 + [12] * 10_000, {"n": 1})
        reader = east.inbox(11)
        await anext(reader)
        await until(lambda: "agent 12, whose inbox nobody reads" in caplog.text)
    other = east.inbox(12)
    for _ in range(10_000):
        assert (await anext(other)).to_id == 12
