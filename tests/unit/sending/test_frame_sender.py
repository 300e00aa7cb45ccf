"""The frame sender: effects of late attempts, and of a server that lost writes, on reported fates."""

import pytest
from support.contracts import fetch_all, numbers

from ray_messaging.transports.transport_values import FrameFate


async def nothing_more(receiver):
    await receiver.ack()
    return len(await receiver.fetch_messages()) == 0


@pytest.fixture
async def full(opener, local):
    """Open a mailbox for 4 messages that is full, and a sender."""
    receiver = await opener(local, host=[1], mailbox_messages=4)
    sender = await opener(local, send_timeout_s=0.2)
    for n in range(4):
        await sender.send_message(sender.get_agent_chat_channel(1), {"n": n})
    return sender, receiver


def delayed(transport, before_answer=None):
    """Let the first attempt of a transport be late, and its repetition be answered; return what makes it arrive."""
    send, first = transport.send, []

    async def attempt(request):
        reply = await send(request)
        if not first:
            first.append(request)
            reply.repeated = True
            if before_answer is not None:
                await before_answer()
        return reply

    transport.send = attempt
    return lambda: send(first[0])


async def test_a_late_attempt_that_still_comes_before_the_fence_counts_as_delivered(full):
    sender, receiver = full
    channel = sender.get_agent_chat_channel(1)

    async def make_room():
        assert numbers(await fetch_all(receiver, 4)) == [0, 1, 2, 3]
        await receiver.ack()
        assert (await arrive()).fates == [FrameFate.WRITTEN]

    arrive = delayed(sender.engine.transport, make_room)
    assert (await sender.send_message(channel, {"n": 4})).fate == "delivered"
    assert (await sender.send_message(channel, {"n": 5})).fate == "delivered"
    await arrive()
    assert numbers(await fetch_all(receiver, 2)) == [4, 5]
    assert await nothing_more(receiver)


async def test_a_late_attempt_refused_for_a_stale_directory_writes_nothing(opener, local):
    sender, receiver = await opener(local), await opener(local, host=[1])
    arrive = delayed(sender.engine.transport)
    channel = sender.get_agent_chat_channel(1)
    assert (await sender.send_message(channel, {"n": 0})).fate == "delivered"  # refused first, as the listener is new
    await arrive()
    assert (await sender.send_message(channel, {"n": 1})).fate == "delivered"
    assert numbers(await fetch_all(receiver, 2)) == [0, 1]
    assert await nothing_more(receiver)
