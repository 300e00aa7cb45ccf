"""Broadcasts to audiences: the hearers of a sender receive its message as ordinary messages."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack, aclosing
from inspect import isawaitable

import numpy as np
import pytest
from support.contracts import WAIT_S, fetch_batch, vanish
from support.interceptors import interceptor_with
from support.shelf import Shelf, among, graph, written
from support.step_society import digests_of
from support.stepped import begin_steps, fates_in, steps_of

from ray_messaging import Messager, MessagingConfig, columns, rules
from ray_messaging.errors import UnknownName

FRIENDS, PLAZA = "friends", "plaza"
WEST, EAST = range(10), range(10, 20)


RNG = np.random.default_rng(7)
PAIRS = sorted({(int(a), int(b)) for a, b in RNG.integers(0, 20, (120, 2))})
HEARERS = {sender: [b for a, b in PAIRS if a == sender] for sender in range(20)}


@pytest.fixture
def shelf():
    return Shelf()


@pytest.fixture
async def opened(server, exp_id, shelf):
    """Open messagers that know the audiences."""
    found = []

    async def open_one(name, host, interceptor=None, audiences=shelf, **settings):
        own = MessagingConfig(**{"strict_senders": False} | settings)
        messager = Messager(server, exp_id, interceptor, name=name, settings=own, audiences=audiences)
        found.append(messager)
        await messager.init()
        await messager.host_agents(host, ["agent-chat"])
        if len(found) == 1:
            await shelf.add(messager, FRIENDS, graph(PAIRS))
            await shelf.add(messager, PLAZA, among([1, 2, 11, 12, "guest"]))
        return messager

    yield open_one
    for messager in reversed(found):
        await messager.close()


@pytest.fixture
async def pair(opened):
    return await opened("west", WEST), await opened("east", EAST)


async def received(messager, count):
    """Fetch until `count` messages have come, and see that no more come; return them as one batch."""
    found = await fetch_batch(messager, count)
    found.slices += (await messager.fetch_messages()).slices
    assert len(found) == count
    return found


def pairs_of(messages):
    return [*zip(messages.from_ids.tolist(), messages.to_ids.tolist(), strict=True)]


@pytest.mark.parametrize("payloads", [[{"n": n} for n in range(4)], columns(n=range(4))], ids=["json", "typed"])
async def test_all_hearers_receive_and_no_others(pair, payloads):
    west, east = pair
    senders = [3, 0, 7, 3]
    assert len(await west.broadcast_columns([], FRIENDS, [])) == 0
    receipts = await west.broadcast_columns(senders, FRIENDS, payloads)
    expected = [(sender, hearer, n) for n, sender in enumerate(senders) for hearer in HEARERS[sender]]
    assert receipts.counts()["delivered"] == len(receipts) == len(expected)
    for messager, agents in ((west, WEST), (east, EAST)):
        mine = [each for each in expected if each[1] in agents]
        messages = await received(messager, len(mine))
        assert [(m.from_id, m.to_id, m.payload["n"]) for m in messages] == mine
        assert messages.column("n").tolist() == [n for *_, n in mine]
        assert messages[0].subtopic == "agent-chat"
    assert {message.id for message in messages} <= set(receipts.message_ids)


async def test_a_broadcast_is_one_row_for_each_mailbox(opened, shelf):
    ids = np.random.default_rng(5).permutation(np.arange(1, 200_001))  # no ranges: each mailbox has some of all
    west, east = await opened("west", [0, *ids[:100_000].tolist()]), await opened("east", ids[100_000:].tolist())
    await shelf.add(west, "one", graph([(0, ids[0]), (0, ids[-1])]))
    heard = np.r_[ids[:50_000], ids[-50_000:]]
    await shelf.add(west, "many", graph(np.stack((np.zeros_like(heard), heard), axis=1)))
    frames = written(west)
    payload = {"text": "said once"}
    await west.broadcast(0, "one", payload)
    few = list(frames)
    frames.clear()
    receipts = await west.broadcast(0, "many", payload)
    assert receipts.counts()["delivered"] == 100_000
    assert [(mailbox, rows) for mailbox, rows, _ in few] == [("east", 1), ("west", 1)]
    assert sum(rows for _, rows, _ in frames) == 100_000
    assert sum(size for *_, size in frames) <= 3 * sum(size for *_, size in few)
    for messager in (west, east):
        messages = await received(messager, 50_001)
        assert messages.payloads[-1] == payload
        assert len(set(messages.to_ids.tolist())) == 50_000


async def test_members_and_everybody_hear_all_but_themselves_and_a_sender_need_be_none(pair):
    west, east = pair
    receipts = await west.broadcast(1, PLAZA, {"n": 1})
    assert receipts.counts() == {"delivered": 3, "published": 0, "undeliverable": 1, "blocked": 0}  # nobody hosts guest
    assert (await west.broadcast(None, PLAZA, {"n": 2})).counts()["delivered"] == 4
    assert (await west.broadcast(4, "*", {"n": 3})).counts()["delivered"] == 19
    everybody = [[(4, agent) for agent in agents if agent != 4] for agents in (WEST, EAST)]
    assert pairs_of(await received(west, 12)) == [(1, 2), (None, 1), (None, 2), *everybody[0]]
    assert pairs_of(await received(east, 14)) == [(1, 11), (1, 12), (None, 11), (None, 12), *everybody[1]]


async def test_small_mailboxes_get_small_frames_and_all_of_the_pairs(opened, shelf):
    wide = [(sender, hearer) for sender in (0, 1) for hearer in range(10, 90)]
    west, east = await opened("west", WEST), await opened("east", range(10, 100), mailbox_messages=60)
    await shelf.add(west, "wide", graph(wide))
    frames = written(west)
    sending = asyncio.create_task(west.broadcast_columns([0, 1], "wide", {"n": 1}))
    messages = await received(east, 160)
    assert pairs_of(messages) == wide
    assert (await sending).counts()["delivered"] == 160
    assert max(rows for _, rows, _ in frames) <= 15


async def test_a_successor_goes_on_where_the_frame_was_left(opened):
    west, east = await opened("west", WEST), await opened("east", EAST, lease_s=1.0)
    expected = [(s, h) for s in range(5) for h in HEARERS[s] if h in EAST]
    await west.broadcast_columns([*range(5)], FRIENDS, {"n": 1})
    messages = await east.fetch_messages(limit=3, timeout=WAIT_S)
    assert pairs_of(messages) == expected[:3]
    await east.ack()
    await east.close()
    again = await opened("east", EAST)
    assert pairs_of(await received(again, len(expected) - 3)) == expected[3:]


async def test_order_is_kept_among_broadcasts_and_messages(pair):
    west, east = pair
    hearer = next(h for h in HEARERS[0] if h in EAST)
    for n in range(0, 6, 2):
        await west.send(0, hearer, {"n": n})
        await west.broadcast(0, FRIENDS, {"n": n + 1})
    mine = 3 + 3 * sum(h in EAST for h in HEARERS[0])
    messages = await received(east, mine)
    assert [m.payload["n"] for m in messages if m.to_id == hearer] == [*range(6)]


async def test_the_version_that_a_frame_names_counts(pair, shelf):
    west, east = pair
    await west.broadcast(0, FRIENDS, {"n": 1})
    await shelf.add(east, FRIENDS, graph([(0, 15), (0, 3)]))
    receipts = await west.broadcast(0, FRIENDS, {"n": 2})
    assert len(receipts) == 2
    old = [(0, h) for h in HEARERS[0] if h in EAST]
    assert pairs_of(await received(east, len(old) + 1)) == [*old, (0, 15)]


async def test_a_removed_audience_and_an_unknown_one_are_refused(pair, shelf):
    west, east = pair
    await west.broadcast(0, FRIENDS, {"n": 1})
    await shelf.add(east, FRIENDS, None)
    for name in (FRIENDS, "ghosts", 7):
        with pytest.raises(UnknownName):
            await west.broadcast(0, name, {"n": 2})
    await received(east, sum(h in EAST for h in HEARERS[0]))


async def test_a_frame_that_cannot_be_unfolded_is_a_dead_letter(opened):
    west, east = await opened("west", WEST), await opened("east", EAST, audiences=Shelf())  # it lacks the files
    await west.broadcast(0, FRIENDS, {"n": 1})
    await west.send(0, 10, {"n": 2})
    assert (await received(east, 1))[0].payload == {"n": 2}
    assert east.stats()["unreadable"] == 1


# -- in steps -------------------------------------------------------------------------------------------------------


@pytest.fixture
def world(server, exp_id, shelf):
    """Return a function that runs steps in groups, and returns the results of each step's body, by group."""

    async def run(body, groups, until=3, interceptor=None, exp=exp_id, digest=True):
        found = {name: [] for name in groups}
        messagers = {name: Messager(server, exp, interceptor, name=name, audiences=shelf) for name in groups}
        first = run.messager = next(iter(messagers.values()))
        async with AsyncExitStack() as stack:
            for messager in messagers.values():
                await stack.enter_async_context(messager)
            await begin_steps(first, seed=1, groups=len(groups), digest=digest)
            for name, messager in messagers.items():
                await messager.host_agents(groups[name], ["agent-chat"])
            if not first.directory.audiences.names():
                await shelf.add(first, FRIENDS, graph(PAIRS))

            async def drive(name):
                async with aclosing(messagers[name].steps(until=until)) as steps:
                    async for step in steps:
                        result = body(step)
                        found[name].append(await result if isawaitable(result) else result)

            async with asyncio.timeout(3 * WAIT_S):
                await asyncio.gather(*map(drive, groups))
            return found, await counts_of(first, until)

    return run


async def counts_of(messager, until=3):
    """Return the fates and the digest of each step, over all groups."""
    store = await steps_of(messager)
    fates = [sum(map(Counter, (await fates_in(store, step)).values()), Counter()) for step in range(until)]
    return [*zip(fates, await digests_of(store, until), strict=True)]


def speak(step):
    """Broadcast a number from each agent; return the messages that the agents heard of the step before."""
    ids = step.places.ints
    heard = step.heard(FRIENDS)
    found = heard.mean("x"), heard.sum("x"), heard.count(), pairs_of(step.messages)
    step.broadcast_columns(ids, FRIENDS, columns(x=ids * 1.5 + step.number))
    return found


INTO = {hearer: [a for a, b in PAIRS if b == hearer] for hearer in range(20)}


@pytest.mark.parametrize("barred", [[], [(a, b) for a, b in PAIRS if (a + b) % 3 == 0]], ids=["no rule", "a rule"])
async def test_agents_hear_the_broadcasts_of_the_step_before_but_for_pairs_that_a_rule_takes_out(world, barred):
    interceptor = interceptor_with(rules.BlackList(barred)) if barred else None
    found, counts = await world(speak, {"west": WEST, "east": EAST}, interceptor=interceptor)
    for name, agents in (("west", WEST), ("east", EAST)):
        heard = {agent: [a for a in INTO[agent] if (a, agent) not in barred] for agent in agents}
        assert found[name][0][2].tolist() == [0] * 10
        for number in (1, 2):
            mean, total, count, messages = found[name][number]
            expected = [np.array(heard[agent]) * 1.5 + number - 1 for agent in agents]
            assert count.tolist() == [len(heard[agent]) for agent in agents]
            assert np.allclose(total, [each.sum() for each in expected])
            assert np.allclose(mean[count > 0], [each.mean() for each in expected if each.size])
            assert messages == [(a, agent) for agent in agents for a in heard[agent]]
    fates = {"delivered": len(PAIRS) - len(barred)} | ({"blocked": len(barred)} if barred else {})
    assert all(each == fates for each, _ in counts)


@pytest.mark.parametrize("ruled", [False, True])
async def test_digests_do_not_depend_on_the_groups_nor_on_rules_that_pass(world, server, exp_id, ruled):
    digests = []
    for count in (1, 2, 8):
        groups = {f"g{n}": [*range(n, 20, count)] for n in range(count)}
        interceptor = interceptor_with(rules.BlackList([(99, 98)])) if ruled and count == 2 else None
        found, counts = await world(speak, groups, interceptor=interceptor, exp=f"{exp_id}-{count}")
        digests.append(counts)
        heard = {agent: mean for name in groups for agent, mean in zip(groups[name], found[name][2][0], strict=True)}
        assert np.allclose([heard[agent] for agent in range(20)], [np.mean(INTO[a]) * 1.5 + 1 for a in range(20)])
    assert digests[0] == digests[1] == digests[2]


async def test_single_broadcasts_questions_and_messages_go_together(world):
    def body(step):
        heard = [(m.from_id, m.payload["n"], m.id) for m in step.inbox(15)] if 15 in step.places else None
        if step.number == 0 and 0 in step.places:
            step.send(0, 15, {"n": 0})
            step.broadcast(0, "*", {"n": 1})
            step.send(0, 15, {"n": 2})
            step.broadcast(0, "*", {"n": 3}, deliver_at=2)
        return heard

    found, counts = await world(body, {"west": WEST, "east": EAST})
    assert found["east"] == [[], [(0, 0, "0-0-0"), (0, 1, "0-1-0"), (0, 2, "0-2-0")], [(0, 3, "0-3-0")]]
    assert counts[0][0] == {"delivered": 2 + 19 * 2}


