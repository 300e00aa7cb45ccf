"""Acknowledging: what was fetched by `commit="acked"` is committed by `ack` alone, in any order, and durably."""

import asyncio

import pytest
from support.contracts import WAIT_S, fetch_all, until, vanish

from ray_messaging import CommitFailed, ConfigError, Fenced, Outgoing
from ray_messaging.observability.health.mailbox_checks import check_kept
from ray_messaging.receiving import commits as module
from ray_messaging.transports.base import AckRange, Cursor, Limits, SelectiveAcks
from ray_messaging.transports.memory import MemoryServer
from ray_messaging.transports.memory.dead_letters import MemoryDeadLetters
from ray_messaging.transports.ranges import encode_ranges
from ray_messaging.transports.redis.dead_letters import RedisDeadLetters
from ray_messaging.transports.redis.server_probe import ask_server
from ray_messaging.transports.requeueing import Requeueing

only_mqtt = pytest.mark.parametrize("server", ["mqtt"], indirect=True)
beyond_mqtt = pytest.mark.beyond_mqtt("acks")


def numbers(messages):
    return [message.payload["n"] for message in messages]


async def send(sender, *ns):
    """Send numbers to agent 1, in one frame."""
    receipts = await sender.send_messages([Outgoing.to_agent(1, {"n": n}, from_id=0) for n in ns])
    assert receipts.counts()["delivered"] == len(ns)


async def hold(messager, count):
    """Fetch what `ack` alone commits; return the messages by their numbers."""
    return {message.payload["n"]: message for message in await fetch_all(messager, count, commit="acked")}


async def left(messager, count):
    """Return the numbers of what a successor gets, and see that there is no more."""
    found = numbers(await fetch_all(messager, count))
    assert numbers(await messager.fetch_messages(complete=True)) == []
    return found


async def waiting(messager, mailbox="group"):
    return (await messager.engine.transport.waiting())[mailbox]


@pytest.fixture
async def pair(messagers):
    """Open a sender, and a receiver with a name: agent 1."""
    return await messagers(), await messagers(name="group", host=[1])


@pytest.fixture
async def heir(messagers, pair):
    """Return what lets the receiver vanish as a killed process does, and opens its successor."""
    readers = [pair[1]]

    async def open_heir():
        await vanish(readers[-1])
        readers.append(await messagers(name="group", host=[1]))
        return readers[-1]

    return open_heir


@beyond_mqtt
async def test_only_what_is_acknowledged_is_committed_in_any_order(pair, heir):
    sender, receiver = pair
    await send(sender, 1, 2, 3, 4)
    await send(sender, 5)
    await send(sender, 6, 7)
    held = await hold(receiver, 7)
    await receiver.ack(held[6])
    await receiver.ack([held[3], held[2]])
    await receiver.ack(held[5])
    assert await left(await heir(), 3) == [1, 4, 7]


@beyond_mqtt
async def test_a_fetch_commits_nothing_that_others_hold(pair, heir):
    sender, receiver = pair
    await send(sender, 1, 2)
    await hold(receiver, 2)
    await send(sender, 3)
    assert numbers(await fetch_all(receiver, 1)) == [3]
    assert len(await receiver.fetch_messages()) == 0  # commits what the last fetch returned, and that alone
    assert await left(await heir(), 2) == [1, 2]


@beyond_mqtt
async def test_what_is_acknowledged_behind_something_waits_no_more_and_is_never_handed_out_again(pair, heir, store):
    sender, receiver = pair
    for n in range(6):
        await send(sender, n)
    held = await hold(receiver, 6)
    await receiver.ack([held[n] for n in (1, 2, 4)])
    assert await waiting(receiver) == 3
    second = await heir()
    assert await waiting(second) == 3
    again = await hold(second, 3)
    assert sorted(again) == [0, 3, 5]
    await second.ack(again[5])
    third = await heir()
    assert await waiting(third) == 2
    last = await hold(third, 2)
    assert sorted(last) == [0, 3]
    await third.ack(last.values())
    assert await waiting(third) == 0

    async def trimmed():
        await third.fetch_messages()  # the reader may come to what was acknowledged before only now
        return await store.entries("group") == []

    await until(trimmed)
    await send(sender, 6)
    assert await left(await heir(), 1) == [6]


@beyond_mqtt
async def test_ack_of_nothing_in_particular_commits_all(pair, heir):
    sender, receiver = pair
    await send(sender, 1, 2)
    held = await hold(receiver, 2)
    await receiver.ack(held[2])
    await receiver.ack()
    await send(sender, 3)
    assert await left(await heir(), 1) == [3]


@beyond_mqtt
async def test_some_of_an_ordinary_fetch_can_be_acknowledged_at_once(pair, heir):
    sender, receiver = pair
    await send(sender, 1, 2, 3)
    found = await fetch_all(receiver, 3)
    await receiver.ack(found[1])
    assert await left(await heir(), 2) == [1, 3]


