"""Transactions over three servers: commits, the relay to the other shards, and faults between them."""

import asyncio
import contextlib
import itertools

import pytest
from faults.proxy import Proxy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.contracts import client_of, fetch_all, store_of, vanish
from support.delegation import Actor, InterceptorEpoch
from support.shard_faults import Cut

from ray_messaging import Fenced, MailboxFull, MessagingError, OutcomeUnknown, Outgoing
from ray_messaging.addressing.channels import Keys
from ray_messaging.config import MessagingConfig
from ray_messaging.eventlog.event_log import EventLog
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.writing.writer import LogWriter
from ray_messaging.interception.rules import BlackList, MaxLength
from ray_messaging.interception.server import rule_delegation
from ray_messaging.messager import Messager
from ray_messaging.observability.health.mailbox_checks import check_kept
from ray_messaging.transports.backend import backend_of, open_transport

AGENTS = (2, 3, 4)  # on shard 1, 2 and 0, as the bank's own mailbox is on shard 0
BANK = 1


@pytest.fixture
def server(shards_config):
    return shards_config


@pytest.fixture
async def store(server, exp_id):
    opened = store_of(server, exp_id)
    yield opened
    await opened.close()


async def town(messagers, **options):
    """Open the bank's recipients, and the bank."""
    hosts = {agent: await messagers(name=f"group-{agent}", host=[agent]) for agent in (2, 3)}
    bank = await messagers(name="bank", host=[BANK], **options)
    hosts[4] = await messagers(host=[4])
    homes = [bank.engine.transport.home(name) for name in ("bank", "group-2", "group-3", hosts[4].name)]
    assert homes == [0, 1, 2, 0]
    return bank, hosts


async def transact(bank, number, agents=AGENTS):
    """Send a number to agents in a transaction, and add it to the state."""
    async with bank.transaction() as tx:
        tx.send_messages([Outgoing.to_agent(agent, {"n": number}, from_id=BANK) for agent in agents])
        tx.state = b"%d" % (int(tx.state or b"0") + number)
    return tx.receipts


async def numbers(messager, count):
    """Fetch so many messages, and no more, and return their numbers."""
    found = [message.payload["n"] for message in await fetch_all(messager, count)]
    await messager.ack()
    assert len(await messager.fetch_messages(timeout=0)) == 0
    return found


async def outboxes(server, exp_id):
    """Tell for each shard whether it keeps an outbox of the bank."""
    found = []
    for each in server.servers:
        async with client_of(each) as client:
            found.append(await client.hexists(Keys(exp_id).sender("bank"), "outbox"))
    return found


async def state_of(bank):
    """Return the bank's state."""
    with contextlib.suppress(ZeroDivisionError):
        async with bank.transaction() as tx:
            state = tx.state
            1 / 0  # noqa: B018 - undo it
    return state


# -- what is written ---------------------------------------------------------------------------------------------------


async def test_a_transaction_reaches_mailboxes_on_all_shards(messagers, server, exp_id):
    bank, hosts = await town(messagers)
    for number in (1, 2, 3):
        assert (await transact(bank, number)).fates.tolist() == ["delivered"] * 3
        assert await outboxes(server, exp_id) == [False] * 3
    for host in hosts.values():
        assert await numbers(host, 3) == [1, 2, 3]
    assert await state_of(bank) == b"6"


async def test_a_transaction_within_its_shard_is_one_call(messagers):
    bank, hosts = await town(messagers)
    await transact(bank, 1)
    calls = []
    for number, shard in enumerate(bank.engine.transport.shards):
        whole = shard.link.script

        def run(name, *args, _whole=whole, _number=number, **options):
            calls.append((_number, name))
            return _whole(name, *args, **options)

        shard.link.script = run
    await transact(bank, 2, agents=(4, BANK))
    assert [call for call in calls if call[1] != "renew_leases"] == [(0, "send")]
    assert await numbers(hosts[4], 2) == [1, 2]


