"""An experiment on three servers: the order of a change of the directory, calls to several of them, refusals."""

import asyncio
import json

import pytest
from faults.proxy import Proxy
from support.contracts import WAIT_S, client_of, fetch_all, until

from ray_messaging import ConfigError, ConnectionFailed, Fenced, Messager, MessagingError, OutcomeUnknown, Outgoing
from ray_messaging.addressing.channels import Keys
from ray_messaging.addressing.directory import Record
from ray_messaging.config import MessagingConfig
from ray_messaging.eventlog.event_log import EventLog
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.writing.writer import LogWriter
from ray_messaging.transports.backend import open_transport
from ray_messaging.transports.requeueing import Requeueing
from ray_messaging.transports.sharded.backend import ShardedStores
from ray_messaging.transports.transport import FrameFate, FrameWrite, Limits, SendRequest, SendStatus

LIMITS = Limits(1_000, 2**20, 60.0, leased=False)


@pytest.fixture
def server(shards_config):
    return shards_config


class CutShortError(Exception):
    """The process ends here, as far as the server can see."""


def break_at(transport, script):
    """Let a messager's transport end at a script, at any shard; return a function that mends it."""
    links = [shard.link for shard in transport.shards]

    def broken(link):
        whole = type(link).script.__get__(link)

        def run(name, *args, **options):
            if name == script:
                raise CutShortError
            return whole(name, *args, **options)

        return run

    for link in links:
        link.script = broken(link)
    return lambda: [vars(link).pop("script") for link in links]


async def town(messagers, groups=3):
    """Open a sender, and groups that host agent n each: the n-th is on shard n, the third one on the control shard."""
    hosts = [await messagers(name=f"group-{agent}", host=[agent]) for agent in range(1, groups + 1)]
    return await messagers(name="sender"), hosts


async def send_round(sender, number, agents=(1, 2, 3)):
    outgoing = [Outgoing.to_agent(agent, {"n": number}, from_id=0) for agent in agents]
    return [str(fate) for fate in (await sender.send_messages(outgoing)).fates]


async def numbers(messager, count):
    found = [message.payload["n"] for message in await fetch_all(messager, count)]
    assert await messager.fetch_messages(timeout=0) == []
    return found


async def streams_of(server, exp_id):
    """Return how many frames each shard has in mailboxes."""
    found = []
    for each in server.servers:
        async with client_of(each) as client:
            keys = [key async for key in client.scan_iter(Keys(exp_id).prefix + "mailbox:[^:]*", count=1000)]
            found.append(sum([await client.xlen(key) for key in keys]))
    return found


# -- mailboxes and their shards ---------------------------------------------------------------------------------------


async def test_named_mailboxes_are_spread_over_the_shards(messagers, server, exp_id):
    sender, hosts = await town(messagers)
    assert await send_round(sender, 1) == ["delivered"] * 3
    assert await streams_of(server, exp_id) == [1, 1, 1]
    for host in hosts:
        assert await numbers(host, 1) == [1]


async def test_a_name_keeps_its_shard(messagers, exp_id):
    sender, hosts = await town(messagers)
    await send_round(sender, 1)
    assert await numbers(hosts[0], 1) == [1]
    await hosts[0].close()
    await sender.engine.transport.remove("group-1", None)
    again = await messagers(name="group-1", host=[1])
    assert again.engine.transport.home("group-1") == 1
    assert await send_round(sender, 2) == ["delivered"] * 3
    assert await numbers(again, 1) == [2]


async def test_a_mailbox_is_on_its_nodes_shard_and_in_turn_where_the_node_has_none(opener, server, exp_id):
    config = server.model_copy(update={"nodes": ("a", "b", "c")})
    near = [await opener(config.on_node("b"), name=f"near-{n}", host=[n]) for n in range(3)]
    later = config.on_node("a node that came later")
    far = [await opener(later, name=f"far-{n}", host=[n]) for n in range(10, 13)]
    for n in range(10):
        assert await send_round(near[0], n, agents=(1, 2)) == ["delivered"] * 2
    assert await streams_of(server, exp_id) == [0, 20, 0]
    await send_round(near[0], 10, agents=(10, 11, 12))
    assert await streams_of(server, exp_id) == [1, 21, 1]
    assert await numbers(near[1], 10) == [*range(10)]
    assert [await numbers(each, 1) for each in far] == [[10]] * 3


