"""Agents that move between mailboxes on three servers, and faults between the calls of a move."""

import asyncio
import contextlib
import functools
import itertools
import random
from collections import defaultdict

import pytest
from faults.proxy import Proxy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.contracts import WAIT_S, client_of, fetch_all, store_of, until, vanish
from support.shard_faults import Cut

from ray_messaging import (
    AlreadyExists,
    ConnectionFailed,
    MailboxFull,
    Messager,
    MessagingError,
    MoveFailed,
    OutcomeUnknown,
    Outgoing,
    TransitError,
    UnknownName,
)
from ray_messaging.addressing.channels import Keys
from ray_messaging.transports.sharded.config import ShardsConfig

NAMES = ("east", "west", "north")  # on shard 1, 2 and 0
MOVER, STAYS, HOST, USER = 1, 2, 3, 4


@pytest.fixture
def server(shards_config):
    return shards_config


async def town(messagers):
    """Open the groups east with an agent that is to move, west, and north, which sends."""
    found = []
    for name, agents in zip(NAMES, ([MOVER, STAYS], [HOST], [USER]), strict=True):
        found.append(await messagers(name=name, host=agents))
    assert [found[-1].engine.transport.home(name) for name in NAMES] == [1, 2, 0]
    return found


async def send(sender, number, agents=(MOVER, STAYS)):
    receipts = await sender.send_columns(USER, list(agents), [{"n": number}] * len(agents))
    assert set(receipts.fates.tolist()) == {"delivered"}


def contents(messages):
    return [(message.to_id, message.payload["n"]) for message in messages]


async def drained(messager):
    """Fetch all that is there."""
    found = []
    while len(some := await messager.fetch_messages(timeout=0, complete=True)):
        found += contents(some)
    return found


async def host_of(messager, agent):
    """Return the mailbox of an agent, as the directory has it now."""
    await messager.engine.frame_sender.reload()
    return messager.engine.directory.mailboxes_of(agent, "agent-chat")


CALLS = [
    ("ask_for_room", False),
    ("release_agents", False),
    ("release_agents", True),
    ("receive_agents", False),
    ("receive_agents", True),
    ("record_departure", False),
    ("record_departure", True),
    ("finish_departure", False),
    ("finish_departure", True),
]
COMMITTED = CALLS[2:]


@pytest.mark.parametrize(("script", "after"), CALLS)
async def test_a_successor_ends_a_move_where_a_process_ends(messagers, script, after):
    east, west, north = await town(messagers)
    for number in range(3):
        await send(north, number)
    cut = Cut(east, script, after=after)
    with pytest.raises(MessagingError, match="cut short"):
        await east.move_agents([MOVER], to="west")
    assert cut.hit
    await vanish(east)
    sending = asyncio.create_task(send(north, 3))  # it waits where the mailbox takes nothing
    await asyncio.sleep(0)
    moved = (script, after) in COMMITTED
    if moved:
        with pytest.raises(AlreadyExists, match="lives in group 'west'"):
            await messagers(name="east", host=[MOVER, STAYS])
    east = await messagers(name="east", host=[STAYS] if moved else [MOVER, STAYS])
    await sending
    await send(north, 4)
    assert await host_of(north, MOVER) == (("west" if moved else "east"),)
    there = [(MOVER, n) for n in range(5)] if moved else []
    here = [(to, n) for n in range(5) for to in (MOVER, STAYS) if to == STAYS or not moved]
    assert contents(await fetch_all(east, len(here))) == here
    assert contents(await fetch_all(west, len(there))) == there
    assert await drained(west) == await drained(east) == []


async def test_the_target_ends_the_move_of_a_process_that_is_no_more(messagers):
    """It has the agents' messages: it enters them in the directory itself before it reads on."""
    east, west, north = await town(messagers)
    await send(north, 0)
    Cut(east, "record_departure")
    with pytest.raises(MessagingError, match="cut short"):
        await east.move_agents([MOVER], to="west")
    await vanish(east)
    assert contents(await fetch_all(west, 1)) == [(MOVER, 0)]
    assert MOVER in west.subscription.hosted
    await send(north, 1, [MOVER])
    assert contents(await fetch_all(west, 1)) == [(MOVER, 1)]


async def test_a_successor_finds_in_the_directory_which_agents_are_left(messagers):
    east, west, north = await town(messagers)
    await send(north, 0)
    Cut(east, "receive_agents")
    with pytest.raises(MessagingError, match="cut short"):
        await east.move_agents([MOVER], to="west")
    await vanish(east)
    east = await messagers(name="east")
    left = east.directory.records["east"].agents()
    assert [*left] == [STAYS]
    await east.host_agents(left, ["agent-chat"])
    assert contents(await fetch_all(east, 1)) == [(STAYS, 0)]
    assert contents(await fetch_all(west, 1)) == [(MOVER, 0)]