async def test_a_home_on_another_shard_publishes_on_the_control_shard(messagers, store):
    bank = await messagers(name="bank", host=[BANK])
    assert bank.engine.transport.home("bank") == 1
    news = await store.subscribe("news")
    async with bank.transaction() as tx:
        tx.send_message("news", {"n": 1}, BANK)
        tx.send_message("nobody", {"n": 2}, BANK)
    assert tx.receipts.fates.tolist() == ["published", "undeliverable"]
    assert await news() == ("news", b'{"n":1}')


async def test_sends_before_and_after_a_transaction_keep_their_order(messagers):
    bank, hosts = await town(messagers)

    async def send(number):
        await bank.send_messages([Outgoing.to_agent(agent, {"n": number}, from_id=BANK) for agent in AGENTS])

    for number in range(0, 30, 3):
        before = asyncio.create_task(send(number))
        await asyncio.sleep(0)
        await transact(bank, number + 1)
        await asyncio.gather(before, send(number + 2))
    for host in hosts.values():
        assert await numbers(host, 30) == [*range(30)]


# -- a process that ends -----------------------------------------------------------------------------------------------

COMMITTED = [
    ("send", 0, True),
    ("relay_frames", 1, False),
    ("relay_frames", 1, True),
    ("relay_frames", 2, False),
    ("relay_frames", 2, True),
    ("forget_sender", 0, False),
    ("forget_sender", 0, True),
]


@pytest.mark.parametrize(
    ("script", "shard", "after", "committed"),
    [("send", 1, True, False), ("send", 2, False, False), ("send", 0, False, False)]
    + [(*point, True) for point in COMMITTED],
)
async def test_a_successor_goes_on_where_a_process_ends(messagers, server, exp_id, script, shard, after, committed):
    bank, hosts = await town(messagers)
    await transact(bank, 1)
    cut = Cut(bank, script, shard=shard, after=after)
    with pytest.raises(MessagingError):
        await transact(bank, 2)
    assert cut.hit
    await vanish(bank)
    successor = await messagers(name="bank", host=[BANK])  # it has the epoch when this returns
    assert await outboxes(server, exp_id) == [False] * 3
    assert await state_of(successor) == (b"3" if committed else b"1")
    await transact(successor, 4)
    for host in hosts.values():
        assert await numbers(host, 3 if committed else 2) == ([1, 2, 4] if committed else [1, 4])


async def test_health_names_what_waits_for_a_process_that_has_ended(messagers, server, exp_id):
    async def problems():
        kept = (await asyncio.to_thread(backend_of(server).probe, exp_id)).kept
        dead = {mailbox.owner for mailbox in kept.mailboxes if mailbox.name == "bank"}
        return [finding for finding in check_kept(kept, dead) if "transaction" in finding.value]

    bank, _ = await town(messagers)
    Cut(bank, "send", shard=0, after=True)
    with pytest.raises(MessagingError):
        await transact(bank, 1)
    await vanish(bank)
    [finding] = await problems()
    assert (finding.level, finding.what) == ("warning", "mailbox 'bank'")
    assert "under this name" in finding.remedy
    await messagers(name="bank", host=[BANK])
    assert await problems() == []


async def test_a_successor_that_ends_while_it_relays_has_a_successor(messagers, server, exp_id):
    bank, hosts = await town(messagers)
    Cut(bank, "send", shard=0, after=True)
    with pytest.raises(MessagingError):
        await transact(bank, 1)
    await vanish(bank)
    hits = 0
    for script, shard, after in COMMITTED[1:-1]:
        late = Messager(server, exp_id, name="bank")
        await late.init()
        cut = Cut(late, script, shard=shard, after=after)
        with contextlib.suppress(MessagingError):
            await late.host_agents([BANK], ["agent-chat"])
        hits += cut.hit  # a shard that has its part is not asked again
        await vanish(late)
    assert hits >= 2
    last = await messagers(name="bank", host=[BANK])
    await transact(last, 2)
    for host in hosts.values():
        assert await numbers(host, 2) == [1, 2]