async def test_one_of_the_servers_is_no_server_of_the_experiment(messagers, server, exp_id):
    await town(messagers)
    alone = Messager(server.servers[0], exp_id)
    with pytest.raises(ConfigError, match=r"has 3 shards, and shards=1 was given here.*pass messaging\.redis"):
        await alone.init()
    await alone.close()


# -- a change of the directory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", ["take_mailbox", "enter_mailbox", "raise_directory"])
async def test_a_change_that_is_cut_short_does_no_harm_and_can_be_repeated(messagers, script):
    sender, hosts = await town(messagers)
    await send_round(sender, 1)
    late = await messagers(name="group-4")
    mend = break_at(late.engine.transport, script)
    with pytest.raises(CutShortError):
        await late.host_agents([4], ["agent-chat"])
    assert await send_round(sender, 2) == ["delivered"] * 3
    mend()
    successor = await messagers(name="group-4", host=[4])  # another process
    assert successor.engine.transport.home("group-4") == 1
    assert await send_round(sender, 3, agents=(1, 2, 3, 4)) == ["delivered"] * 4
    assert await numbers(successor, 1) == [3]
    for host in hosts:
        assert await numbers(host, 3) == [1, 2, 3]


async def test_after_a_change_no_send_by_an_older_directory_passes_on_any_shard(messagers, exp_id, server):
    await town(messagers)
    transport = open_transport(server, exp_id, MessagingConfig())
    epoch = (await transport.take_sender_epoch("old", keep_s=60)).epoch
    version = (await transport.load_directory(-1)).version
    frames = [FrameWrite(f"group-{n}", 1, 1, b"late") for n in (1, 2, 3)]
    assert [transport.home(frame.mailbox) for frame in frames] == [1, 2, 0]
    await messagers(name="group-4", host=[4])
    for frame in frames:
        reply = await transport.send(SendRequest("old", epoch, version, -1, [frame]))
        assert reply.status is SendStatus.STALE_DIRECTORY
    reply = await transport.send(SendRequest("old", epoch, version, -1, frames))
    assert reply.status is SendStatus.STALE_DIRECTORY
    assert FrameFate.WRITTEN not in reply.fates
    version = (await transport.load_directory(version)).version
    assert (await transport.send(SendRequest("old", epoch, version, -1, frames))).fates == [FrameFate.WRITTEN] * 3
    await transport.close()


async def test_of_two_listeners_with_one_agent_one_is_refused(messagers, exp_id, server):
    """Both have taken their mailboxes, on two shards, before either is in the directory."""
    first, second = [open_transport(server, exp_id, MessagingConfig()) for _ in range(2)]
    versions = [(await each.load_directory(-1)).version for each in (first, second)]
    records = [Record(name, [], [name], []) for name in ("one", "two")]
    assert await first.listen(records[0], versions[0], LIMITS, owner="", epoch=None) is not None
    assert await second.listen(records[1], versions[1], LIMITS, owner="", epoch=None) is None
    delta = await second.load_directory(versions[1])
    assert [record.mailbox for record in delta.changed] == ["one"]
    assert await second.listen(records[1], delta.version, LIMITS, owner="", epoch=None) is not None
    assert sorted((await first.load_directory(-1)).mailboxes) == ["one", "two"]
    for each in (first, second):
        await each.close()


async def test_a_mailbox_that_is_gone_from_its_shard_leaves_the_directory(messagers):
    sender, hosts = await town(messagers)
    await send_round(sender, 1)
    remover = (await messagers()).engine.transport
    mend = break_at(remover, "drop_entry")
    with pytest.raises(CutShortError):
        await remover.remove("group-1", None)
    mend()
    assert await send_round(sender, 2) == ["undeliverable", "delivered", "delivered"]
    assert "group-1" not in (await remover.load_directory(-1)).mailboxes
    assert await numbers(hosts[1], 2) == [1, 2]


