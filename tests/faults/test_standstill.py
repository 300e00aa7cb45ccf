"""A process that was stopped hands out nothing that its successor may have handed out meanwhile."""

import time

import pytest

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