async def test_a_process_that_stood_still_after_its_commit_is_fenced_on_each_shard(messagers):
    bank, hosts = await town(messagers)
    successors, real = [], bank.engine.transport.shards[1].relay

    async def relay(*args, **options):
        successors.append(await messagers(name="bank", host=[BANK]))
        await transact(successors[0], 2)
        return await real(*args, **options)

    bank.engine.transport.shards[1].relay = relay
    with pytest.raises(OutcomeUnknown):
        await transact(bank, 1)
    with pytest.raises(Fenced):
        await bank.send_message(bank.get_agent_chat_channel(2), {"n": 99}, BANK)
    assert await state_of(successors[0]) == b"3"
    for host in hosts.values():
        assert await numbers(host, 2) == [1, 2]


POINTS = st.tuples(
    st.sampled_from(["send", "relay_frames", "forget_sender", "take_sender_epoch", "install_sender_epoch"]),
    st.integers(1, 6),
    st.booleans(),
)
TRANSACTIONS = st.lists(st.lists(st.sampled_from([2, 3, 5]), max_size=6), min_size=1, max_size=3)
_experiments = itertools.count()


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(lives=st.lists(st.tuples(st.none() | POINTS, TRANSACTIONS), min_size=1, max_size=5))
def test_each_message_comes_once_and_in_order_whatever_ends(lives, server):
    """Processes of one name make transactions, and end at some call; each committed message arrives."""
    asyncio.run(_live(lives, server, f"outbox-{next(_experiments)}"))


async def _live(lives, server, exp_id):
    hosts = {agent: Messager(server, exp_id, name=f"group-{agent}") for agent in (2, 3, 5)}
    for agent, host in hosts.items():
        await host.init()
        await host.host_agents([agent], ["agent-chat"])
    sent, acknowledged, counted = {agent: [] for agent in hosts}, 0, itertools.count(1)
    for point, transactions in lives:
        bank = Messager(server, exp_id, name="bank")
        await bank.init()
        if point is not None:
            Cut(bank, point[0], nth=point[1], after=point[2])
        with contextlib.suppress(MessagingError):
            await bank.host_agents([BANK], ["agent-chat"])
            for agents in transactions:
                number = next(counted)
                sent = {agent: [*found, *[number] * agents.count(agent)] for agent, found in sent.items()}
                await transact(bank, number, agents)
                acknowledged += number
        await vanish(bank)
    bank = Messager(server, exp_id, name="bank")
    await bank.init()
    await bank.host_agents([BANK], ["agent-chat"])
    state = int(await state_of(bank) or b"0")
    found = {agent: [message.payload["n"] for message in await drained(host)] for agent, host in hosts.items()}
    for messager in (bank, *hosts.values()):
        await messager.close()
    await asyncio.sleep(0.01)  # the loop ends with this: sockets close in its next turn
    arrived = set().union(*found.values())
    for agent, numbers_there in found.items():  # all of a transaction, or nothing of it
        assert numbers_there == [number for number in sent[agent] if number in arrived]
    silent = set(range(1, next(counted))) - set().union(*sent.values())
    assert sum(arrived) <= state <= sum(arrived) + sum(silent)
    assert acknowledged <= state


async def drained(messager):
    """Return all messages that wait."""
    found = []
    while len(some := await messager.fetch_messages(timeout=0, complete=True)):
        found += some
    return found


# -- a shard that is away ----------------------------------------------------------------------------------------------


async def own_town(opener, config, **options):
    """Open the bank and its recipients on servers of the test's own."""
    hosts = {agent: await opener(config, name=f"group-{agent}", host=[agent]) for agent in (2, 3)}
    bank = await opener(config, name="bank", host=[BANK], **options)
    hosts[4] = await opener(config, host=[4])
    return bank, hosts


def lose_after_commit(bank, shard, lose):
    """Call `lose` before the first relay to a shard."""
    real = bank.engine.transport.shards[shard].relay

    async def relay(*args, **options):
        bank.engine.transport.shards[shard].relay = real
        lose()
        return await real(*args, **options)

    bank.engine.transport.shards[shard].relay = relay


