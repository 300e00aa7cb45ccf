"""A process that stood still asks the server before it hands out what a successor may have handed out meanwhile."""

import asyncio
import time

import pytest
from support.patience import WAIT_S

from ray_messaging.errors import Fenced

pytestmark = pytest.mark.faults


@pytest.mark.parametrize("timeout", [0.0, 5.0], ids=["polls", "waits"])
async def test_messages_read_ahead_are_not_handed_out_after_a_standstill(messagers, timeout):
    old = await messagers(name="east")
    await old.subscribe_and_start_listening([old.get_agent_chat_channel(1)])
    await old.send_message(old.get_agent_chat_channel(1), {"n": 0}, from_id=2, to_id=1)
    await old.fetch_messages(timeout=60)
    await old.ack()
    sender = await messagers(name="west")
    await sender.send_message(sender.get_agent_chat_channel(1), {"n": 1}, from_id=2, to_id=1)
    while not old.engine.stats()["inbox"]:
        await old.engine.subscription.inbox.arrival()
    successor = await messagers(name="east")
    await successor.subscribe_and_start_listening([successor.get_agent_chat_channel(1)])
    assert [m.payload["n"] for m in await successor.fetch_messages(timeout=60)] == [1]
    await successor.ack()
    time.sleep(0.5)  # noqa: ASYNC251 - this is the fault: nothing of this process runs
    with pytest.raises(Fenced):
        await old.fetch_messages(timeout=timeout)


async def test_a_fetch_after_a_standstill_waits_for_a_server_that_is_away(opener, redis_process):
    server = redis_process
    receiver, sender = await opener(server.config, name="east"), await opener(server.config)
    chat = receiver.get_agent_chat_channel(1)
    await receiver.subscribe_and_start_listening([chat])
    await sender.send_message(chat, {"n": 1}, from_id=2, to_id=1)
    while not receiver.engine.stats()["inbox"]:
        await receiver.engine.subscription.inbox.arrival()
    server.kill()
    await asyncio.sleep(0.1)  # for a client to notice: no event tells of it
    time.sleep(0.5)  # noqa: ASYNC251 - this process stands still
    assert len(await receiver.fetch_messages(timeout=0)) == 0
    fetching = asyncio.create_task(receiver.fetch_messages(timeout=WAIT_S))
    await asyncio.sleep(0.5)  # a refused connection is reported within this
    assert not fetching.done()
    await asyncio.to_thread(server.start)
    assert [m.payload["n"] for m in await fetching] == [1]
    await receiver.ack()
    for messager in (receiver, sender):
        await messager.close()
