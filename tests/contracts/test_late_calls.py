"""Late calls and interrupted closes: they take no messages, revert no state, and leave no caller without an answer."""

import asyncio
import contextlib

import pytest
from support.contracts import WAIT_S, fetch_all, numbers, send_numbers, until, vanish

from ray_messaging import Closed, MailboxFull, TransactionError


@pytest.fixture
async def bank(messagers):
    return await messagers(name="bank", host=[1], send_timeout_s=5.0)


@pytest.fixture
async def shop(messagers):
    return await messagers(host=[2])


async def test_a_fetch_that_ends_after_its_block_takes_no_message(bank, shop):
    """`gather` raises while the other call is still running."""

    async def fail():
        raise ValueError("the other call failed")

    async def leave():
        async with bank.transaction() as tx:
            late.append(asyncio.create_task(tx.fetch_messages(timeout=WAIT_S)))
            await asyncio.gather(late[0], fail())

    late = []
    with pytest.raises(ValueError, match="the other call"):
        await leave()
    async with bank.transaction() as tx:
        await send_numbers(shop, 1, 2)
        assert numbers(await tx.fetch_messages(timeout=WAIT_S)) == [1, 2]
    with pytest.raises(TransactionError, match="not under way"):
        await late[0]


@pytest.mark.parametrize("how", ["a transaction", "a fetch", "acks out of order"])
async def test_a_late_commit_reverts_no_state(bank, shop, messagers, how):
    """The commit was sent on an abandoned connection, and arrives after the next connection has been made."""
    transport, commit, calls = bank.engine.transport, bank.engine.transport.commit, []

    async def remember(*args, **totals):
        calls.append((args, totals))
        await commit(*args, **totals)

    transport.commit = remember
    await send_numbers(shop, 1, 2, 3)
    if how == "acks out of order":
        held = await fetch_all(bank, 3, commit="acked")
        await bank.ack(held[1])
        await bank.ack(held[2])
    else:
        assert numbers(await bank.fetch_messages(limit=1, timeout=WAIT_S)) == [1]
        await bank.ack()
    if how == "a transaction":
        async with bank.transaction() as tx:
            assert numbers(await tx.fetch_messages(limit=1)) == [2]
    elif how == "a fetch":
        assert numbers(await bank.fetch_messages(limit=1)) == [2]
        await bank.ack()
    assert (await transport.waiting())["bank"] == 1
    args, totals = calls[0]
    await commit(*args, **totals)
    assert (await transport.waiting())["bank"] == 1
    await vanish(bank)
    successor = await messagers(name="bank", host=[1])
    assert numbers(await fetch_all(successor, 1)) == ([1] if how == "acks out of order" else [3])


@pytest.mark.parametrize("sends", [True, False])
async def test_close_waits_for_the_commit_of_a_transaction(bank, shop, messagers, sends):
    async def leave():
        async with bank.transaction() as tx:
            if sends:
                tx.send_message(bank.get_agent_chat_channel(2), {"n": 1}, 1)
            tx.state = b"kept"
            left.set()

    left = asyncio.Event()
    leaving = asyncio.create_task(leave())
    await left.wait()
    await bank.close()
    await leaving
    successor = await messagers(name="bank", host=[1])
    async with successor.transaction() as tx:
        assert tx.state == b"kept"


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
