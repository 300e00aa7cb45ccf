"""Sends whose messager is closed or stands still."""

import asyncio
import contextlib

import pytest
from support.contracts import WAIT_S, fetch_all, numbers, until

from ray_messaging.errors import Closed, MailboxFull


@pytest.fixture
async def shop(messagers):
    return await messagers(host=[2])


async def test_a_first_send_gets_an_error_if_close_is_cancelled(messagers):
    """The send waits for its first epoch: there is no in-flight batch yet."""

    async def hang(*_args, **_options):
        asked.set()
        await asyncio.Event().wait()

    messager, asked = await messagers(), asyncio.Event()
    messager.engine.transport.take_sender_epoch = hang
    sending = asyncio.create_task(messager.send_message(messager.get_agent_chat_channel(1), {"n": 1}, 2))
    await asked.wait()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await messager.close()
    with pytest.raises(Closed):
        await sending
    await messager.engine.accumulator.flush()


async def test_a_transaction_that_waits_for_room_counts_as_healthy(messagers, shop):
    """Otherwise health() would blame the sender for a slow reader."""
    full = await messagers(host=[9], mailbox_messages=1)
    bank = await messagers(name="bank", host=[1], send_timeout_s=WAIT_S)
    channel = bank.get_agent_chat_channel(9)
    await shop.send_message(channel, {"n": 0}, 2)

    async def leave():
        async with bank.transaction() as tx:
            tx.send_message(channel, {"n": 1}, 1)

    leaving = asyncio.create_task(leave())
    try:
        await until(lambda: bank.engine.accumulator.capacity.rows > 0)
        bank.engine.accumulator.send_loop.turned_at = 0.0
        await until(lambda: not bank.engine.accumulator.health().stuck)
        assert not leaving.done()
    finally:
        assert numbers(await fetch_all(full, 1)) == [0]
        await full.ack()
        with contextlib.suppress(MailboxFull):
            await leaving
    assert numbers(await fetch_all(full, 1)) == [1]
