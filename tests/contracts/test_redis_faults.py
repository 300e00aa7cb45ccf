"""Faults on Redis: cuts, outages, refusals, and wrong servers."""

import asyncio
import logging
import time

import pytest
from faults.proxy import Proxy
from support.answering import HOST, answering
from support.contracts import client_of, fetch_all, full_memory, refused, until
from support.patience import AT_ONCE_S, WAIT_S

from ray_messaging import Messager, MessagingError, Outgoing, RedisConfig
from ray_messaging.errors import ConfigError, ConnectionFailed, Fenced, MailboxFull, OutcomeUnknown, ServerRefused

pytestmark = pytest.mark.one_server(
    "it cuts the link to one server; test_step_bodies.py and test_failover.py cut others"
)


def epoch_of(receipt):
    """Return the epoch under which its sender sent."""
    return int(receipt.message_id.split("-")[-2])


@pytest.fixture
def proxy(server):
    with Proxy(server) as made:
        yield made


@pytest.mark.parametrize("up", [False, True], ids=["reply lost", "request lost"])
async def test_a_cut_send_arrives_once(server, proxy, opener, store, up):
    receiver = await opener(server, name="group", host=[1, 2])
    sender = await opener(proxy.config)
    for n in range(3):
        proxy.lose(1, up=up)
        assert (await sender.send_message(sender.get_agent_chat_channel(1), {"n": n})).fate == "delivered"
    proxy.lose(1, up=up)
    receipts = await sender.send_columns([1] * 5, [1, 2] * 2 + [1], {"n": "all"})
    assert receipts.counts()["delivered"] == 5
    assert proxy.cuts == 4
    assert len(await store.entries("group")) == 4
    messages = await fetch_all(receiver, 8)
    assert [message.payload["n"] for message in messages] == [0, 1, 2] + ["all"] * 5
    assert len({message.id for message in messages}) == 8


async def test_the_fate_of_a_publication_survives_a_cut(proxy, opener, store):
    sender = await opener(proxy.config)
    await sender.flush()
    get = await store.subscribe("heard")
    await sender.send_message("heard", {"n": 0})  # so that the next piece is an answer to what is sent
    proxy.lose(1, up=False)
    receipts = await sender.send_messages(
        [Outgoing("heard", {"n": 1}), Outgoing("unheard", {}), Outgoing("heard", {"n": 2})]
    )
    assert proxy.cuts == 1
    assert receipts.fates.tolist() == ["published", "undeliverable", "published"]
    assert [(await get())[1] for _ in range(3)] == [b'{"n":%d}' % n for n in range(3)]
    await store.publish("heard", b"end")
    assert (await get())[1] == b"end"  # nothing was published twice


async def test_a_cut_subscription_is_restored(proxy, opener, store, caplog):
    receiver = await opener(proxy.config, listen=["news", "n*", "other"])
    proxy.cut()

    async def heard():
        """Return whether a message came; the server may count subscriptions of the cut connection for a moment."""
        asked = await store.publish("news", b'{"n":1}')
        found = await receiver.fetch_messages(timeout=0.1)
        assert all(message.payload == {"n": 1} for message in found)
        return asked == 2 and len(found) > 0  # by channel and by pattern

    with caplog.at_level(logging.ERROR):
        await until(heard)
    await receiver.subscribe_and_start_listening(["late"])
    assert await store.publish("late", b"{}") == 1
    found = await fetch_all(receiver, 1)
    while found[-1].channel != "late":  # published while only one of both subscriptions was restored
        assert found[-1].channel == "news"
        found = await fetch_all(receiver, 1)
    assert [message.channel for message in found].count("late") == 1


@pytest.mark.parametrize("nth", [1, 2, 3])
async def test_a_cut_while_the_mailbox_opens_is_repaired(server, proxy, opener, nth):
    receiver = await opener(proxy.config)
    proxy.lose(nth, up=False)
    await receiver.host_agents([1], ["agent-chat"])
    assert proxy.cuts == 1
    sender = await opener(server)
    assert (await sender.send_message(sender.get_agent_chat_channel(1), {"n": 1})).fate == "delivered"
    assert len(await fetch_all(receiver, 1)) == 1
    await receiver.ack()


