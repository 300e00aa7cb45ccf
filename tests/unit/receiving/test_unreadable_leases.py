"""Unreadable frames in an inbox and in leases: they take no room there."""

import pytest
from support.contracts import WAIT_S, Post, until

from ray_messaging.receiving.delivery_leases import DeliveryLeases
from ray_messaging.transports.cursors import Cursor
from ray_messaging.transports.transport_values import FrameFate

GARBAGE = b"of a version that is yet to come"  # its rows count, and cannot be read here


@pytest.fixture
async def pair(messagers):
    """Open a receiver with room for 10 messages; return it, its channel, and a newer sender."""
    receiver = await messagers(name="box", mailbox_messages=10, host=[1])
    return receiver, receiver.get_agent_chat_channel(1), await Post(receiver.engine.transport, "newer").begin()


async def buried(messager, count):
    await until(lambda: messager.stats()["unreadable"] >= count)


async def test_a_flood_of_unreadable_frames_does_not_fill_the_inbox(pair, messagers):
    receiver, _, newer = pair
    for _ in range(100):
        assert await newer.send("box", GARBAGE, 0) is FrameFate.WRITTEN
    await buried(receiver, 100)
    assert len(receiver.engine.subscription.inbox._pieces) == 1
    assert list(await receiver.fetch_messages()) == []
    await receiver.ack()
    successor = await messagers(name="box", mailbox_messages=10, host=[1])
    assert successor.engine.fetcher.commits.in_flight.cursor != Cursor("0-0", 0)  # past all of it
    assert list(await successor.fetch_messages(timeout=0.05)) == []
    assert successor.stats()["unreadable"] == 0


async def test_unreadable_frames_behind_held_messages_form_one_lease(pair, messagers, store):
    receiver, channel, newer = pair
    sender = await messagers()
    await sender.send_message(channel, {"n": 1})
    lending = DeliveryLeases(receiver.engine.fetcher, 60.0)
    token, [message] = await lending.fetch("kept", None, None, WAIT_S)
    assert message.payload == {"n": 1}
    for n in range(9):
        assert await newer.send("box", GARBAGE) is FrameFate.WRITTEN
        await buried(receiver, n + 1)
        assert (await lending.fetch("asks", None, None, 0.0))[0] is None
    assert len(receiver.engine.fetcher.commits.in_flight._parts) == 2
    await lending.give_back([(token, None)])

    async def handled():
        assert (await lending.fetch("asks", None, None, 0.0))[0] is None
        return await store.waiting("box") == 0

    await until(handled)
    assert (lending.lent, len(lending._leases)) == (0, 0)