async def test_what_waits_for_a_shard_goes_there_when_it_is_back(processes, own_shards, opener, exp_id):
    bank, hosts = await own_town(opener, own_shards, send_timeout_s=0.5)
    await transact(bank, 1)
    lose_after_commit(bank, 2, processes[2].kill)
    with pytest.raises(OutcomeUnknown, match="is committed"):
        await transact(bank, 2)
    assert await numbers(hosts[2], 2) == [1, 2]
    processes[2].start()
    assert await numbers(hosts[3], 2) == [1, 2]  # nobody has asked for it
    await transact(bank, 3)
    assert await state_of(bank) == b"6"
    assert await numbers(hosts[3], 1) == [3]
    for messager in (bank, *hosts.values()):  # before their servers
        await messager.close()


async def test_a_shard_that_is_away_before_the_commit_costs_nothing(processes, own_shards, opener):
    bank, hosts = await own_town(opener, own_shards, send_timeout_s=0.5)
    await transact(bank, 1)
    processes[1].kill()
    with pytest.raises(MessagingError, match="nothing of this transaction was done"):
        await transact(bank, 2)
    assert await state_of(bank) == b"1"
    await transact(bank, 4, agents=(3, 4))
    processes[1].start()
    await transact(bank, 8)
    assert await numbers(hosts[2], 2) == [1, 8]
    assert await numbers(hosts[3], 3) == [1, 4, 8]
    for messager in (bank, *hosts.values()):
        await messager.close()


@pytest.mark.parametrize("shard", [0, 1, 2])
@pytest.mark.parametrize("up", [True, False], ids=["request", "reply"])
async def test_a_cut_on_one_shard_costs_and_doubles_nothing(messagers, opener, server, shard, up):
    hosts = {agent: await messagers(name=f"group-{agent}", host=[agent]) for agent in (2, 3, 4)}
    with Proxy(server.servers[shard]) as proxy:
        servers = list(server.servers)
        servers[shard] = proxy.config.model_copy(update={"socket_dir": None})
        bank = await opener(server.model_copy(update={"servers": tuple(servers)}), name="bank", host=[BANK])
        assert bank.engine.transport.home("bank") == 1
        for number in range(1, 21):
            proxy.lose(number % 3, up=up)
            assert (await transact(bank, number)).fates.tolist() == ["delivered"] * 3
        assert proxy.cuts > 10
        assert await state_of(bank) == b"%d" % sum(range(1, 21))
        await bank.close()
    for host in hosts.values():
        assert await numbers(host, 20) == [*range(1, 21)]


# -- full and removed mailboxes ----------------------------------------------------------------------------------------


async def test_a_full_mailbox_on_another_shard_refuses_the_whole_transaction(messagers):
    bank, hosts = await town(messagers, send_timeout_s=0.3)
    full = await messagers(name="full", host=["full"], mailbox_messages=2)
    assert bank.engine.transport.home("full") or (await bank.engine.frame_sender.reload()) is None
    await transact(bank, 1, agents=("full", "full"))
    with pytest.raises(MailboxFull, match="stayed full"):
        await transact(bank, 2, agents=("full", *AGENTS))
    assert await state_of(bank) == b"1"
    assert await numbers(full, 2) == [1, 1]
    await transact(bank, 3, agents=("full", *AGENTS))
    for host in (full, *hosts.values()):
        assert await numbers(host, 1) == [3]


async def test_a_mailbox_that_fills_up_after_the_commit_takes_what_was_committed(messagers, exp_id, server):
    bank, hosts = await town(messagers)
    full = await messagers(name="full", host=["full"], mailbox_messages=2)
    home = full.engine.transport.home("full")
    other = await messagers(name="other")
    real = bank.engine.transport.shards[home].relay

    async def relay(*args, **options):
        await other.send_messages([Outgoing.to_agent("full", {"n": 7}, from_id=9)] * 2)
        return await real(*args, **options)

    bank.engine.transport.shards[home].relay = relay
    assert (await transact(bank, 1, agents=("full", *AGENTS))).fates.tolist() == ["delivered"] * 4
    assert (await full.engine.transport.waiting())["full"] == 3
    assert await numbers(full, 3) == [7, 7, 1]
    for host in hosts.values():
        assert await numbers(host, 1) == [1]


