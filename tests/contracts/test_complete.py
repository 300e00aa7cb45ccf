"""Complete fetches return everything that the server had at the call; `more` tells whether a fetch left messages."""

import asyncio
import pickle

import pytest
from support.contracts import WAIT_S, fetch_all, numbers, send_numbers, take_in

from ray_messaging.errors import ConfigError, FetchTooLarge


async def fill(sender, count, frame=20):
    for low in range(0, count, frame):
        await send_numbers(sender, *range(low, low + frame))


async def test_every_message_with_a_receipt_is_in_the_next_complete_fetch(messagers):
    senders, receiver = [await messagers() for _ in range(4)], await messagers(host=[1])
    for step in range(20):
        numbered = [range(step * 100 + 10 * n, step * 100 + 10 * n + n + 1) for n in range(4)]
        await asyncio.gather(*(send_numbers(one, *ns) for one, ns in zip(senders, numbered, strict=True)))
        found = await receiver.fetch_messages(complete=True)
        assert sorted(numbers(found)) == [n for ns in numbered for n in ns]
        assert not found.more


async def test_a_complete_fetch_may_exceed_the_inbox(messagers, store):
    sender, receiver = await messagers(), await messagers(name="group", host=[1], inbox_messages=40)
    await fill(sender, 400)
    found = await receiver.fetch_messages(complete=True)
    assert numbers(found) == list(range(400))
    await receiver.ack()
    assert await store.entries("group") == []
    await fill(sender, 400)
    await take_in(receiver, 31)
    for _ in range(20):
        await send_numbers(sender, 0)
        assert receiver.stats()["inbox"] <= 40  # the limit holds again
    async with receiver.transaction() as tx:
        assert len(await tx.fetch_messages(complete=True)) == 420
    assert len(await receiver.fetch_messages(complete=True)) == 0


async def test_more_is_true_while_parts_are_left(messagers):
    sender, receiver = await messagers(), await messagers(name="group", host=[1], inbox_messages=40)
    await fill(sender, 400)
    found, messages = [], await receiver.fetch_messages(timeout=WAIT_S)
    assert 0 < len(messages) < 400
    while messages.more:
        found += messages
        messages = await receiver.fetch_messages()
    assert numbers([*found, *messages]) == list(range(400))
    await fill(sender, 20)
    some = await receiver.fetch_messages(limit=5, timeout=WAIT_S)
    assert (numbers(some), some.more) == ([0, 1, 2, 3, 4], True)
    assert pickle.loads(pickle.dumps(some)).more


@pytest.mark.parametrize("settings", [{}, {"inbox_messages": 1}], ids=["", "each read is of one frame"])
async def test_more_is_false_at_once_at_the_end_of_the_mailbox(messagers, settings):
    sender, receiver = await messagers(), await messagers(host=[1], **settings)
    await send_numbers(sender, 1)
    await fetch_all(receiver, 1)

    async with asyncio.timeout(4):  # a read that waits for the next frame takes 5 s
        while (await receiver.fetch_messages()).more:
            pass


async def test_too_much_for_a_complete_fetch_raises_and_takes_none(messagers):
    sender = await messagers()
    receiver = await messagers(name="group", host=[1], inbox_messages=40, complete_messages=100)
    narrow = await messagers(listen=[receiver.get_agent_chat_channel(1)], complete_bytes=1000)
    await fill(sender, 400)
    with pytest.raises(FetchTooLarge, match=r"400 messages with .* wait in 'group'") as caught:
        await receiver.fetch_messages(complete=True)
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.messages, error.limit_messages) == (400, 100)
    with pytest.raises(FetchTooLarge) as caught:
        await narrow.fetch_messages(complete=True)
    assert caught.value.size > caught.value.limit == 1000
    for messager in (receiver, narrow):
        assert numbers(await fetch_all(messager, 400)) == list(range(400))
    await receiver.ack()
    await fill(sender, 100)
    assert len(await receiver.fetch_messages(complete=True)) == 100


async def test_a_complete_fetch_of_an_empty_mailbox_returns_at_once_or_waits_for_the_first(messagers):
    sender, receiver = await messagers(), await messagers(host=[1])
    assert len(await receiver.fetch_messages(complete=True)) == 0
    waiting = asyncio.create_task(receiver.fetch_messages(complete=True, timeout=None))
    await asyncio.sleep(0)
    await send_numbers(sender, 1, 2)
    assert numbers(await waiting) == [1, 2]
    assert len(await receiver.fetch_messages(complete=True, timeout=0.01)) == 0
    with pytest.raises(ConfigError, match="complete=True fetches all"):
        await receiver.fetch_messages(complete=True, limit=5)


async def test_a_cancelled_complete_fetch_takes_no_message(messagers, monkeypatch):
    sender, receiver = await messagers(), await messagers(host=[1], inbox_messages=40)
    await fill(sender, 400)
    for turns in range(0, 40, 3):
        fetching = asyncio.create_task(receiver.fetch_messages(complete=True, limit=None))
        for _ in range(turns):
            await asyncio.sleep(0)
        if not fetching.done():
            fetching.cancel()
            await asyncio.gather(fetching, return_exceptions=True)
        if not fetching.cancelled():
            assert numbers(fetching.result()) == list(range(400))
            return
    assert numbers(await receiver.fetch_messages(complete=True)) == list(range(400))


async def test_concurrent_complete_fetches_share_the_messages(messagers):
    sender, receiver = await messagers(), await messagers(host=[1], inbox_messages=40)
    await fill(sender, 400)
    found = await asyncio.gather(*(receiver.fetch_messages(complete=True, commit="acked") for _ in range(5)))
    assert sorted(n for messages in found for n in numbers(messages)) == list(range(400))
