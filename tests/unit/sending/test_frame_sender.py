"""The frame sender: effects of late attempts, and of a server that lost writes, on reported fates."""

import pytest
from support.contracts import fetch_all, numbers

from ray_messaging.transports.values import FrameFate


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


class Late:
    """A transport with a late first attempt, and an answered repetition."""

    def __init__(self, transport, before_answer=None):
        self.transport = transport
        self.real = transport.send
        self.before_answer = before_answer
        self.request = None
        transport.send = self.send

    async def send(self, request):
        late = self.request is None
        if late:
            self.request = request
        reply = await self.real(request)
        if late:
            reply.repeated = True
            if self.before_answer is not None:
                await self.before_answer()
        return reply

    async def arrive(self):
        return await self.real(self.request)


async def test_a_late_attempt_that_still_comes_before_the_fence_counts_as_delivered(full):
    sender, receiver = full
    channel = sender.get_agent_chat_channel(1)

    async def make_room():
        assert numbers(await fetch_all(receiver, 4)) == [0, 1, 2, 3]
        await receiver.ack()
        assert (await late.arrive()).fates == [FrameFate.WRITTEN]

    late = Late(sender.engine.transport, make_room)
    assert (await sender.send_message(channel, {"n": 4})).fate == "delivered"
    assert (await sender.send_message(channel, {"n": 5})).fate == "delivered"
    await late.arrive()
    assert numbers(await fetch_all(receiver, 2)) == [4, 5]
    assert await nothing_more(receiver)


async def test_a_late_attempt_refused_for_a_stale_directory_writes_nothing(opener, local):
    sender, receiver = await opener(local), await opener(local, host=[1])
    late = Late(sender.engine.transport)
    channel = sender.get_agent_chat_channel(1)
    assert (await sender.send_message(channel, {"n": 0})).fate == "delivered"  # refused first, as the listener is new
    await late.arrive()
    assert (await sender.send_message(channel, {"n": 1})).fate == "delivered"
    assert numbers(await fetch_all(receiver, 2)) == [0, 1]
    assert await nothing_more(receiver)
