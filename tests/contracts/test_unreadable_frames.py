"""Unreadable frames from a sender that counts their rows: they do not occupy room for ever."""

import asyncio

import pytest
from support.contracts import WAIT_S, fetch_all, sender_of, until

GARBAGE = b"of a version that is yet to come"  # its rows count, and cannot be read here


@pytest.fixture
async def pair(messagers):
    """Open a receiver with room for 10 messages; return it, its channel, and a newer sender."""
    receiver = await messagers(name="box", mailbox_messages=10, host=[1])
    return receiver, receiver.get_agent_chat_channel(1), await sender_of(receiver, "newer")


async def buried(messager, count):
    await until(lambda: messager.stats()["unreadable"] >= count)


async def test_unreadable_frames_do_not_occupy_a_mailbox_for_ever(pair, messagers, store):
    receiver, channel, newer = pair
    sender = await messagers()
    for n in range(5):
        await newer.write("box", GARBAGE, 8)
        await sender.send_message(channel, {"n": n})
        [message] = await fetch_all(receiver, 1)
        assert message.payload == {"n": n}
        await receiver.ack()
        assert await store.waiting("box") == 0
    assert receiver.stats()["unreadable"] == 5


async def test_a_waiting_fetch_frees_unreadable_frames(pair, messagers):
    receiver, channel, newer = pair
    sender = await messagers(send_timeout_s=WAIT_S)
    waiting = asyncio.create_task(receiver.fetch_messages(timeout=None))
    await newer.write("box", GARBAGE, 10)  # it is full now, with nothing to hand out
    await sender.send_message(channel, {"n": 1})
    async with asyncio.timeout(WAIT_S):
        assert [message.payload for message in await waiting] == [{"n": 1}]


async def test_a_mailbox_that_is_not_at_its_end_keeps_its_counts(pair, messagers, store):
    receiver, channel, newer = pair
    sender = await messagers()
    for n in range(3):
        await sender.send_message(channel, {"n": n})
    await newer.write("box", GARBAGE, 4)
    await fetch_all(receiver, 2, limit=2)
    await receiver.ack()
    assert await store.waiting("box") == 5
    await fetch_all(receiver, 1)
    await buried(receiver, 1)
    await receiver.fetch_messages()
    await receiver.ack()
    assert await store.waiting("box") == 0


async def test_an_unreadable_frame_does_not_block_a_complete_fetch(pair, messagers):
    receiver, channel, newer = pair
    await (await messagers()).send_message(channel, {"n": 1})
    await newer.write("box", GARBAGE)
    assert [message.payload["n"] for message in await receiver.fetch_messages(complete=True)] == [1]
    assert len(await receiver.fetch_messages(complete=True)) == 0