async def test_sends_fail_while_the_server_is_away_and_work_after_its_restart(redis_process, opener):
    sender = await opener(redis_process.config, send_timeout_s=0.3)
    receiver = await opener(redis_process.config, name="group", host=[1], send_timeout_s=0.3)
    first = await sender.send(1, 1, {"n": 0})
    assert len(await fetch_all(receiver, 1)) == 1
    redis_process.kill()
    begin = time.monotonic()
    with pytest.raises(OutcomeUnknown) as caught:
        await sender.send_messages([Outgoing.to_agent(1, {"n": n}) for n in (1, 2)])
    assert time.monotonic() - begin < AT_ONCE_S
    assert list(caught.value.receipts) == [None, None]
    assert len(caught.value.message_ids) == 2
    assert isinstance(caught.value.__cause__, ConnectionFailed)
    with pytest.raises((OutcomeUnknown, ConnectionFailed)):
        await sender.send(None, 1, {"n": 3})
    assert sender.stats()["outbox"] == 0
    redis_process.start()
    receipt = await sender.send(None, 1, {"n": 4})
    assert receipt.fate == "delivered"
    later = await sender.send(None, 1, {"n": 5})
    assert epoch_of(later) > epoch_of(first)

    got = []
    async with asyncio.timeout(WAIT_S):
        while len(got) < 2:
            try:
                got += await receiver.fetch_messages(timeout=1)
            except ConnectionFailed:
                await asyncio.sleep(0)
    assert [message.payload["n"] for message in got] == [4, 5]


async def test_sends_continue_at_once_on_a_server_that_lost_writes(server, opener, store, caplog):
    receiver, sender = await opener(server, name="group", host=[1]), await opener(server)
    for n in range(3):
        await sender.send(None, 1, {"n": n})
    await store.client.hset(store.keys.sender(sender.name), "s:group", 1)
    with caplog.at_level(logging.ERROR):
        assert (await asyncio.wait_for(sender.send(None, 1, {"n": 3}), AT_ONCE_S)).fate == "delivered"
    assert [record.levelname for record in caplog.records if "lost messages" in record.message] == ["ERROR"]
    assert (await sender.send(None, 1, {"n": 4})).fate == "delivered"
    assert [message.payload["n"] for message in await fetch_all(receiver, 5)] == list(range(5))


async def refused_at_once(config, exp_id, kind):
    error = await asyncio.wait_for(refused(config, exp_id, kind), AT_ONCE_S)
    assert isinstance(error, MessagingError)
    assert isinstance(error, ConnectionError) == issubclass(kind, ConnectionFailed)
    return error


@pytest.mark.parametrize(
    ("changes", "kind", "says"),
    [
        ({"password": "wrong"}, ServerRefused, "password"),
        ({"password": None}, ServerRefused, "password"),
        ({"username": "nobody"}, ServerRefused, ""),
        ({"db": 9999}, ServerRefused, "9999"),
        ({"port": 1}, ConnectionFailed, "127.0.0.1:1"),
        ({"server": "no-such-host.invalid"}, ConnectionFailed, "no-such-host.invalid"),
        ({"server": "/no/such/socket"}, ConnectionFailed, "/no/such/socket"),
    ],
    ids=["wrong password", "no password", "user", "db", "port", "host", "socket"],
)
async def test_a_server_that_cannot_be_used_is_refused_at_once(server, exp_id, changes, kind, says):
    config = server.model_copy(update={"socket_dir": None} | changes)
    async with client_of(server) as client:
        before = (await client.info("stats"))["total_connections_received"]
        error = await refused_at_once(config, exp_id, kind)
        after = (await client.info("stats"))["total_connections_received"]
    assert after - before <= 1  # no retries
    assert isinstance(error, ConnectionFailed)
    assert isinstance(error, ConfigError) == (kind is ServerRefused)
    assert (error.host, error.port) == (config.server, config.port)
    assert says in str(error)
    assert "wrong" not in str(error)


