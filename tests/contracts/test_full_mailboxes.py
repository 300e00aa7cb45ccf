"""Large frames before a full mailbox wait as small ones do, and are not sent repeatedly."""

import asyncio

import pytest
from support.contracts import client_of, fetch_all, until
from support.patience import AT_ONCE_S

LARGE = {"text": "x" * 100_000}


async def fill(sender, count=4):
    for _ in range(count):
        await sender.send_message(sender.get_agent_chat_channel(1), LARGE)


async def test_large_frames_do_not_wait_for_a_removed_mailbox(messagers):
    sender, receiver = await messagers(), await messagers(host=[1], mailbox_messages=4)
    await fill(sender)
    waiting = asyncio.create_task(sender.send_message(sender.get_agent_chat_channel(1), LARGE))
    await until(lambda: sender.stats()["outbox"] == 1)
    await receiver.close()
    # A broker may still have its subscription.
    assert (await asyncio.wait_for(waiting, AT_ONCE_S)).fate in {"undeliverable", "published"}


@pytest.mark.parametrize("kind", ["valkey", "redis"])
async def test_large_frames_are_not_sent_while_the_mailbox_is_full(opener, request, kind):
    config = request.getfixturevalue(f"{kind}_config")
    sender, receiver = await opener(config), await opener(config, host=[1], mailbox_messages=4)
    await fill(sender)
    client = client_of(config)

    async def asked():
        return (await client.info("commandstats")).get("cmdstat_hmget", {}).get("calls", 0)

    waiting = asyncio.create_task(sender.send_message(sender.get_agent_chat_channel(1), LARGE))
    await until(lambda: sender.stats()["outbox"] == 1)
    received, begun = (await client.info("stats"))["total_net_input_bytes"], await asked()
    await until(lambda: more_than(asked, begun + 15))
    assert (await client.info("stats"))["total_net_input_bytes"] - received < 3 * len(LARGE["text"])
    assert not waiting.done()
    assert len(await fetch_all(receiver, 5)) == 5
    assert (await waiting).sent
    await client.aclose()


async def more_than(counted, least):
    return await counted() > least
