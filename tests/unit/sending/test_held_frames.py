"""Frames that a sender holds back for full mailboxes."""

import asyncio

import pytest
from support.contracts import fetch_all, until
from support.interceptors import interceptor_with
from support.patience import WAIT_S

from ray_messaging import Outgoing, rules
from ray_messaging.errors import MailboxFull


async def test_a_failed_row_does_not_delay_its_neighbour(messagers, store):
    sender = await messagers(interceptor_with(epoch=1), send_timeout_s=0.2)
    await store.set_interceptor(1)
    boxes = [await messagers(host=[agent], mailbox_messages=4) for agent in (1, 2)]
    channels = [sender.get_agent_chat_channel(agent) for agent in (1, 2)]
    await sender.send_messages([Outgoing(channel, {"n": 0}, from_id=5) for channel in channels for _ in range(4)])
    sends = asyncio.create_task(sender.send_messages([Outgoing(channel, {"n": 1}, from_id=5) for channel in channels]))
    lanes = sender.engine.frame_sender.queues
    await until(lambda: all(box.name in lanes and lanes[box.name].frames for box in boxes))
    lanes[boxes[1].name].frames[0].deadline += 60
    in_flight_batch = lanes[boxes[1].name].frames[0].in_flight
    await until(lambda: bool(in_flight_batch.errors))  # the first row has failed, the second one still waits
    second = interceptor_with(rules.BlackList([(5, 1)]), epoch=2)
    sender.set_message_interceptor(second)
    await store.set_interceptor(2)
    assert len(await fetch_all(boxes[1], 4)) == 4
    await boxes[1].ack()
    with pytest.raises(MailboxFull) as caught:
        await asyncio.wait_for(sends, WAIT_S)
    assert [receipt and receipt.fate for receipt in caught.value.receipts] == [None, "delivered"]
    assert len(await fetch_all(boxes[1], 1)) == 1
    assert sender.stats()["outbox"] == 0
