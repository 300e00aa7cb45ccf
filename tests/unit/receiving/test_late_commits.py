"""Commits that come late to the server."""

import pytest
from support.contracts import WAIT_S, fetch_all, numbers, send_numbers, vanish


@pytest.fixture
async def bank(messagers):
    return await messagers(name="bank", host=[1], send_timeout_s=5.0)


@pytest.fixture
async def shop(messagers):
    return await messagers(host=[2])


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