def too_old(version):
    """Return a function that answers as a server of a version does."""
    text = f"# Server\r\nredis_version:{version}\r\n".encode()

    def answer(data):
        info = b"$%d\r\n%s\r\n" % (len(text), text)
        # A segment may hold several commands, or only the end of one, which its beginning has answered.
        commands = [command for command in data.split(b"*")[1:] if command[:1].isdigit()]
        return b"".join(info if b"\r\nINFO\r\n" in command.upper() else b"+OK\r\n" for command in commands)

    return answer


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        pytest.param(lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n", ConnectionFailed, "", id="of another kind"),
        pytest.param(too_old("6.2.14"), ConfigError, "7.0", id="too old"),
        pytest.param(too_old(""), ConfigError, "7.0", id="of no version"),
    ],
)
async def test_a_server_that_is_none_of_ours_is_refused(exp_id, answer, kind, says):
    async with answering(answer) as [port]:
        assert says in str(await refused_at_once(RedisConfig(server=HOST, port=port), exp_id, kind))


async def test_a_full_server_admits_a_successor_but_no_new_mailbox(redis_process, opener, exp_id):
    sender = await opener(redis_process.config, send_timeout_s=0.3)
    old = await opener(redis_process.config, name="box", host=[1], owner="us")
    await sender.send_message(sender.get_agent_chat_channel(1), {"n": 1}, 5)
    async with client_of(redis_process.config) as client, full_memory(client):
        with pytest.raises(MailboxFull, match="maxmemory"):
            await sender.send_message(sender.get_agent_chat_channel(1), {"n": 2})
        new = await opener(redis_process.config, name="box", host=[1], owner="us")
        assert [message.payload for message in await fetch_all(new, 1)] == [{"n": 1}]
        await new.ack()
        more = await opener(redis_process.config, name="more", send_timeout_s=0.2)
        with pytest.raises(MailboxFull, match="maxmemory"):
            await more.host_agents([2], ["agent-chat"])
        other = await opener(redis_process.config, name="box", send_timeout_s=0.2)
        with pytest.raises(MailboxFull, match="maxmemory"):  # its record would grow
            await other.host_agents([1, 3], ["agent-chat"], owner="us")
        assert len(await old.fetch_messages(timeout=5)) == 1  # it had it already, and can commit nothing any more
        with pytest.raises(Fenced):
            await old.ack()


async def test_a_full_server_publishes_nothing_but_foreign_messages_arrive(server, opener, store):
    sender, receiver = await opener(server, send_timeout_s=0.3), await opener(server, host=[1])
    channel = receiver.get_user_chat_channel(1)
    get, brackets = await store.subscribe("news"), await store.subscribe(store.keys.own)
    assert (await sender.send_message("news", {"n": 0})).fate == "published"
    async with full_memory(store.client):
        for n in (1, 2):
            with pytest.raises(MailboxFull, match="maxmemory"):
                await sender.send_message("news", {"n": n})
        assert await store.publish(channel, b'{"n":"while it is full"}') == 1
        assert [message.payload["n"] for message in await fetch_all(receiver, 1)] == ["while it is full"]
    assert await store.publish(channel, b'{"n":"after"}') == 1
    assert [message.payload["n"] for message in await fetch_all(receiver, 1)] == ["after"]
    assert (await sender.send_message("news", {"n": 3})).fate == "published"
    assert [(await get())[1] for _ in range(2)] == [b'{"n":0}', b'{"n":3}']
    assert [(await brackets())[1] for _ in range(4)] == [b"(", b")", b"(", b")"]


async def test_a_subscription_without_messages_is_not_cut(server, exp_id, caplog):
    """`timeout` bounds a command; a foreign client may be silent for longer."""
    config = server.model_copy(update={"timeout": 0.3})
    async with Messager(config, exp_id) as receiver, client_of(server) as foreign:
        await receiver.subscribe_and_start_listening(["news"])
        assert len(await receiver.fetch_messages(timeout=1.0)) == 0
        assert await foreign.publish("news", b"{}") == 1
        assert len(await fetch_all(receiver, 1)) == 1
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []
