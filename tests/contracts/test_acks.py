"""Acknowledging: messages fetched with `commit="acked"` are committed by `ack` alone, in any order, and durably."""

import asyncio

import pytest
from support.contracts import fetch_all, numbers, send_numbers, until, vanish
from support.server_side import Letters, findings_of_mailboxes, kept_in_mailboxes, waiting_in

from ray_messaging import Messager
from ray_messaging.errors import CommitFailed, ConfigError


async def hold(messager, count):
    """Fetch with `commit="acked"`; return the messages by their numbers."""
    return {message.payload["n"]: message for message in await fetch_all(messager, count, commit="acked")}


async def left(messager, count):
    """Return the numbers that a successor receives, and check that there are no more."""
    found = numbers(await fetch_all(messager, count))
    assert numbers(await messager.fetch_messages(complete=True)) == []
    return found


@pytest.fixture
async def pair(messagers):
    """Open a sender, and a receiver with a name: agent 1."""
    return await messagers(), await messagers(name="group", host=[1])


@pytest.fixture
async def successor_after_crash(messagers, pair):
    """Return a function that ends the receiver, usually as a kill does, and opens its successor."""
    readers = [pair[1]]

    async def open_successor(end=vanish):
        await end(readers[-1])
        readers.append(await messagers(name="group", host=[1]))
        return readers[-1]

    return open_successor


@pytest.mark.parametrize(
    ("commit", "acks", "end", "again"),
    [
        ("acked", [[6], [3, 2], [5]], vanish, [1, 4, 7]),
        ("acked", [[2]], Messager.close, [1, 3, 4, 5, 6, 7]),
        ("acked", [[2], None], vanish, []),
        ("acked", [[2], [1, 2], [1, 2, 3, 4, 5, 6, 7], [3], []], vanish, []),
        ("next", [[2]], vanish, [1, 3, 4, 5, 6, 7]),
    ],
    ids=["in any order", "before a close", "without arguments: all", "twice", "of an ordinary fetch"],
)
async def test_only_what_is_acknowledged_is_committed(pair, successor_after_crash, commit, acks, end, again):
    sender, receiver = pair
    for frame in ([1, 2, 3, 4], [5], [6, 7]):
        await send_numbers(sender, *frame)
    held = {message.payload["n"]: message for message in await receiver.fetch_messages(complete=True, commit=commit)}
    for ns in acks:
        await (receiver.ack() if ns is None else receiver.ack([held[n] for n in ns]))
    await send_numbers(sender, 8)
    assert await left(await successor_after_crash(end), len(again) + 1) == [*again, 8]


async def test_a_fetch_does_not_commit_messages_of_other_handlers(pair, successor_after_crash):
    sender, receiver = pair
    await send_numbers(sender, 1, 2)
    await hold(receiver, 2)
    await send_numbers(sender, 3)
    assert numbers(await fetch_all(receiver, 1)) == [3]
    assert len(await receiver.fetch_messages()) == 0  # commits the result of the last fetch only
    assert await left(await successor_after_crash(), 2) == [1, 2]


async def test_messages_acknowledged_out_of_order_free_room_and_never_come_again(pair, successor_after_crash, store):
    sender, receiver = pair
    for n in range(6):
        await send_numbers(sender, n)
    held = await hold(receiver, 6)
    await receiver.ack([held[n] for n in (1, 2, 4)])
    assert await waiting_in(receiver, "group") == 3
    second = await successor_after_crash()
    assert await waiting_in(second, "group") == 3
    again = await hold(second, 3)
    assert sorted(again) == [0, 3, 5]
    await second.ack(again[5])
    third = await successor_after_crash()
    assert await waiting_in(third, "group") == 2
    last = await hold(third, 2)
    assert sorted(last) == [0, 3]
    await third.ack(last.values())
    assert await waiting_in(third, "group") == 0

    async def trimmed():
        await third.fetch_messages()  # the reader may reach the acknowledged messages only now
        return await store.entries("group") == []

    await until(trimmed)
    await send_numbers(sender, 6)
    assert await left(await successor_after_crash(), 1) == [6]


async def test_a_thousand_handlers_acknowledge_at_once_in_few_writes(pair, successor_after_crash, store):
    sender, receiver = pair
    for low in range(0, 1000, 50):
        await send_numbers(sender, *range(low, low + 50))
    held = await hold(receiver, 1000)

    async def scripts():
        return (await store.client.info("commandstats"))["cmdstat_evalsha"]["calls"]

    before = await scripts()
    turns = [message for _, message in sorted(held.items(), key=lambda item: item[0] * 619 % 1000)]
    await asyncio.gather(*(receiver.ack(message) for message in turns))
    assert await scripts() - before < 50
    assert await waiting_in(receiver, "group") == 0
    assert await store.entries("group") == []
    await send_numbers(sender, 1000)
    assert await left(await successor_after_crash(), 1) == [1000]


async def test_messages_of_another_messager_cannot_be_acknowledged(pair, messagers):
    sender, receiver = pair
    other = await messagers(name="other", host=[2])
    await sender.send_message(sender.get_agent_chat_channel(2), {"n": 2})
    [foreign] = await fetch_all(other, 1)
    with pytest.raises(ConfigError, match="'other' has fetched it"):
        await receiver.ack(foreign)
    for nonsense in (7, "x", [7], [None]):
        with pytest.raises(ConfigError, match="pass a Message"):
            await receiver.ack(nonsense)
    with pytest.raises(ConfigError, match="commit must be 'next'"):
        await receiver.fetch_messages(commit="never")


async def test_messages_of_foreign_clients_need_no_ack(pair, store):
    sender, receiver = pair
    await store.publish(receiver.get_user_chat_channel(1), b'{"n":7}')
    [message] = await fetch_all(receiver, 1, commit="acked")
    await receiver.ack(message)
    await send_numbers(sender, 1)
    await receiver.ack(await fetch_all(receiver, 1, commit="acked"))
    assert await waiting_in(receiver, "group") == 0


async def test_too_many_ack_ranges_raise_and_lose_nothing(pair, successor_after_crash):
    sender, receiver = pair
    last = 20_002
    await sender.send_columns(None, [1] * (last + 1), [{"n": n} for n in range(last + 1)])
    held = await hold(receiver, last + 1)
    await receiver.ack([held[n] for n in range(2, last, 2)])
    with pytest.raises(CommitFailed, match=r"not acknowledged: at most 10,000 separate ranges") as caught:
        await receiver.ack([held[last]])
    assert (caught.value.group, caught.value.messages) == ("group", 1)
    await receiver.ack([held[3], held[5], held[last]])  # the first two join ranges
    again = [0, 1, *range(7, last, 2)]
    assert await left(await successor_after_crash(), len(again)) == again


# -- dead letters ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["closed", "its lease is over"])
async def test_acknowledged_messages_do_not_become_dead_letters(messagers, store, end):
    sender, nameless = await messagers(), await messagers(host=[1])
    await send_numbers(sender, 0, 1, 2, 3, 4)
    await send_numbers(sender, 5, 6)
    await send_numbers(sender, 7)
    held = await hold(nameless, 8)
    await nameless.ack([held[n] for n in (1, 3, 5, 6)])
    if end == "closed":
        await nameless.close()
    else:
        await vanish(nameless)
        await store.expire(nameless.name)
    successor = await messagers(name="heir", host=[1])
    assert [outcome.messages for outcome in await Letters(successor).move_all()] == [
        3,
        1,
    ]  # the second frame was handled
    assert await left(successor, 4) == [0, 2, 4, 7]


# -- transactions ------------------------------------------------------------------------------------------------------


async def test_a_transaction_commits_only_its_own_fetches_and_none_where_it_fails(pair, successor_after_crash):
    sender, receiver = pair
    await send_numbers(sender, 1, 2, 3)
    held = await hold(receiver, 3)
    await receiver.ack(held[2])
    await send_numbers(sender, 4, 5)
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with receiver.transaction() as tx:
            assert numbers(await tx.fetch_messages(complete=True)) == [4, 5]
            raise ZeroDivisionError
    async with receiver.transaction() as tx:
        assert numbers(await tx.fetch_messages(complete=True)) == [4, 5]
        tx.state = b"9"
    await receiver.ack(held[1])
    second = await successor_after_crash()
    async with second.transaction() as tx:
        assert (tx.state, numbers(await tx.fetch_messages(complete=True))) == (b"9", [3])


# -- what a transport keeps --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
async def test_health_counts_acknowledged_and_waiting_messages_separately(pair, server, exp_id):
    sender, receiver = pair
    await send_numbers(sender, 1, 2, 3)
    held = await hold(receiver, 3)
    await receiver.ack([held[2], held[3]])
    [mailbox] = (await kept_in_mailboxes(server, exp_id)).values()
    assert (mailbox.messages, mailbox.acked) == (3, 2)
    assert "in which 1 messages wait" in str((await findings_of_mailboxes(server, exp_id))[0])