async def test_an_expired_mailbox_of_an_anonymous_messager_is_buried(messagers, store):
    sender, _ = await town(messagers)
    nameless = await messagers(host=[9])
    assert await send_round(sender, 1, agents=(9,)) == ["delivered"]
    assert await store.waiting(nameless.name) == 1
    assert nameless.name in await store.control.mailboxes()


# -- calls to several shards ------------------------------------------------------------------------------------------


async def test_a_newer_sender_fences_an_older_one_on_all_shards(messagers):
    old, hosts = await town(messagers)
    await send_round(old, 1)
    new = await messagers(name="sender")
    assert await send_round(new, 2) == ["delivered"] * 3
    with pytest.raises(Fenced):
        await send_round(old, 3)
    for host in hosts:
        assert await numbers(host, 2) == [1, 2]


async def test_a_sender_that_is_fenced_on_one_shard_gets_the_receipts_of_the_others(messagers, server, exp_id):
    sender, hosts = await town(messagers)
    await send_round(sender, 1)
    async with client_of(server.servers[2]) as client:
        await client.hincrby(Keys(exp_id).sender("sender"), "epoch", 10)
    with pytest.raises(MessagingError) as caught:
        await send_round(sender, 2)
    fates = [receipt and receipt.fate for receipt in caught.value.receipts]
    assert fates == ["delivered", None, "delivered"]
    assert await numbers(hosts[0], 2) == [1, 2]
    assert await numbers(hosts[1], 1) == [1]
    assert await numbers(hosts[2], 2) == [1, 2]


async def test_a_shard_that_is_as_it_was_before_loses_nothing_of_the_others(messagers, server, exp_id):
    sender, hosts = await town(messagers)
    key = Keys(exp_id).sender("sender")
    await send_round(sender, 1)
    async with client_of(server.servers[1]) as client:
        await client.hincrby(key, "epoch", -10)  # restored from older data
        assert await send_round(sender, 2) == ["delivered"] * 3
        assert await client.hget(key, "epoch") == b"%d" % sender.engine.frame_sender.epoch
    for host in hosts:
        assert await numbers(host, 2) == [1, 2]


async def test_a_full_mailbox_keeps_no_other_shard_waiting(messagers):
    _, hosts = await town(messagers)
    full = await messagers(name="full", host=["full"], mailbox_messages=4)
    sender = await messagers(send_timeout_s=0.5)
    for n in range(4):
        await send_round(sender, n, agents=("full",))
    with pytest.raises(MessagingError) as caught:
        await send_round(sender, 9, agents=("full", 1, 2, 3))
    assert [receipt and receipt.fate for receipt in caught.value.receipts] == [None, *["delivered"] * 3]
    assert await numbers(full, 4) == [0, 1, 2, 3]
    for host in hosts:
        assert await numbers(host, 1) == [9]


@pytest.mark.parametrize("shard", [0, 1, 2])
@pytest.mark.parametrize("up", [True, False], ids=["request", "reply"])
async def test_a_cut_on_one_shard_costs_and_doubles_nothing(messagers, opener, server, shard, up):
    _, hosts = await town(messagers)
    with Proxy(server.servers[shard]) as proxy:
        servers = list(server.servers)
        servers[shard] = proxy.config.model_copy(update={"socket_dir": None})
        sender = await opener(server.model_copy(update={"servers": tuple(servers)}), name="cut")
        for n in range(20):
            if n % 4 == 1:
                proxy.lose(1, up=up)
            assert await send_round(sender, n) == ["delivered"] * 3
        for host in hosts:
            assert await numbers(host, 20) == [*range(20)]
        await sender.close()


# -- servers that die -------------------------------------------------------------------------------------------------


async def test_with_a_shard_down_the_others_go_on(processes, own_shards, opener):
    hosts = [await opener(own_shards, name=f"group-{agent}", host=[agent]) for agent in (1, 2, 3)]
    sender = await opener(own_shards, name="sender", send_timeout_s=1)
    assert await send_round(sender, 1) == ["delivered"] * 3
    processes[1].kill()
    assert await send_round(sender, 2, agents=(2, 3)) == ["delivered"] * 2
    with pytest.raises(OutcomeUnknown) as caught:
        await send_round(sender, 3)
    assert [receipt and receipt.fate for receipt in caught.value.receipts] == [None, "delivered", "delivered"]
    processes[1].start()
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                assert await send_round(sender, 4) == ["delivered"] * 3
                break
            except ConnectionFailed:
                continue
    assert await numbers(hosts[1], 4) == [1, 2, 3, 4]
    assert await numbers(hosts[2], 4) == [1, 2, 3, 4]
    got = await numbers(hosts[0], 2)  # it was down before the third: an unknown outcome is no message here
    assert got == [1, 4]


async def test_a_shard_that_stands_still_keeps_no_other_one_from_the_log(
    opener, own_shards, processes, tmp_path, exp_id
):
    hosts = [await opener(own_shards, name=f"group-{agent}", host=[agent]) for agent in (1, 2, 3)]
    log = open_transport(own_shards, exp_id, MessagingConfig())
    await log.connect()
    writer = LogWriter(log, Folder(tmp_path / "log"), exp_id)
    await writer.start()
    sender = await opener(own_shards, name="sender")
    assert await send_round(sender, 1) == ["delivered"] * 3
    await writer.caught_up()
    processes[1].pause()
    for n in range(2, 12):
        assert await send_round(sender, n, agents=(2, 3)) == ["delivered"] * 2

    async def logged():
        return writer.stats()["rows"] == 3 + 20

    await until(logged)
    processes[1].resume()
    assert await send_round(sender, 12) == ["delivered"] * 3
    await writer.caught_up()
    await writer.close()
    await log.close()
    table = EventLog.open(tmp_path / "log").query()
    found = {}
    for to_id, payload in zip(table["to_id"].to_pylist(), table["payload"].to_pylist(), strict=True):
        found.setdefault(str(to_id), []).append(json.loads(payload)["n"])
    assert {len(ns) for ns in found.values()} == {2, 12}
    assert set(table["mailbox"].to_pylist()) == {"group-1", "group-2", "group-3"}
    assert await numbers(hosts[0], 2) == [1, 12]
    for messager in (sender, *hosts):  # before their servers
        await messager.close()


async def test_a_shard_that_is_away_at_the_start_is_named(own_shards, processes, exp_id):
    processes[2].kill()
    with pytest.raises(ConnectionFailed, match=str(own_shards.servers[2].port)):
        await Messager(own_shards, exp_id).init()


# -- dead letters -----------------------------------------------------------------------------------------------------


async def test_letters_of_all_shards_are_listed_and_requeued(messagers, exp_id):
    sender, hosts = await town(messagers)
    for n in range(3):
        await send_round(sender, n)
    transport = sender.engine.transport
    store = ShardedStores(transport).dead_letters
    for host in hosts:
        await host.close()
        await transport.remove(host.name, None)
    facts, listed, after = await store.facts(), [], ""
    while page := await store.page(after, 2):
        listed += page
        after = page[-1].id
    assert (facts.letters, len(listed)) == (9, 9)
    assert sorted({letter.id.rpartition("/")[0] for letter in listed}) == ["", "1", "2"]
    for letter in listed:
        assert await store.get(letter.id) == letter
    again = await messagers(name="group-1", host=[1, 2])
    requeueing = Requeueing(store, exp_id)
    outcomes = {letter.mailbox: await requeueing.requeue(letter) for letter in listed}
    assert [outcomes[f"group-{n}"].messages for n in (1, 2, 3)] == [1, 1, 0]
    assert "nobody listens" in outcomes["group-3"].why
    found = [(message.to_id, message.payload["n"]) for message in await fetch_all(again, 6)]
    assert sorted(found) == [(agent, n) for agent in (1, 2) for n in range(3)]
    assert await store.drop([letter.id for letter in listed]) == 3
    assert await store.page("", 10) == []


# -- what is not there yet --------------------------------------------------------------------------------------------


def test_what_needs_one_server_is_refused(server, exp_id):
    with pytest.raises(ConfigError, match="mirror"):
        Messager(server, exp_id, settings=MessagingConfig(mirror=True))
