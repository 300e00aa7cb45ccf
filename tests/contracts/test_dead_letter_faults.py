"""Dead letters under lost replies, concurrent requests, and full server memory."""

import asyncio
from collections import Counter

import pytest
from faults.proxy import Proxy
from support.contracts import client_of, fetch_all, full_memory, until
from support.server_side import Letters

from ray_messaging.errors import MailboxFull

pytestmark = pytest.mark.parametrize("server", [None], ids=["own"])  # each test names a server

LETTERS = 12


async def make_dead_letters(opener, config):
    """Leave LETTERS dead letters of one message each; return the messages' ids."""
    sender, old = await opener(config), await opener(config, host=[1])
    channel = sender.get_agent_chat_channel(1)
    sent = [(await sender.send_message(channel, {"n": n})).message_id for n in range(LETTERS)]
    await old.close()
    return sent


async def requeue_all(letters):
    """Requeue every letter; return how many messages this call delivered."""
    return sum(outcome.messages for outcome in await letters.move_all())


@pytest.mark.long
@pytest.mark.parametrize("way", ["requeued", "dropped"])
async def test_each_letter_is_moved_once_despite_lost_replies(valkey_config, opener, transports, way):
    sent = await make_dead_letters(opener, valkey_config)
    new = await opener(valkey_config, name="new", host=[1])
    with Proxy(valkey_config, seed=3) as proxy:
        store = Letters(await transports(proxy.config))
        proxy.cut_replies = 0.3
        if way == "requeued":
            assert await requeue_all(store) == LETTERS  # a repeated call gets the first one's result
        else:
            assert [await store.drop([letter.id]) for letter in await store.page("", 1000)] == [1] * LETTERS
        proxy.cut_replies = 0.0
        assert proxy.cuts > 0
        assert (await store.facts())[:2] == (0, 0)
    if way == "requeued":
        assert [message.id for message in await fetch_all(new, LETTERS)] == sent
    assert not await new.fetch_messages()
    assert new.stats()["inbox"] == 0


async def test_each_letter_is_requeued_once_despite_concurrent_requests(valkey_config, opener, transports):
    sent = await make_dead_letters(opener, valkey_config)
    new = await opener(valkey_config, name="new", host=[1])
    stores = [Letters(await transports(valkey_config)) for _ in range(4)]
    moved = await asyncio.gather(*(requeue_all(store) for store in stores))
    assert sum(moved) == LETTERS
    assert Counter(message.id for message in await fetch_all(new, LETTERS)) == Counter(sent)
    assert (await stores[0].facts())[:2] == (0, 0)


async def test_an_unreadable_frame_does_not_stop_a_reader_when_memory_is_full(redis_process, opener, transports):
    receiver = await opener(redis_process.config, name="box", host=[1], inbox_messages=1)
    sender = await opener(redis_process.config)
    transport = await transports(redis_process.config)
    client = client_of(redis_process.config)
    stream = transport.keys.stream("box:" + (await client.hget(transport.keys.state("box"), "born")).decode())
    for n in range(2):  # the first one fills the inbox: the reader waits before the garbage
        await sender.send(None, 1, {"n": n, "text": "x" * 1000})
    await client.xadd(stream, {"f": b"garbage"})
    await sender.send(None, 1, {"n": 2})
    async with full_memory(client):
        assert [message.payload["n"] for message in await fetch_all(receiver, 3)] == [0, 1, 2]
    await client.aclose()

    async def dead():
        return [one.frame for one in await Letters(transport).page("", 10)] == [b"garbage"]

    await until(dead)


async def test_requeueing_with_full_memory_delivers_and_loses_nothing(redis_process, opener, transports):
    await make_dead_letters(opener, redis_process.config)
    new = await opener(redis_process.config, name="new", host=[1])
    store = Letters(await transports(redis_process.config, send_timeout_s=0.1))
    async with client_of(redis_process.config) as client, full_memory(client):
        with pytest.raises(MailboxFull, match="maxmemory"):
            await requeue_all(store)
        assert (await store.facts()).letters == LETTERS
        assert await store.drop([(await store.page("", 1))[0].id]) == 1  # this frees memory
    assert await requeue_all(store) == LETTERS - 1
    assert len(await fetch_all(new, LETTERS - 1)) == LETTERS - 1