@beyond_mqtt
async def test_what_was_acknowledged_may_be_again(pair, heir):
    sender, receiver = pair
    await send(sender, 1, 2, 3)
    messages = await receiver.fetch_messages(timeout=WAIT_S, commit="acked", complete=True)
    await receiver.ack(messages[1])
    await receiver.ack(messages[:2])
    await receiver.ack(messages)
    await receiver.ack(messages[2])
    await receiver.ack([])
    await send(sender, 4)
    assert await left(await heir(), 1) == [4]


@beyond_mqtt
async def test_a_thousand_handlers_acknowledge_at_once_in_few_writes(pair, heir, store, monkeypatch):
    sender, receiver = pair
    for low in range(0, 1000, 50):
        await send(sender, *range(low, low + 50))
    held = await hold(receiver, 1000)
    transport = receiver.engine.transport
    commit, writes = transport.commit, []

    async def counted(*args, **kwargs):
        writes.append(args)
        await asyncio.sleep(0)  # as a round trip does
        await commit(*args, **kwargs)

    monkeypatch.setattr(transport, "commit", counted)
    turns = [message for _, message in sorted(held.items(), key=lambda item: item[0] * 619 % 1000)]
    await asyncio.gather(*(receiver.ack(message) for message in turns))
    assert len(writes) < 10
    assert await waiting(receiver) == 0
    assert await store.entries("group") == []
    await send(sender, 1000)
    assert await left(await heir(), 1) == [1000]


@beyond_mqtt
async def test_an_exit_by_close_leaves_what_was_not_acknowledged(pair, messagers):
    sender, receiver = pair
    await send(sender, 1, 2, 3)
    held = await hold(receiver, 3)
    await receiver.ack(held[2])
    await receiver.close()
    assert await left(await messagers(name="group", host=[1]), 2) == [1, 3]


@beyond_mqtt
async def test_a_reader_that_has_a_successor_acknowledges_nothing(pair, messagers):
    sender, receiver = pair
    await send(sender, 1, 2)
    held = await hold(receiver, 2)
    second = await messagers(name="group", host=[1])
    with pytest.raises(Fenced):
        await receiver.ack(held[2])
    assert await left(second, 2) == [1, 2]


@beyond_mqtt
async def test_what_was_fetched_elsewhere_is_not_acknowledged_here(pair, messagers):
    sender, receiver = pair
    other = await messagers(name="other", host=[2])
    await sender.send_message(sender.get_agent_chat_channel(2), {"n": 2})
    [foreign] = await fetch_all(other, 1)
    with pytest.raises(ConfigError, match="from 'other'"):
        await receiver.ack(foreign)
    for nonsense in (7, "x", [7], [None]):
        with pytest.raises(ConfigError, match="ack takes a Message"):
            await receiver.ack(nonsense)
    with pytest.raises(ConfigError, match="commit must be 'next'"):
        await receiver.fetch_messages(commit="never")


@beyond_mqtt
async def test_what_foreign_clients_publish_needs_no_ack(pair, store):
    sender, receiver = pair
    await store.publish(receiver.get_user_chat_channel(1), b'{"n":7}')
    [message] = await fetch_all(receiver, 1, commit="acked")
    await receiver.ack(message)
    await send(sender, 1)
    await receiver.ack(await fetch_all(receiver, 1, commit="acked"))
    assert await waiting(receiver) == 0


@beyond_mqtt
async def test_too_many_ranges_are_an_error_that_loses_nothing(pair, heir, monkeypatch):
    sender, receiver = pair
    monkeypatch.setattr(module, "MOST_RANGES", 2)
    await send(sender, *range(9))
    held = await hold(receiver, 9)
    await receiver.ack([held[2], held[4]])
    with pytest.raises(CommitFailed, match="acknowledged") as caught:
        await receiver.ack([held[6]])
    assert (caught.value.group, caught.value.messages) == ("group", 1)
    await receiver.ack([held[3], held[5], held[6]])  # which adjoin
    await receiver.ack([held[8]])
    assert await left(await heir(), 3) == [0, 1, 7]


@beyond_mqtt
async def test_a_commit_that_comes_late_takes_nothing_back(server, exp_id, pair):
    """The first one was cut, and comes again over another connection, behind the one that followed it."""
    sender, receiver = pair
    await send(sender, *range(5))
    held = await hold(receiver, 5)
    transport = receiver.engine.transport
    late, commit = [], transport.commit

    async def noted(*args, **kwargs):
        late.append((args, kwargs))
        await commit(*args, **kwargs)

    transport.commit = noted
    await receiver.ack(held[2])
    await receiver.ack(held[4])
    for args, kwargs in late:
        await commit(*args, **kwargs)
    assert await waiting(receiver) == 3


# -- dead letters ------------------------------------------------------------------------------------------------------