async def test_a_late_part_of_a_move_changes_nothing_once_its_agents_have_moved_on(messagers, monkeypatch):
    east, west, north = await town(messagers)
    await send(north, 0)
    late = []
    transport = east.engine.transport
    for shard in transport.shards:
        monkeypatch.setattr(shard.link, "script", noting(shard.link.script, late))
    await east.move_agents([MOVER], to="west")
    monkeypatch.undo()
    assert contents(await fetch_all(west, 1)) == [(MOVER, 0)]
    await west.ack()
    await west.move_agents([MOVER], to="east")
    await send(north, 1)
    for call in late:
        await call()
    await send(north, 2)
    assert await host_of(north, MOVER) == ("east",)
    assert [(to, n) for to, n in contents(await fetch_all(east, 5)) if to == MOVER] == [(MOVER, 1), (MOVER, 2)]
    assert await drained(west) == []


def noting(script, calls):
    parts = {"receive_agents", "record_departure", "finish_departure", "release_agents"}

    async def noted(name, *args, **options):
        if name in parts:
            calls.append(lambda: script(name, *args, **options))
        return await script(name, *args, **options)

    return noted


async def test_a_removed_target_leaves_dead_letters(messagers, store_of_shards):
    east, west, north = await town(messagers)
    await send(north, 0)
    Cut(east, "receive_agents")
    with pytest.raises(MessagingError, match="cut short"):
        await east.move_agents([MOVER], to="west")
    await vanish(east)
    await west.close()
    await north.engine.transport.remove("west", None)
    east = await messagers(name="east", host=[STAYS])
    assert (await north.send(USER, MOVER, {"n": 1})).fate == "undeliverable"
    assert contents(await fetch_all(east, 1)) == [(STAYS, 0)]
    assert [(mailbox, reason) for mailbox, reason, _ in await store_of_shards.dead()] == [
        ("west", "the mailbox was removed")
    ]


@pytest.fixture
async def store_of_shards(server, exp_id):
    opened = store_of(server, exp_id)
    yield opened
    await opened.close()


async def test_a_mailbox_that_is_removed_ends_its_move_first(messagers):
    east, west, north = await town(messagers)
    await send(north, 0)
    Cut(east, "receive_agents")
    with pytest.raises(MessagingError, match="cut short"):
        await east.move_agents([MOVER], to="west")
    await vanish(east)
    assert await north.engine.transport.remove("east", None) == 1
    assert contents(await fetch_all(west, 1)) == [(MOVER, 0)]
    assert await host_of(north, MOVER) == ("west",)


async def test_groups_move_agents_to_each_other_at_once(messagers):
    east, west, north = await town(messagers)
    for n in range(6):
        await send(north, n, [MOVER, STAYS, HOST])
        moves = [east.move_agents([MOVER], to="west"), west.move_agents([HOST], to="east")]
        await asyncio.gather(*moves)
        await send(north, n, [MOVER, STAYS, HOST])
        await asyncio.gather(west.move_agents([MOVER], to="east"), east.move_agents([HOST], to="west"))
    found = await drained(east) + await drained(west)
    wanted = sorted(n for n in range(6) for _ in range(2))
    for agent in (MOVER, STAYS, HOST):
        assert [n for to, n in found if to == agent] == wanted


# -- transactions -----------------------------------------------------------------------------------------------------


async def transact(sender, number):
    async with sender.transaction() as tx:
        tx.send_messages([Outgoing.to_agent(agent, {"n": number}, from_id=USER) for agent in (MOVER, STAYS, HOST)])


async def test_agents_wait_for_a_transaction_that_is_committed_and_not_there(messagers):
    east, west, north = await town(messagers)
    await transact(north, 0)
    cut = Cut(north, "relay_frames", shard=1)
    with pytest.raises(OutcomeUnknown):
        await transact(north, 1)
    assert cut.hit
    await vanish(north)
    with pytest.raises(MoveFailed, match="a transaction that may be committed"):
        await east.move_agents([MOVER], to="west", timeout=0.2)
    north = await messagers(name="north", host=[USER])
    await east.move_agents([MOVER], to="west")
    await transact(north, 2)
    assert [n for to, n in contents(await fetch_all(west, 6)) if to == MOVER] == [0, 1, 2]
    assert contents(await fetch_all(east, 3)) == [(STAYS, n) for n in range(3)]


async def promised(server, exp_id, mailbox):
    """Tell for each shard whether somebody may still write to a mailbox by a transaction."""
    found = []
    for each in server.servers:
        async with client_of(each) as client:
            found.append(await client.exists(Keys(exp_id).prefix + f"asking:{mailbox}"))
    return found


async def test_agents_do_not_wait_for_a_transaction_that_was_refused(messagers, server, exp_id):
    east, west, _ = await town(messagers)
    await messagers(name="full", host=[9], mailbox_messages=4)
    payer = await messagers(name="payer", host=[USER + 1], send_timeout_s=0.2)
    await payer.send_columns(USER + 1, [9] * 4, [{"n": 0}] * 4)
    with pytest.raises(MailboxFull):  # noqa: PT012 - the block is what is tested
        async with payer.transaction() as tx:
            for agent in (HOST, 9):
                tx.send_message(payer.get_agent_chat_channel(agent), {"n": 0}, USER + 1)
    assert await promised(server, exp_id, "west") == [0, 0, 0]
    await west.move_agents([HOST], to="east", timeout=5)
    assert await payer.send(USER + 1, HOST, {"n": 1})
    assert contents(await fetch_all(east, 1)) == [(HOST, 1)]


async def test_transactions_write_to_agents_that_move_once_and_in_order(messagers):
    """Each group has a sender with transactions beside it; agents wander as long as these go on."""
    groups = {name: await messagers(name=name, host=range(at, 30, 3)) for at, name in enumerate(NAMES)}
    banks = [await messagers(name=f"bank-{n}", host=[100 + n]) for n in range(3)]
    assert {bank.engine.transport.home(bank.name) for bank in banks} == {0, 1, 2}
    town, going = Wanderers(groups, random.Random(2)), [True] * 3

    async def pay(bank, by):
        for _ in range(12):
            agents = sorted({town.chance.randrange(30) for _ in range(12)})
            async with bank.transaction() as tx:
                for agent in agents:
                    tx.send_message(bank.get_agent_chat_channel(agent), {"n": town.sent[by, agent]}, by)
                    town.sent[by, agent] += 1
        going[by - 100] = False

    paying = [asyncio.create_task(pay(bank, 100 + n)) for n, bank in enumerate(banks)]
    await town.run(lambda: town.moved > 40 and not any(going), lambda: None, talking=paying)
    assert [await promised_to(bank) for bank in banks] == [0, 0, 0]


async def promised_to(sender):
    """Count the mailboxes to which a sender may still write by a transaction."""
    counts = []
    for shard in sender.engine.transport.shards:
        fields = await shard.link.command("HKEYS", shard.keys.sender(sender.name))
        counts.append(sum(field.startswith(b"a:") for field in fields))
    return sum(counts)


# -- any call ---------------------------------------------------------------------------------------------------------

POINTS = st.tuples(st.sampled_from([script for script, after in CALLS if after]), st.integers(1, 2), st.booleans())
LIVES = st.lists(
    st.tuples(st.none() | POINTS, st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES), min_size=1, max_size=3)),
    min_size=1,
    max_size=5,
)
AGENTS = (0, 1, 2, 10, 11, 12)  # those from 10 on stay where they are
_experiments = itertools.count()


class Town:
    """Three groups with agents that move, and a user that writes to all of them."""

    def __init__(self, server, exp_id):
        self.server, self.exp_id = server, exp_id
        self.groups, self.found, self.sent = {}, defaultdict(list), 0

    async def open(self, name):
        messager = self.groups[name] = Messager(self.server, self.exp_id, name=name)
        await messager.init()
        if name in NAMES:
            at = NAMES.index(name)
            try:
                await messager.host_agents([at, at + 10], ["agent-chat"])
            except AlreadyExists:  # one has moved: the directory knows which ones are here
                await messager.host_agents([], ["agent-chat"])

    async def move(self, name, targets, point):
        """Move one agent after the other to a group, until its process ends at a call."""
        mover = self.groups[name]
        if point is not None:
            Cut(mover, point[0], nth=point[1], after=point[2])
        with contextlib.suppress(MessagingError):
            for target in targets:
                some = [agent for agent in mover.subscription.hosted if agent < 10]
                if target != name and some:
                    await mover.move_agents(some[:1], to=target)

    async def succeed(self, name):
        """Replace the process of a group, while the user sends."""
        await vanish(self.groups[name])
        sending = asyncio.create_task(self.groups["user"].send_columns(None, AGENTS, {"n": self.sent}))
        await self.open(name)
        assert set((await sending).fates.tolist()) == {"delivered"}
        self.sent += 1

    async def take_all(self):
        for name in NAMES:
            for to, n in await drained(self.groups[name]):
                self.found[to].append(n)
            await self.groups[name].ack()

    async def close(self):
        for messager in self.groups.values():
            await messager.close()
        await asyncio.sleep(0.01)  # the loop ends with this: sockets close in its next turn


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(lives=LIVES, fetching=st.booleans())
def test_each_message_comes_once_and_in_order_wherever_a_mover_ends(lives, fetching, server):
    """Groups move their agents on, and their processes end, some of them at a call of a move."""
    asyncio.run(_live(lives, fetching, Town(server, f"moves-{next(_experiments)}")))