async def test_a_change_counts_for_the_next_step_for_all(world, shelf):
    async def body(step):
        heard = step.heard(FRIENDS).count().tolist()
        if step.number == 1 and 0 in step.places:
            await shelf.add(world.messager, FRIENDS, graph([(3, 4), (3, 14)]))
        step.broadcast_columns(step.places.ints, FRIENDS, {"n": 1})
        return heard

    found, _ = await world(body, {"west": WEST, "east": EAST}, until=4)
    for name, agents in (("west", WEST), ("east", EAST)):
        old, new = [len(INTO[agent]) for agent in agents], [int(agent in (4, 14)) for agent in agents]
        assert found[name] == [[0] * 10, old, old, new]


async def test_a_step_cannot_broadcast_to_an_audience_that_is_gone(world, shelf):
    refused = []

    async def body(step):
        if step.number == 0:
            await shelf.add(world.messager, FRIENDS, None)
        for name in (FRIENDS, "ghosts") if step.number else ("ghosts",):
            with pytest.raises(UnknownName, match=name) as caught:
                step.broadcast(0, name, {"n": 1})
            refused.append((step.number, caught.value.value))

    await world(body, {"west": WEST}, until=2)
    assert refused == [(0, "ghosts"), (1, FRIENDS), (1, "ghosts")]


@pytest.fixture
async def stepped(server, exp_id, shelf):
    """Return a function that opens the one group of an experiment with steps."""
    async with AsyncExitStack() as stack:

        async def open_one(exp=exp_id):
            messager = await stack.enter_async_context(Messager(server, exp, name="all", audiences=shelf))
            await begin_steps(messager, seed=1, groups=1, digest=True)
            await messager.host_agents(range(20), ["agent-chat"])
            await shelf.add(messager, FRIENDS, graph(PAIRS))
            return messager

        yield open_one


async def test_a_step_that_runs_again_hears_and_counts_the_same(stepped, exp_id):
    runs = []
    for stop in (None, 1):
        messager, heard = await stepped(f"{exp_id}-{stop}"), {}
        for _ in range(1 if stop is None else 2):
            async with aclosing(messager.steps(until=3)) as steps:
                async for step in steps:
                    mean, *rest = speak(step)
                    again = stop == step.number and step.number not in heard
                    heard.setdefault(step.number, []).append((mean.tolist(), rest[-1]))
                    if again:
                        break
        runs.append((heard, await counts_of(messager)))
    (whole, counts), (broken, again) = runs
    assert counts == again
    assert len(broken[1]) == 2
    assert repr(broken[1]) == repr(whole[1] * 2)
    assert repr(broken[2]) == repr(whole[2])


async def test_what_waits_of_broadcasts_moves_with_the_hearers(opened):
    west, east = await opened("west", WEST), await opened("east", EAST)
    for n in range(3):
        await west.broadcast_columns(np.arange(10), FRIENDS, [{"n": n}] * 10)
        await east.broadcast_columns(np.arange(10, 20), FRIENDS, [{"n": n}] * 10)
    await west.move_agents([1, 2, 3], to="east")
    await west.broadcast_columns(np.arange(10), FRIENDS, [{"n": 3}] * 10)
    heard = {"west": Counter(), "east": Counter()}
    total = 3 * len(PAIRS) + len([pair for pair in PAIRS if pair[0] < 10])
    async with asyncio.timeout(WAIT_S):
        while sum(map(Counter.total, heard.values())) < total:
            for messager in (west, east):
                for message in await messager.fetch_messages(timeout=0.05):
                    heard[messager.name][message.from_id, message.to_id, message.payload["n"]] += 1
    expected = Counter((a, b, n) for a, b in PAIRS for n in range(4) if n < 3 or a < 10)
    assert heard["west"] + heard["east"] == expected
    assert not [pair for pair in heard["west"] if pair[1] in {1, 2, 3} or pair[1] >= 10]


async def test_a_successor_unfolds_broadcasts_from_before_agents_came_and_went(opened):
    west, east = await opened("west", WEST), await opened("east", EAST)
    at_first = [pair for pair in PAIRS if pair[0] < 10 <= pair[1]]
    mine = list(at_first)
    await west.broadcast_columns(np.arange(10), FRIENDS, [{"n": 0}] * 10)
    for came, here in ([4], [4]), ([5], [4, 5]):
        await west.move_agents(came, to="east")
        mine += [pair for pair in PAIRS if pair[0] < 10 and pair[1] in came] * (1 if came == [4] else 2)
        await west.broadcast_columns(np.arange(10), FRIENDS, [{"n": 0}] * 10)
        mine += at_first + [pair for pair in PAIRS if pair[0] < 10 and pair[1] in here]
    await east.add_agents(["new"])
    await vanish(east)
    east = await opened("east", EAST)
    messages = await received(east, len(mine))
    assert Counter(pairs_of(messages)) == Counter(mine)
    assert [*east.subscription.hosted] == [4, 5, *EAST, "new"]