async def test_a_mailbox_that_is_removed_after_the_commit_leaves_dead_letters(
    messagers, store, server, exp_id, tmp_path
):
    bank, hosts = await town(messagers)
    log = open_transport(server, exp_id, MessagingConfig())
    await log.connect()
    writer = LogWriter(log, Folder(tmp_path / "log"), exp_id)
    await writer.start()
    await transact(bank, 1)
    remover = await messagers()
    real = bank.engine.transport.shards[2].relay

    async def relay(*args, **options):
        bank.engine.transport.shards[2].relay = real
        await remover.engine.transport.remove("group-3", None)
        return await real(*args, **options)

    bank.engine.transport.shards[2].relay = relay
    assert (await transact(bank, 2, agents=(3, 3, *AGENTS))).fates.tolist() == ["delivered"] * 5
    assert (await transact(bank, 3)).fates.tolist() == ["delivered", "undeliverable", "delivered"]
    dead = await store.dead()
    assert {(mailbox, reason) for mailbox, reason, _ in dead} == {("group-3", "the mailbox was removed")}
    assert len(dead) == 2  # one from before, one of the relay
    await writer.caught_up()
    await writer.close()
    await log.close()
    table = EventLog.open(tmp_path / "log").query()
    to_3 = [
        fate for to, fate in zip(table["to_id"].to_pylist(), table["fate"].to_pylist(), strict=True) if str(to) == "3"
    ]
    assert sorted(to_3) == ["delivered"] * 4 + ["undeliverable"]
    assert await numbers(hosts[2], 3) == [1, 2, 3]


# -- rules -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delegated", [True, False], ids=["delegated", "asked"])
@pytest.mark.parametrize("successor", [True, False], ids=["successor", "same process"])
async def test_a_returned_change_of_the_rules_holds_for_what_waits_in_an_outbox(
    processes, own_shards, opener, exp_id, monkeypatch, tmp_path, delegated, successor
):
    monkeypatch.setattr(rule_delegation, "CALM_S", 0.0)
    epoch = InterceptorEpoch(own_shards, exp_id)
    rules = [BlackList([(-1, None)]), *([] if delegated else [MaxLength(1_000)])]
    actor = await Actor(epoch, exp_id).begin(*rules)
    hosts = {
        agent: await opener(own_shards, actor, name=f"group-{agent}", host=[agent, 10 + agent]) for agent in (2, 3)
    }
    log = open_transport(own_shards, exp_id, MessagingConfig())
    await log.connect()
    writer = LogWriter(log, Folder(tmp_path / "log"), exp_id)
    await writer.start()
    bank = await opener(own_shards, actor, name="bank", host=[BANK], send_timeout_s=0.5)
    passed = bank.stats()["delegated"]
    if delegated:
        while bank.stats()["delegated"] == passed:
            await transact(bank, 0, agents=(2,))
    before = bank.stats()["delegated"]
    lose_after_commit(bank, 2, processes[2].kill)
    with pytest.raises(OutcomeUnknown, match="is committed"):
        await transact(bank, 1, agents=(2, 3, 13, 3))
    assert (bank.stats()["delegated"] > before) is delegated
    if successor:
        await vanish(bank)
    processes[2].start()
    if not successor:  # its own relay must not come before the change
        bank.engine.transport.shards[2].link.patience_s = 0.0
    await actor.interceptor.change(lambda: actor.interceptor.black_list.add({(BANK, 13)}))
    if successor:
        bank = await opener(own_shards, actor, name="bank", host=[BANK])
    await transact(bank, 2, agents=(3,))
    assert await numbers(hosts[3], 3) == [1, 1, 2]
    await writer.caught_up()
    await writer.close()
    await log.close()
    table = EventLog.open(tmp_path / "log").query()
    rows = [*zip(table["to_id"].to_pylist(), table["fate"].to_pylist(), strict=True)]
    assert [(str(to), fate) for to, fate in rows if fate == "blocked"] == [("13", "blocked")]
    assert sum(str(to) == "3" for to, _ in rows) == 3
    for messager in (bank, *hosts.values()):
        await messager.close()
    await actor.close()
    await epoch.close()