@beyond_mqtt
async def test_what_was_acknowledged_is_no_dead_letter_and_is_not_requeued(messagers, store, server):
    sender, nameless = await messagers(), await messagers(host=[1])
    await send(sender, 0, 1, 2, 3, 4)
    await send(sender, 5, 6)
    await send(sender, 7)
    held = await hold(nameless, 8)
    await nameless.ack([held[n] for n in (1, 3, 5, 6)])
    await nameless.close()
    assert len(await store.dead()) == 2  # the second frame was handled
    heir = await messagers(name="heir", host=[1])
    dead = (MemoryDeadLetters if isinstance(server, MemoryServer) else RedisDeadLetters)(heir.engine.transport)
    requeueing = Requeueing(dead, heir.exp_id)
    outcomes = [await requeueing.requeue(letter) for letter in await dead.page("", 10)]
    assert [outcome.messages for outcome in outcomes] == [3, 1]
    assert await left(heir, 4) == [0, 2, 4, 7]


@beyond_mqtt
async def test_the_end_of_a_lease_buries_only_what_is_not_acknowledged(messagers, store):
    sender, nameless = await messagers(), await messagers(host=[1])
    for n in range(4):
        await send(sender, n)
    held = await hold(nameless, 4)
    await nameless.ack([held[1], held[2]])
    await vanish(nameless)
    await store.expire(nameless.name)
    await sender.engine.transport.load_directory(-1)
    assert len(await store.dead()) == 2


# -- transactions ------------------------------------------------------------------------------------------------------


@beyond_mqtt
async def test_a_transaction_commits_what_it_fetched_and_nothing_that_is_out(pair, heir):
    sender, receiver = pair
    await send(sender, 1, 2, 3)
    held = await hold(receiver, 3)
    await receiver.ack(held[2])
    await send(sender, 4, 5)
    async with receiver.transaction() as tx:
        assert numbers(await tx.fetch_messages(complete=True)) == [4, 5]
        tx.state = b"9"
    second = await heir()
    async with second.transaction() as tx:
        assert (tx.state, numbers(await tx.fetch_messages(complete=True))) == (b"9", [1, 3])


@beyond_mqtt
async def test_a_transaction_that_fails_leaves_acknowledgements_as_they_were(pair, heir):
    sender, receiver = pair
    await send(sender, 1, 2, 3)
    held = await hold(receiver, 3)
    await receiver.ack(held[3])
    await send(sender, 4, 5)
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with receiver.transaction() as tx:
            assert numbers(await tx.fetch_messages(complete=True)) == [4, 5]
            raise ZeroDivisionError
    assert sorted(await hold(receiver, 2)) == [4, 5]
    await receiver.ack(held[1])
    assert await left(await heir(), 3) == [2, 4, 5]


# -- what a transport keeps --------------------------------------------------------------------------------------------


@beyond_mqtt
async def test_a_server_keeps_ranges_until_it_is_told_that_there_are_none(pair):
    sender, receiver = pair
    for n in range(3):
        await send(sender, n)
    transport, subscription = receiver.engine.transport, receiver.engine.subscription
    entries = [entry for entry, _ in await transport.read("group", "0-0", 9, 0.01)]
    ranges = encode_ranges([AckRange(Cursor(entries[0], 0), Cursor(entries[2], 0), 2)])
    epoch = subscription._epoch
    first = Cursor("0-0", 0)
    await transport.commit("group", epoch, first, messages=0, nbytes=0, acks=SelectiveAcks(ranges, 2))
    record = sender.engine.directory.records["group"]
    limits = Limits(10, 1000, 60.0, leased=False)

    async def take():
        version = (await transport.load_directory(-1)).version
        return await transport.listen(record, version, limits, owner="", epoch=None)

    listening = await take()
    assert (listening.cursor, listening.acked) == (first, ranges)
    await transport.commit(
        "group", listening.epoch, Cursor(entries[2], 0), messages=3, nbytes=0, acks=SelectiveAcks(b"", 0)
    )
    assert (await take()).acked == b""
    assert await waiting(sender) == 0


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
async def test_health_tells_what_is_acknowledged_apart_from_what_waits(pair, server, exp_id):
    sender, receiver = pair
    await send(sender, 1, 2, 3)
    held = await hold(receiver, 3)
    await receiver.ack([held[2], held[3]])
    facts = await asyncio.to_thread(ask_server, server, exp_id)
    [mailbox] = facts.kept.mailboxes
    assert (mailbox.messages, mailbox.acked) == (3, 2)
    assert "in which 1 messages wait" in str(check_kept(facts.kept)[0])


@only_mqtt
async def test_on_mqtt_single_messages_are_not_acknowledged(messagers):
    sender, receiver = await messagers(), await messagers(name="group", host=[1])
    await send(sender, 1)
    with pytest.raises(ConfigError, match="commit='acked'"):
        await receiver.fetch_messages(commit="acked")
    found = await fetch_all(receiver, 1)
    with pytest.raises(ConfigError, match="ack\\(\\) all of it"):
        await receiver.ack(found)
    await receiver.ack()
