"""An experiment's slot moves to another primary, key by key and in one step: nothing is lost, twice or half done."""

import asyncio
import json
from functools import partial

import pytest
from redis.exceptions import ResponseError
from support.contracts import RedisStore, fetch_all
from support.patience import WAIT_S
from support.rumour import Rumour, sequential, small_world
from support.rumour_groups import RumourGroups
from support.server_side import all_scripts, keys_of, log_all
from support.servers import find_binary
from support.slots import ClusterService, KeyByKey, Resharding, raw

from ray_messaging.errors import ConnectionFailed

BARELY_S = 0.5  # of patience: a few attempts


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Start a cluster of two primaries."""
    with ClusterService(tmp_path_factory.mktemp("pair"), primaries=2, replicas=0) as service:
        yield service


@pytest.fixture
def moving(pair, exp_id):
    """Let the cluster serve the test's experiment; return a function that begins to move its slot."""
    pair.serve(exp_id)
    begun = []

    def begin():
        begun.append(KeyByKey(pair, pair.others()[0]))
        begun[-1].begin()
        return begun[-1]

    yield begin
    if begun and pair.primary is not begun[-1].to:
        begun[-1].finish()


def contents(service):
    """Return digests of all that the nodes have, also of keys that are on their way."""
    found = []
    for server in service.servers:
        with server.client() as client:
            found.append(raw(client, "DEBUG DIGEST"))
    return found


# -- no call begins in a slot that is on its way ----------------------------------------------------------------------


@pytest.mark.parametrize("binary", ["valkey", pytest.param("redis-server", marks=pytest.mark.long)])
def test_every_script_refuses_to_begin(binary, tmp_path, pair, exp_id):
    """Also where all keys that it declares are there: it may touch others, which are not."""
    find_binary(binary)
    service = pair if binary == "valkey" else ClusterService(tmp_path, binary=binary, primaries=2, replicas=0).start()
    try:
        service.serve(exp_id)
        move, scripts = KeyByKey(service, service.others()[0]), all_scripts(cluster=True)
        assert len(scripts) > 50
        with move.source.client() as client:
            client.hset(keys_of(exp_id).meta, "directory", 1)
            move.begin()
            before = contents(service)
            for script in scripts:
                with pytest.raises(ResponseError, match="the slot of this experiment is being moved"):
                    client.eval(script, 9, *[keys_of(exp_id).meta] * 9)
            assert contents(service) == before
        move.finish()
    finally:
        if service is not pair:
            service.kill()


async def goes_ahead(moving, pair, key, senders, send):
    """Move one key ahead of the others; a send does nothing then, and succeeds when all have come."""
    move, (sender, hasty) = moving(), senders
    move.migrate(key)
    before = await asyncio.to_thread(contents, pair)
    with pytest.raises(ConnectionFailed, match=r"nothing of these messages was sent") as caught:
        await send(hasty, -1)
    assert "TRYAGAIN" in str(caught.value) or "ASK" in str(caught.value)
    assert await asyncio.to_thread(contents, pair) == before
    await asyncio.to_thread(move.finish)
    await send(sender, 1)


@pytest.fixture
async def talk(pair, moving, opener):
    """Open a patient sender and a hasty one, a receiver, and a log: sends then write to keys that they do not name."""
    receiver = await opener(pair.config, name="b", host=[2], send_timeout_s=WAIT_S)
    await log_all(receiver)
    senders = [await opener(pair.config, name=name, send_timeout_s=s) for name, s in (("a", WAIT_S), ("c", BARELY_S))]
    for sender in senders:
        assert (await sender.send_message(sender.get_agent_chat_channel(2), {"n": 0}, from_id=1)).fate == "delivered"
    assert len(await fetch_all(receiver, 2)) == 2
    await receiver.ack()
    return senders, receiver


async def test_a_stream_that_has_gone_ahead_lets_no_publication_out(moving, pair, talk, exp_id):
    """A send publishes first, and then tells the log; half of it, again and again, would be many publications."""
    senders, _ = talk
    store = RedisStore(pair.config, exp_id)
    try:
        heard = await store.subscribe("news")
        await senders[0].send_message("news", {"n": 0})  # the log's stream is there from now on
        assert json.loads((await heard())[1])["n"] == 0
        stream = keys_of(exp_id).stream(":log:0")
        await goes_ahead(moving, pair, stream, senders, lambda sender, n: sender.send_message("news", {"n": n}))
        # It is at the former node, which hears of publications at all others, and is counted by none of them.
        assert json.loads((await heard())[1])["n"] == 1
    finally:
        await store.close()


