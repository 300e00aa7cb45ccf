"""Agents that come, go and move: what waits for them moves along, in order, once."""

import asyncio
import random
from collections import defaultdict

import pytest
from support.contracts import WAIT_S, fetch_all, take_in, until, vanish
from support.receivers import hosted_by, is_withheld

from ray_messaging.errors import AlreadyExists, ConfigError, MoveFailed, UnknownName, UnknownSender


@pytest.fixture
def groups(messagers):
    """Open named messagers that host agents."""

    async def open_all(*hosted, **settings):
        return [
            await messagers(name=name, host=agents, **settings)
            for name, agents in zip(("east", "west", "north"), hosted, strict=False)
        ]

    return open_all


def contents(messages):
    return [(message.from_id, message.to_id, message.payload["n"]) for message in messages]


async def feed(west, count, ids=(1, 2)):
    """Have agent 3 send numbers to some agents by turns."""
    for n in range(count):
        await west.send_columns(3, [*ids], {"n": n})


@pytest.mark.parametrize("count", [10, 500], ids=["", "more than the inbox takes"])
async def test_what_waits_moves_along_in_order(groups, store, count):
    east, west = await groups([1, 2, "a"], [3], inbox_messages=100)
    await feed(west, count, [1, 2, "a"])
    await east.move_agents([1, "a"], to="west")
    await west.send_columns(3, [1, 2, "a"], {"n": count})
    moved = contents(await fetch_all(west, 2 * count + 2))
    for agent in (1, "a"):
        assert [row for row in moved if row[1] == agent] == [(3, agent, n) for n in range(count + 1)]
    assert contents(await fetch_all(east, count + 1)) == [(3, 2, n) for n in range(count + 1)]
    assert (hosted_by(east), hosted_by(west)) == ([2], [1, 3, "a"])
    await east.fetch_messages()
    await until(lambda: _is_empty(store, "east"))


async def test_a_move_waits_for_what_was_fetched(groups):
    east, west = await groups([1, 2], [3])
    await feed(west, 4)
    fetched = await east.fetch_messages(limit=3, timeout=WAIT_S, commit="acked")
    moving = asyncio.create_task(east.move_agents([1], to="west"))
    await until(lambda: _is_leaving(east, 1))
    rest = []
    while not rest:  # the message for agent 2 that is before the first one for agent 1
        rest = contents(await east.fetch_messages(commit="acked"))
    assert rest == [(3, 2, 1)]
    assert not len(await east.fetch_messages(commit="acked"))
    assert not moving.done()
    await east.ack(fetched)
    await moving
    assert contents(await fetch_all(west, 2)) == [(3, 1, 2), (3, 1, 3)]
    assert contents(await fetch_all(east, 2)) == [(3, 2, 2), (3, 2, 3)]


async def test_a_move_that_waits_in_vain_changes_nothing(groups):
    east, west = await groups([1, 2], [3])
    await feed(west, 3)
    fetched = await east.fetch_messages(limit=1, timeout=WAIT_S, commit="acked")
    with pytest.raises(MoveFailed, match="not committed") as caught:
        await east.move_agents([1], to="west", timeout=0.5)
    assert (caught.value.group, caught.value.messages) == ("east", 1)
    await east.ack(fetched)
    assert contents(await fetch_all(east, 5)) == [(3, 2, 0), (3, 1, 1), (3, 2, 1), (3, 1, 2), (3, 2, 2)]
    assert not len(await west.fetch_messages())
    await east.send(1, 3, {"n": 0})


async def test_what_waits_for_a_removed_agent_becomes_dead_letters(groups, store):
    east, west = await groups([1, 2], [3])
    await feed(west, 3)
    await east.remove_agents([1])
    assert contents(await fetch_all(east, 3)) == [(3, 2, n) for n in range(3)]
    letters = await store.dead()
    assert letters
    assert {(mailbox, reason) for mailbox, reason, _ in letters} == {
        ("east", "its recipient was removed from group 'east'")
    }
    assert (await west.send(3, 1, {})).fate == "undeliverable"
    await west.add_agents([1])
    assert await east.send(2, 1, {"n": 9})
    assert contents(await fetch_all(west, 1)) == [(2, 1, 9)]


async def test_agents_that_were_added_are_hosted(groups):
    east, west = await groups([1], [2])
    await east.add_agents([3, "b", 1])
    assert await west.send(2, "b", {"n": 0}, subtopic="user-chat")
    assert contents(await fetch_all(east, 1)) == [(2, "b", 0)]
    with pytest.raises(AlreadyExists, match="is in group 'west'") as caught:
        await east.add_agents([4, 2])
    assert (caught.value.value, caught.value.owner) == (2, "west")
    assert hosted_by(east) == [1, 3, "b"]


async def test_impossible_moves(groups):
    east, west = await groups([1, 2], [3], strict_senders=True)
    for ids, to, error, match in [
        ([7], "west", UnknownName, "hosts no agent 7"),
        ([1], "south", UnknownName, "no group 'south'"),
        ([1], "east", AlreadyExists, "in group 'east' already"),
        ([3], "west", UnknownName, "hosts no agent 3"),
    ]:
        with pytest.raises(error, match=match):
            await east.move_agents(ids, to=to)
    assert await east.send(1, 3, {})
    await west.fetch_messages(timeout=WAIT_S, commit="acked")
    first = asyncio.create_task(west.move_agents([3], to="east"))
    await until(lambda: _is_leaving(west, 3))
    with pytest.raises(MoveFailed, match="another call"):
        await west.move_agents([3], to="east")
    await west.ack()
    await first
    with pytest.raises(UnknownSender):
        await west.send(3, 1, {})
    await until(lambda: _hosts(east, 3))
    assert await east.send(3, 1, {})


async def test_a_successor_hosts_what_moved_to_it(groups, messagers):
    east, west = await groups([1, 2], [3])
    await west.send_columns(3, [1, 2, 1, 2], {"n": 0})
    await vanish(west)
    await east.move_agents([1], to="west")
    west = await messagers(name="west", host=[3])
    await east.send(2, 1, {"n": 1})
    assert contents(await fetch_all(west, 3)) == [(3, 1, 0), (3, 1, 0), (2, 1, 1)]
    await vanish(east)
    with pytest.raises(AlreadyExists, match="is in group 'west'"):
        await messagers(name="east", host=[1, 2])
    east = await messagers(name="east", host=[2])
    assert contents(await fetch_all(east, 2)) == [(3, 2, 0), (3, 2, 0)]


async def test_a_successor_that_does_not_receive_yet_lets_no_agent_go(groups, messagers):
    east, west = await groups([1, 2], [3])
    await feed(west, 1)
    await vanish(east)
    east = await messagers(name="east")
    with pytest.raises(ConfigError, match="does not receive messages yet"):
        await east.remove_agents([1])
    await east.host_agents([1, 2], ["agent-chat"])
    assert contents(await fetch_all(east, 2)) == [(3, 1, 0), (3, 2, 0)]


async def test_a_move_while_a_transaction_is_open(groups):
    east, west = await groups([1, 2], [3])
    await feed(west, 4)
    async with east.transaction() as tx:
        taken = await tx.fetch_messages(limit=2, timeout=WAIT_S)
        moving = asyncio.create_task(east.move_agents([1], to="west"))
        await asyncio.sleep(0)
        tx.send_message(west.get_agent_chat_channel(3), {"n": 7}, from_id=2)
    await moving
    assert contents(taken) == [(3, 1, 0), (3, 2, 0)]
    found = contents(await fetch_all(west, 4))
    assert [n for _, to, n in found if to == 1] == [1, 2, 3]
    assert (2, 3, 7) in found
    assert contents(await fetch_all(east, 3)) == [(3, 2, n) for n in range(1, 4)]


async def _is_leaving(messager, agent):
    return is_withheld(messager, agent)


async def _hosts(messager, agent):
    return agent in hosted_by(messager)


async def _is_empty(store, mailbox):
    return not await store.waiting(mailbox)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 3))])
async def test_nothing_is_lost_doubled_or_out_of_order_while_agents_move(groups, seed):
    chance = random.Random(seed)
    everybody = [*groups_of(range(60))]
    parties = await groups(*everybody, inbox_messages=200)
    sent, got = defaultdict(int), defaultdict(list)
    done = asyncio.Event()

    async def send(party):
        for _ in range(60):
            pairs = [(100 + chance.randrange(3), chance.randrange(60)) for _ in range(40)]
            numbers = []
            for pair in pairs:
                numbers.append({"n": sent[party.name, *pair]})
                sent[party.name, *pair] += 1
            from_ids, to_ids = [a for a, _ in pairs], [b for _, b in pairs]
            receipts = await party.send_columns(from_ids, to_ids, [n | {"by": party.name} for n in numbers])
            assert {str(receipt.fate) for receipt in receipts} == {"delivered"}

    async def fetch(party):
        while not done.is_set() or len(await party.fetch_messages(timeout=0.0, commit="acked")):
            for message in await party.fetch_messages(limit=chance.randrange(1, 90), timeout=0.02):
                got[message.payload["by"], message.from_id, message.to_id].append(message.payload["n"])

    async def move():
        homes = [set(agents) for agents in everybody]
        for _ in range(12):
            source, target = chance.sample(range(3), 2)
            some = chance.sample(sorted(homes[source]), len(homes[source]) // 3)
            await parties[source].move_agents(some, to=parties[target].name)
            homes[source] -= set(some)
            homes[target] |= set(some)

    fetching = [asyncio.create_task(fetch(party)) for party in parties]
    async with asyncio.timeout(60):
        await asyncio.gather(*map(send, parties), move())
        await until(lambda: sum(map(len, got.values())) >= sum(sent.values()))
    done.set()
    await asyncio.gather(*fetching)
    assert {pair: [*range(count)] for pair, count in sent.items()} == got


def groups_of(ids):
    for part in range(3):
        yield [each for each in ids if each % 3 == part]


async def test_what_is_read_ahead_moves_too(groups):
    east, west = await groups([1, 2], [3])
    await west.send_columns([3] * 6, [1, 2] * 3, [{"n": n} for n in range(6)])
    await take_in(east, 6)
    assert len(await east.fetch_messages(limit=1)) == 1
    await east.ack()
    await east.move_agents([1], to="west")
    assert contents(await fetch_all(west, 2)) == [(3, 1, 2), (3, 1, 4)]
    assert contents(await fetch_all(east, 3)) == [(3, 2, 1), (3, 2, 3), (3, 2, 5)]
