"""Dead letters on three servers: requeued to mailboxes of other shards, each message once, wherever a process ends."""

import asyncio
import random
import time
from contextlib import ExitStack

import pytest
from faults.proxy import Proxy
from support.contracts import WAIT_S, client_of, fetch_all, vanish
from support.shard_faults import Cut

from ray_messaging import MessagingError, UnknownName
from ray_messaging.addressing.channels import Keys
from ray_messaging.cluster.handles.dead_letters import DeadLetters
from ray_messaging.transports.dead_letter_store import LETTER_BYTES, Requeued, Returned
from ray_messaging.transports.requeueing import Requeueing
from ray_messaging.transports.sharded.backend import ShardedStores

AGENT, OTHER, NEAR, USER = 1, 2, 3, 4
COUNT = 4


@pytest.fixture
def server(shards_config):
    return shards_config


class Town:
    """A sender, and the dead letters of a group that is no more: the first one is on shard 1, the next on 2 and 0."""

    def __init__(self, messagers, exp_id):
        self.messagers, self.exp_id = messagers, exp_id
        self.sender = None

    async def begin(self, *, agents=(AGENT,), count=COUNT):
        east = await self.messagers(name="east", host=list(agents))
        self.sender = await self.messagers()
        for n in range(count):
            await self.send(n, agents)
        await self.remove(east)
        return self

    async def send(self, n, agents=(AGENT,)):
        receipts = await self.sender.send_columns(USER, list(agents), [{"n": n}] * len(agents))
        assert set(receipts.fates.tolist()) == {"delivered"}

    async def open(self, name, *agents, **options):
        found = await self.messagers(name=name, host=list(agents), **options)
        await self.sender.engine.frame_sender.reload()
        return found

    async def remove(self, messager):
        await vanish(messager)
        await self.sender.engine.transport.remove(messager.name, None)

    def home(self, name):
        return self.sender.engine.transport.home(name)

    def store(self, messager=None):
        return ShardedStores((messager or self.sender).engine.transport).dead_letters

    async def listed(self):
        """Return all letters, while others may change them."""
        store, found, after = self.store(), [], ""
        while page := await store.page(after, 100):
            found += page
            after = page[-1].id
        return found

    async def letters(self):
        """Return all letters; the counts are theirs."""
        found, facts = await self.listed(), await self.store().facts()
        assert facts == (len(found), sum(len(letter.frame) + LETTER_BYTES for letter in found), 0, 0)
        return found

    async def requeue(self, messager=None):
        """Requeue all letters; return the outcomes."""
        requeueing = Requeueing(self.store(messager), self.exp_id)
        return [await requeueing.requeue(letter) for letter in await self.listed()]


@pytest.fixture
def town(messagers, exp_id):
    return Town(messagers, exp_id)


async def drained(messager):
    """Fetch and acknowledge all that is there."""
    found = []
    while len(some := await messager.fetch_messages(timeout=0, complete=True)):
        found += [(message.to_id, message.payload["n"]) for message in some]
        await messager.ack()
    return found


def numbered(agent=AGENT, count=COUNT):
    return [(agent, n) for n in range(count)]


async def test_the_letters_of_a_lost_group_come_to_a_new_one_on_another_shard(town):
    await town.begin()
    west = await town.open("west", AGENT)
    assert {letter.home for letter in await town.letters()} == {1}
    assert town.home("west") == 2
    assert await town.requeue() == [(1, 0, "", False)] * COUNT
    await town.send(COUNT)
    assert await drained(west) == numbered(count=COUNT + 1)
    assert await town.letters() == []


async def test_a_letter_is_taken_apart_for_mailboxes_of_all_shards(town):
    await town.begin(agents=(AGENT, OTHER, NEAR, USER), count=2)
    groups = [await town.open(name, agent) for name, agent in (("west", AGENT), ("north", OTHER), ("near", NEAR))]
    assert [town.home(group.name) for group in groups] == [2, 0, 1]
    outcomes = await town.requeue()
    assert [outcome[:2] for outcome in outcomes] == [(3, 1)] * 2
    assert "nobody listens for the others" in outcomes[0].why
    for group, agent in zip(groups, (AGENT, OTHER, NEAR), strict=True):
        assert await drained(group) == numbered(agent, 2)
    assert [letter.mailbox for letter in await town.letters()] == ["east"] * 2
    late = await town.open("late", USER)
    assert await town.requeue() == [(1, 0, "", False)] * 2
    assert await drained(late) == numbered(USER, 2)


CALLS = [
    ("receive_letter", 1, False),  # which asks
    ("requeue", 1, False),
    ("requeue", 1, True),
    ("receive_letter", 2, False),
    ("receive_letter", 2, True),
    ("end_forward", 1, False),
    ("end_forward", 1, True),
]


async def cut_short(town, script, nth, *, after):
    """Let a process end as it requeues."""
    mortal = await town.messagers()
    cut = Cut(mortal, script, nth=nth, after=after)
    with pytest.raises(MessagingError, match="cut short"):
        await town.requeue(mortal)
    assert cut.hit
    await vanish(mortal)


@pytest.mark.parametrize(("script", "nth", "after"), CALLS)
async def test_another_process_ends_what_one_began(town, script, nth, after):
    await town.begin()
    west = await town.open("west", AGENT)
    await cut_short(town, script, nth, after=after)
    await town.requeue()
    await town.requeue()
    assert await drained(west) == numbered()
    assert await town.letters() == []


@pytest.mark.parametrize(("script", "nth", "after"), CALLS)
async def test_a_mailbox_that_goes_between_the_calls_loses_and_doubles_nothing(town, script, nth, after):
    await town.begin()
    await town.open("west", AGENT)
    await cut_short(town, script, nth, after=after)
    await town.sender.engine.transport.remove("west", None)
    north = await town.open("north", AGENT)
    assert town.home("north") == 0
    await town.requeue()
    await town.requeue()
    first, *others = numbered()
    came = CALLS.index((script, nth, after)) >= CALLS.index(("receive_letter", 2, True))  # so it is a letter of shard 2
    assert await drained(north) == ([*others, first] if came else [first, *others])
    assert await town.letters() == []


async def test_a_letter_that_is_under_way_goes_where_its_agents_have_gone_meanwhile(town):
    """It was given up for the former mailbox, where a late call writes nothing."""
    await town.begin(count=1)
    west, north = await town.open("west", AGENT, OTHER), await town.open("north", USER)
    await cut_short(town, "receive_letter", 2, after=False)
    (letter,) = await town.letters()
    assert (letter.mailbox, letter.to, letter.shard) == ("east", "west", 2)
    late, frames = town.store(), [Returned("west", 1, letter.frame)]
    version = (await late.listeners(1)).version
    await west.move_agents([AGENT], to="north")
    assert await late.forwarding.deliver(letter, version, frames) is Requeued.STALE_DIRECTORY
    assert await town.requeue() == [(1, 0, "", False)]
    version = (await late.listeners(1)).version
    assert await late.forwarding.deliver(letter, version, frames) is Requeued.GIVEN_UP
    assert await late.forwarding.end(letter, delivered=False) == ""
    assert await drained(north) == numbered(count=1)
    assert await drained(west) == await town.letters() == []


async def test_a_late_call_writes_nothing_again(town):
    await town.begin(count=2)
    west = await town.open("west", AGENT)
    await cut_short(town, "receive_letter", 2, after=False)
    _, letter = await town.letters()  # the first one of them, which is the last one now
    store = town.store()
    frames = [Returned("west", 1, letter.frame)]
    version = (await store.listeners(1)).version
    assert await store.forwarding.deliver(letter, version, frames) is Requeued.DONE
    assert await store.forwarding.deliver(letter, version, frames) is Requeued.DONE
    assert await store.forwarding.give_up(letter) is Requeued.DONE
    await town.requeue()
    assert await store.forwarding.deliver(letter, version, frames) is Requeued.MISSING
    assert await store.forwarding.give_up(letter) is Requeued.MISSING
    assert await store.forwarding.end(letter, delivered=True) == ""
    assert await drained(west) == numbered(count=2)
    assert await town.letters() == []


async def test_many_requeue_the_same_letters_at_once(town):
    await town.begin(agents=(AGENT, OTHER, NEAR), count=20)
    groups = [await town.open(name, agent) for name, agent in (("west", AGENT), ("north", OTHER), ("near", NEAR))]
    stores = [await town.messagers() for _ in range(3)]
    outcomes = await asyncio.gather(*(town.requeue(messager) for messager in stores))
    assert sum(outcome.messages for found in outcomes for outcome in found) == 60
    for group, agent in zip(groups, (AGENT, OTHER, NEAR), strict=True):
        assert await drained(group) == numbered(agent, 20)
    assert await town.letters() == []


async def test_a_full_mailbox_on_another_shard_takes_no_part_of_a_letter(town):
    await town.begin(agents=(AGENT, NEAR), count=2)
    west, near = await town.open("west", AGENT, mailbox_messages=1), await town.open("near", NEAR)
    await town.send(9)
    before = await town.letters()
    for outcome in await town.requeue():
        assert (outcome.messages, outcome.left, outcome.full) == (0, 2, True)
        assert "'west' has no room" in outcome.why
    assert (await town.letters(), await drained(near)) == (before, [])
    assert await drained(west) == [(AGENT, 9)]
    assert [outcome[:2] for outcome in await town.requeue()] == [(2, 0), (0, 2)]
    assert await drained(west) == [(AGENT, 0)]
    assert await town.requeue() == [(2, 0, "", False)]
    assert (await drained(west), await drained(near)) == ([(AGENT, 1)], numbered(NEAR, 2))
    assert await town.letters() == []


async def test_no_letter_overtakes_one_that_waits_for_room_on_its_way(town):
    await town.begin(count=3)
    west = await town.open("west", AGENT, mailbox_messages=1)
    await cut_short(town, "receive_letter", 2, after=False)
    await town.send(9)
    for outcome in await town.requeue():
        assert (outcome.messages, outcome.left, outcome.full) == (0, 1, True)
        assert "'west' has no room" in outcome.why
    got = await drained(west)
    for _ in range(3):
        await town.requeue()
        got += await drained(west)
    assert got == [(AGENT, n) for n in (9, 0, 1, 2)]


async def test_a_letter_that_is_under_way_may_be_dropped(town):
    await town.begin(count=2)
    west = await town.open("west", AGENT)
    await cut_short(town, "receive_letter", 2, after=False)
    *_, letter = await town.letters()
    assert await town.store().drop([letter.id]) == 1
    assert await town.requeue() == [(1, 0, "", False)]
    assert await drained(west) == [(AGENT, 1)]
    assert await town.letters() == []


async def test_a_mailbox_of_another_shard_that_has_its_own_copy_gets_no_second_one(town):
    """Each shard counts its own mailboxes: the other one has had more of them."""
    first, town.sender = await town.messagers(name="first", listen=["news"]), await town.messagers()
    for _ in range(3):
        await town.remove(await town.messagers(name="stays", listen=["news"]))
    stays = await town.messagers(name="stays", listen=["news"])
    assert [town.home(name) for name in ("first", "stays")] == [1, 2]
    assert (await town.sender.send_message("news", {"n": 1})).fate == "delivered"
    await town.remove(first)
    (outcome,) = await town.requeue()
    assert "may have these messages already" in outcome.why
    comes = [await town.messagers(name=name, listen=["news"]) for name in ("x", "y", "z")]
    assert await town.requeue() == [(1, 0, "", False)]
    for messager in (stays, *comes):
        assert [message.payload["n"] for message in await fetch_all(messager, 1)] == [1]
        assert await drained(messager) == []


async def test_a_mailbox_that_goes_between_the_calls_gives_its_copy_to_none_that_has_one(town):
    first, town.sender = await town.messagers(name="first", listen=["news"]), await town.messagers()
    await town.sender.send_message("news", {"n": 1})
    await town.remove(first)
    comes = [await town.messagers(name=name, listen=["news"]) for name in ("x", "y", "z")]
    await town.sender.engine.frame_sender.reload()
    assert [town.home(messager.name) for messager in comes] == [2, 0, 1]
    await cut_short(town, "receive_letter", 3, after=False)  # after two questions
    assert sorted(letter.to for letter in await town.letters()) == ["x", "y"]
    await town.remove(comes[0])
    await town.requeue()
    for messager in comes[1:]:
        assert [message.payload["n"] for message in await fetch_all(messager, 1)] == [1]
        assert await drained(messager) == []
    (letter,) = await town.letters()
    assert (letter.mailbox, letter.to, letter.shard) == ("first", "x", None)
    again = await town.messagers(name="again", listen=["news"])
    assert await town.requeue() == [(1, 0, "", False)]
    assert [message.payload["n"] for message in await fetch_all(again, 1)] == [1]
    for messager in (*comes[1:], again):
        assert await drained(messager) == []


async def test_what_the_limit_takes_while_it_arrives_is_not_counted_as_lost(town):
    await town.begin(count=2)
    west = await town.open("west", AGENT)
    await town.open("north", OTHER)
    await cut_short(town, "receive_letter", 2, after=True)
    first, letter = await town.letters()
    last = await town.open("last", NEAR)
    assert town.home("last") == 1
    await town.send(7, [NEAR])
    town.sender.engine.transport.shards[1].dead_bytes = len(first.frame) + LETTER_BYTES
    await town.remove(last)
    store = town.store()
    assert (await store.facts())[0::2] == (1, 2)
    assert await store.forwarding.end(letter, delivered=True) == letter.id
    assert await store.forwarding.end(letter, delivered=True) == ""
    facts = await store.facts()
    assert facts[0::2] == (1, 1)
    assert facts.dropped_bytes == len(first.frame) + LETTER_BYTES
    assert await drained(west) == [(AGENT, 0)]


class Chance:
    """Processes that requeue, end at any call, and groups that come and go meanwhile; each message is to come once."""

    AGENTS, ROUNDS = (1, 2, 3, 4), 12

    def __init__(self, town, seed):
        self.town, self.random = town, random.Random(seed)
        self.groups, self.found, self.names, self.sent = {}, [], 0, []

    async def come(self):
        free = sorted(set(self.AGENTS) - {agent for _, agents in self.groups.values() for agent in agents})
        if free:
            self.names += 1
            agents = self.random.sample(free, self.random.randint(1, len(free)))
            limit = self.random.choice([3, 1000])
            group = await self.town.open(f"group-{self.names}", *agents, mailbox_messages=limit)
            self.groups[group.name] = group, agents

    async def go(self):
        if self.groups:
            group, _ = self.groups.pop(self.random.choice(sorted(self.groups)))
            if self.random.random() < 0.5:
                self.found += await drained(group)
            await self.town.remove(group)

    async def requeue(self):
        mortal = await self.town.messagers()
        cut = Cut(
            mortal,
            self.random.choice(sorted({name for name, _, _ in CALLS})),
            nth=self.random.randint(1, 5),
            after=self.random.random() < 0.5,
        )
        try:
            await self.town.requeue(mortal)
        except MessagingError:
            assert cut.hit
        await vanish(mortal)

    async def run(self):
        await self.town.begin(agents=self.AGENTS, count=5)
        for _ in range(self.ROUNDS):
            await asyncio.gather(*(self.requeue() for _ in range(2)), self.random.choice([self.come, self.go])())
            await self.random.choice([self.come, self.go])()
        while self.groups:
            await self.go()
        last = [await self.town.open(f"last-{agent}", agent) for agent in self.AGENTS]
        for _ in range(self.ROUNDS):
            await self.town.requeue()
        assert await self.town.letters() == []
        for group in last:
            self.found += await drained(group)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 12))])
async def test_each_message_comes_once_whatever_comes_goes_and_ends(town, seed):
    chance = Chance(town, seed)
    await chance.run()
    assert sorted(chance.found) == [(agent, n) for agent in Chance.AGENTS for n in range(5)]


async def test_ids_go_on_rising_when_a_server_comes_back_without_its_last_writes_and_with_a_clock_behind(
    town, server, exp_id
):
    """The other shard has noted the last one: it would take a letter with a lower id for one that was settled."""
    await town.begin(count=1)
    late = int(time.time() * 1000) + 3_600_000
    async with client_of(server.servers[1]) as client:
        await client.hset(Keys(exp_id).meta, mapping={"life": "another", "ceiling": late})
    town.sender = await town.messagers()
    await town.remove(await town.open("south", NEAR))
    await town.remove(await town.open("north", NEAR))
    near = await town.open("near", OTHER)
    assert town.home("near") == 1
    await town.send(1, [OTHER])
    await town.remove(near)
    assert [int(letter.id.split("/")[1].split("-")[0]) >= late for letter in await town.letters()] == [False, True]


@pytest.mark.long
async def test_each_letter_is_forwarded_once_despite_lost_replies(town, server, opener):
    await town.begin(agents=(AGENT, OTHER, NEAR), count=12)
    groups = [await town.open(name, agent) for name, agent in (("west", AGENT), ("north", OTHER), ("near", NEAR))]
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(each, seed=seed)) for seed, each in enumerate(server.servers)]
        proxied = server.model_copy(update={"servers": tuple(proxy.config for proxy in proxies)})
        messager = await opener(proxied, send_timeout_s=WAIT_S)
        for proxy in proxies:
            proxy.cut_replies = 0.2
        outcomes = await town.requeue(messager)
        for proxy in proxies:
            proxy.cut_replies = 0.0
        assert all(proxy.cuts for proxy in proxies)
        await messager.close()
    assert outcomes == [(3, 0, "", False)] * 12
    for group, agent in zip(groups, (AGENT, OTHER, NEAR), strict=True):
        assert await drained(group) == numbered(agent, 12)
    assert await town.letters() == []


# -- the calls of users -----------------------------------------------------------------------------------------------


async def test_all_letters_of_all_shards_are_requeued_in_one_call(town, server, exp_id):
    """Also where each leaves a part behind, which comes before the letters of the next shard."""
    groups = [await town.messagers(name=name, host=[agent, agent + 10]) for agent, name in enumerate("abc")]
    town.sender = await town.messagers()
    for agent in range(3):
        for n in range(2):
            await town.send(n, [agent, agent + 10])
    for group in groups:
        await town.remove(group)
    host = await town.open("d", 0, 1, 2)
    letters = DeadLetters(server, exp_id)
    assert len(letters) == 6
    done = letters.requeue(everything=True)
    assert (done.letters, done.messages, len(done.left)) == (0, 6, 6)
    found = await drained(host)
    assert [[each for each in found if each[0] == agent] for agent in range(3)] == [numbered(n, 2) for n in range(3)]
    assert [letter.rows for letter in letters] == [1] * 6
    assert sorted(letter.home for letter in await town.letters()) == [0, 0, 1, 1, 2, 2]
    rest = await town.open("e", 10, 11, 12)
    assert letters.requeue(everything=True) == (6, 6, {})
    assert len(await drained(rest)) == 6


async def test_letters_of_another_shard_are_named_by_their_ids(town, server, exp_id):
    await town.begin(count=3)
    west = await town.open("west", AGENT)
    letters = DeadLetters(server, exp_id)
    first, second, third = letters.list()
    assert first.id.startswith("1/")
    assert (letters.get(first.id), letters.list(after=first.id)) == (first, [second, third])
    assert letters.drop(second.id) == 1
    assert letters.requeue([first.id, third.id]) == (2, 2, {})
    assert await drained(west) == [(AGENT, 0), (AGENT, 2)]
    assert letters.requeue(third.id).left == {third.id: "there is no such dead letter"}
    for unknown in ("1/1-1", "7/1-1"):
        assert (letters.drop(unknown), letters.list(after="7/1-1")) == (0, [])
        with pytest.raises(UnknownName, match="requeued or dropped"):
            letters.get(unknown)


async def test_a_call_counts_what_another_process_left_on_its_way_once(town, server, exp_id):
    await town.begin()
    west = await town.open("west", AGENT)
    await cut_short(town, "receive_letter", 2, after=True)
    letters = DeadLetters(server, exp_id)
    assert letters.requeue(mailbox="east") == (COUNT, COUNT, {})
    assert await drained(west) == numbered()