@pytest.mark.long
async def test_any_key_that_has_gone_ahead_stops_no_send_half_way(moving, pair, talk):
    senders, receiver = talk
    keys = KeyByKey(pair, pair.others()[0]).keys(1000)
    assert len(keys) > 8
    channel = receiver.get_agent_chat_channel(2)
    for key in keys:
        await goes_ahead(
            moving, pair, key, senders, lambda sender, n: sender.send_message(channel, {"n": n}, from_id=1)
        )
        assert [message.payload["n"] for message in await fetch_all(receiver, 1)] == [1]


# -- under load -------------------------------------------------------------------------------------------------------

WAYS = [["move_by_key"], ["move_atomically"], ["move_by_key", "move_atomically"]]
both_ways = pytest.mark.parametrize("ways", WAYS, ids=["key by key", "in one step", "both"])


@pytest.fixture
def service(tmp_path, exp_id):
    """Start a cluster of the test's own, with replicas."""
    with ClusterService(tmp_path, exp_id=exp_id) as service:
        yield service


def resharding(service, ways):
    return Resharding(service, *(getattr(service, way) for way in ways))


@pytest.mark.long
@pytest.mark.parametrize("replicas", [0, 1], ids=["no replica", "wait_replicas=1"])
@both_ways
async def test_each_message_comes_once_and_in_order_also_through_transactions(service, opener, ways, replicas):
    """The bank counts what it passes on, in the state that its transactions leave."""
    settings = {"send_timeout_s": WAIT_S, "wait_replicas": replicas}
    teller = await opener(service.config, name="teller", host=[3], **settings)
    bank = await opener(service.config, name="bank", host=[2], **settings)
    sender = await opener(service.config, name="sender", **settings)
    moves, sent, whole, found = resharding(service, ways), 0, None, []

    async def passes_on():
        async with bank.transaction() as tx:
            messages = await tx.fetch_messages(limit=20, timeout=WAIT_S)
            for message in messages:
                tx.send_message(bank.get_agent_chat_channel(3), message.payload, 2)
            counted = json.loads(tx.state or b"0") + len(messages)
            tx.state = b"%d" % counted
        return counted

    async def pass_on():
        while await passes_on() != whole:
            pass

    moves.start()
    try:
        passing = asyncio.create_task(pass_on())
        while (moves.moves < 8 or sent < 100) and moves.is_alive():
            receipts = await sender.send_columns([1] * 7, [2] * 7, [{"n": sent + n} for n in range(7)])
            assert receipts.counts()["delivered"] == 7
            sent += 7
            found += [message.payload["n"] for message in await teller.fetch_messages(timeout=0.01)]
    finally:
        await asyncio.to_thread(moves.stop)
    whole = sent + 1
    await sender.send_columns([1], [2], [{"n": sent}])
    await asyncio.wait_for(passing, WAIT_S)
    found += [message.payload["n"] for message in await fetch_all(teller, whole - len(found))]
    assert found == list(range(whole))


@pytest.mark.long
@both_ways
async def test_steps_have_the_digests_of_an_undisturbed_run(service, exp_id, ways):
    rumour = Rumour(small_world(240), steps=40, chance=110)
    moves, groups = resharding(service, ways), RumourGroups(service.config, exp_id, rumour, 3)
    try:
        async with groups:
            states, digests = await groups.run(2 * WAIT_S, begins=moves.start, ends=moves.stop)
    finally:
        if moves.is_alive():
            moves.stop()
    assert (states, digests) == sequential(rumour)
    assert moves.moves > 1


@pytest.fixture
def late(tmp_path, exp_id, server_clock):
    """Start a cluster of two primaries, of which the clock of one is behind."""
    server_clock.set_ahead(-3600)
    folder, env = tmp_path / "late", {1: server_clock.env}
    with ClusterService(folder, primaries=2, replicas=0, exp_id=exp_id, env=env) as service:
        yield service


@pytest.mark.long
@both_ways
async def test_a_reader_that_waits_goes_on_at_the_new_primary_although_its_clock_is_behind(late, opener, ways):
    receiver = await opener(late.config, name="b", host=[2], send_timeout_s=WAIT_S)
    sender = await opener(late.config, name="a", send_timeout_s=WAIT_S)
    for n in range(6):
        reading = asyncio.create_task(fetch_all(receiver, 1))
        if n:
            await asyncio.to_thread(partial(getattr(late, ways[n % len(ways)]), late.others()[0]))
        await sender.send_message(sender.get_agent_chat_channel(2), {"n": n}, from_id=1)
        assert [message.payload["n"] for message in await reading] == [n]
        await receiver.ack()
