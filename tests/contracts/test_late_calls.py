"""Late calls and interrupted closes: they take no messages, revert no state, and leave no caller without an answer."""

import asyncio

import pytest
from support.contracts import WAIT_S, numbers, send_numbers

from ray_messaging.errors import TransactionError


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
    with pytest.raises(TransactionError, match="is not open"):
        await late[0]


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