async def _live(lives, fetching, town):
    for name in ("user", *NAMES):
        await town.open(name)
    for point, name, targets in lives:
        await town.move(name, targets, point)
        await town.succeed(name)
        if fetching:
            await town.take_all()
    await town.take_all()
    await town.close()
    assert town.found == {agent: [*range(town.sent)] for agent in AGENTS}


# -- servers that are killed ------------------------------------------------------------------------------------------


def restart(process):
    process.kill()
    process.start()


class Wanderers:
    """Groups with agents that move and are talked to, under a chance."""

    def __init__(self, groups, chance):
        self.groups, self.chance = groups, chance
        self.sent, self.got, self.stop = defaultdict(int), defaultdict(list), asyncio.Event()
        self.moved = 0

    async def talk(self, group, by):
        while not self.stop.is_set():
            agents = [self.chance.randrange(30) for _ in range(20)]
            payloads = []
            for agent in agents:
                payloads.append({"n": self.sent[by, agent]})
                self.sent[by, agent] += 1
            receipts = await group.send_columns(by, agents, payloads)
            assert set(receipts.fates.tolist()) == {"delivered"}

    async def read(self, group):
        while True:
            with contextlib.suppress(TransitError):
                for message in await group.fetch_messages(limit=self.chance.randrange(1, 60), timeout=0.05):
                    self.got[message.from_id, message.to_id].append(message.payload["n"])

    async def wander(self, enough):
        while not enough():
            source, target = self.chance.sample(NAMES, 2)
            hosted = sorted(self.groups[source].subscription.hosted)
            some = self.chance.sample(hosted, min(4, len(hosted) // 2))
            with contextlib.suppress(TransitError, UnknownName):
                await self.groups[source].move_agents(some, to=target)
                self.moved += len(some)

    async def run(self, enough, ends, talking=()):
        """Let agents move until that is enough; then all that was sent has come."""
        reading = [asyncio.create_task(self.read(group)) for group in self.groups.values()]
        talking = talking or [
            asyncio.create_task(self.talk(group, 100 + at)) for at, group in enumerate(self.groups.values())
        ]
        async with asyncio.timeout(10 * WAIT_S):
            await self.wander(enough)
            ends()
            self.stop.set()
            await asyncio.gather(*talking)
            await until(lambda: asyncio.sleep(0, sum(map(len, self.got.values())) >= sum(self.sent.values())))
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        assert self.got == {pair: [*range(count)] for pair, count in self.sent.items()}


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("victims", [(0,), (1,), (0, 1, 2)], ids=["the control server", "another server", "any server"])
async def test_agents_move_while_servers_are_killed(processes, opener, victims):
    with contextlib.ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(process.config, seed=n)) for n, process in enumerate(processes)]
        config = ShardsConfig(servers=tuple(proxy.config for proxy in proxies))
        groups = {}
        for at, name in enumerate(NAMES):
            groups[name] = await opener(config, name=name, host=range(at, 30, 3), send_timeout_s=60)
        town = Wanderers(groups, random.Random(1))
        for victim in victims:
            proxies[victim].lose_some(150 * len(victims), functools.partial(restart, processes[victim]))
        await town.run(
            lambda: town.moved > 60 and all(proxies[victim].cuts > 2 for victim in victims),
            lambda: [proxy.spare() for proxy in proxies],
        )
        for group in groups.values():  # before their servers
            await group.close()


@pytest.mark.long
async def test_a_move_to_a_server_that_is_away_changes_nothing(processes, own_shards, opener):
    east, _, north = await town(lambda **more: opener(own_shards, send_timeout_s=0.5, **more))
    await send(north, 0)
    processes[2].kill()
    with pytest.raises(ConnectionFailed):
        await east.move_agents([MOVER], to="west", timeout=1)
    assert contents(await fetch_all(east, 2)) == [(MOVER, 0), (STAYS, 0)]
    processes[2].start()
    await east.ack()
    await east.move_agents([MOVER], to="west", timeout=60)
    assert await host_of(north, MOVER) == ("west",)
    for messager in opener.opened:
        await messager.close()
