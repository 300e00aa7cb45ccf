"""Refusals that do not pass: each send ends by its timeout, with pauses between its attempts."""

import asyncio

import pytest
from support.contracts import WAIT_S, fetch_all, scripts_run, vanish

from ray_messaging import Outgoing
from ray_messaging.errors import OutcomeUnknown, TransitError

pytestmark = pytest.mark.one_server("it deletes the keys of one server, and counts the scripts that it runs")

TIMEOUT_S = 0.5
# Pauses of 2, 4, 8, 16, 32 and then 50 ms fit into the timeout a dozen times, and each attempt has a few calls.
FEW = 60


async def transact(messager, channel):
    async with messager.transaction() as tx:
        tx.send_message(channel, {"n": 1})


async def plainly(messager, channel):
    await messager.send_message(channel, {"n": 1})


@pytest.mark.parametrize("send", [plainly, transact])
async def test_a_send_to_a_mailbox_without_its_state_ends_by_its_timeout(server, opener, store, send):
    await opener(server, name="group", host=[1])
    other = await opener(server, name="other", host=[2])
    sender = await opener(server, name="sender", host=[3], send_timeout_s=TIMEOUT_S)
    channel = sender.get_agent_chat_channel(1)
    assert (await sender.send_message(channel, {"n": 0})).fate == "delivered"
    await store.client.delete(store.keys.state("group"))
    before = await scripts_run(store.client)
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(TransitError, match=r"'group'.*deleted, or evicted") as caught:
            await send(sender, channel)
    assert not isinstance(caught.value, OutcomeUnknown)
    assert await scripts_run(store.client) - before < FEW
    assert (await sender.send_message(sender.get_agent_chat_channel(2), {"n": 2})).fate == "delivered"
    assert len(await fetch_all(other, 1)) == 1
    await asyncio.wait_for(sender.close(), WAIT_S)


async def test_others_are_sent_to_while_one_mailbox_has_no_state(server, opener, store):
    await opener(server, name="group", host=[1])
    other = await opener(server, name="other", host=[2])
    sender = await opener(server, send_timeout_s=TIMEOUT_S)
    assert (await sender.send_message(sender.get_agent_chat_channel(1), {"n": 0})).fate == "delivered"
    await store.client.delete(store.keys.state("group"))
    with pytest.raises(TransitError, match="'group'") as caught:
        await sender.send_messages([Outgoing.to_agent(agent, {"n": agent}) for agent in (1, 2)])
    assert [receipt and receipt.fate for receipt in caught.value.receipts] == [None, "delivered"]
    assert len(await fetch_all(other, 1)) == 1


async def test_a_mailbox_without_its_state_leaves_the_directory_with_its_lease(server, opener, store):
    receiver = await opener(server, name="group", host=[1])
    sender = await opener(server)
    assert (await sender.send(None, 1, {"n": 0})).fate == "delivered"
    await vanish(receiver)
    await store.client.delete(store.keys.state("group"))
    sending = asyncio.create_task(sender.send(None, 1, {"n": 1}))
    await store.client.delete(store.keys.lease("group"))
    assert (await asyncio.wait_for(sending, WAIT_S)).fate == "undeliverable"
    again = await opener(server, name="group", host=[1])
    assert (await sender.send(None, 1, {"n": 2})).fate == "delivered"
    assert [message.payload["n"] for message in await fetch_all(again, 1)] == [2]
