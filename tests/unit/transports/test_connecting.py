"""Connections to a server that does not answer, answers late, or is busy; and none after the end."""

import asyncio

import pytest
from faults.proxy import Proxy
from redis.exceptions import ResponseError
from support.answering import HOST, answering
from support.contracts import RedisStore, client_of, fetch_all, refused, until
from support.patience import AT_ONCE_S, WAIT_S

from ray_messaging import Messager, RedisConfig
from ray_messaging.errors import Closed, ConnectionFailed
from ray_messaging.transports.connection.link import RedisLink
from ray_messaging.transports.connection.protocol import reply_error
from ray_messaging.transports.transport import RedisTransport


@pytest.fixture
def proxy(server):
    with Proxy(server) as made:
        yield made


async def test_a_server_that_never_answers_raises(exp_id, monkeypatch):
    monkeypatch.setattr("ray_messaging.transports.connection.link.CONNECT_TIMEOUT_S", 0.2)
    async with answering(lambda _: None) as [port]:
        config = RedisConfig(server=HOST, port=port, connect_timeout=0.2)
        error = await asyncio.wait_for(refused(config, exp_id, ConnectionFailed), AT_ONCE_S)
    assert "time" in str(error)


async def test_a_server_that_is_slow_to_answer_is_asked_again(proxy, exp_id, monkeypatch):
    monkeypatch.setattr("ray_messaging.transports.connection.link.CONNECT_TIMEOUT_S", 0.5)
    proxy.hold(b"INFO")
    await asyncio.wait_for(
        refused(proxy.config.model_copy(update={"connect_timeout": 0.1}), exp_id, ConnectionFailed), AT_ONCE_S
    )
    proxy.hold(b"INFO")
    async with Messager(proxy.config.model_copy(update={"connect_timeout": 60.0}), exp_id) as messager:
        assert (await messager.send_message("news", {})).fate == "undeliverable"
    assert proxy.held == 2


async def test_a_link_that_is_closed_while_it_asks_again_stays_closed(proxy, monkeypatch):
    monkeypatch.setattr("ray_messaging.transports.connection.link.CONNECT_TIMEOUT_S", 0.5)
    proxy.hold(b"*")  # the first request of all
    link = RedisLink(proxy.config.model_copy(update={"connect_timeout": 60.0}), 30.0)
    connecting = asyncio.create_task(link.connect())
    await until(lambda: proxy.held == 1)
    await link.close()
    with pytest.raises(Closed):
        await connecting
    with pytest.raises(Closed):
        await link.command("PING")


async def test_a_call_after_the_end_opens_no_connection(server, exp_id):
    transport = RedisTransport(server, exp_id, patience_s=10.0)
    await transport.connect()
    await transport.close()
    store = RedisStore(server, exp_id)
    before = len(await store.client.client_list())
    for call in (lambda: transport.waiting(), lambda: transport.read("box", "0-0", 1, 0.1)):
        with pytest.raises(Closed, match="is closed") as caught:
            await call()
        assert caught.value.unsent
    assert len(await store.client.client_list()) == before
    await store.close()


async def test_messagers_continue_after_a_server_was_busy(server, opener, store, monkeypatch):
    told = {"wire": asyncio.Event(), "ingress": asyncio.Event()}

    def seen(text):
        if text.startswith("BUSY"):
            told["wire"].set()
        return reply_error(text)

    monkeypatch.setattr("ray_messaging.transports.connection.protocol.reply_error", seen)
    sender, receiver = await opener(server), await opener(server, host=[1])
    channel, link = sender.get_agent_chat_channel(1), receiver.engine.transport.link
    translated = link.translated

    def noted(error):
        if "BUSY" in str(error):
            told["ingress"].set()
        return translated(error)

    monkeypatch.setattr(link, "translated", noted)
    await sender.send_message(channel, {"n": 0})
    assert len(await fetch_all(receiver, 1)) == 1
    await store.client.config_set("busy-reply-threshold", 20)
    other = client_of(server)
    await other.client_kill_filter(_type="pubsub")
    script = asyncio.create_task(other.eval("while true do end", 0))
    try:
        await until(lambda: is_busy(store.client))
        receiver.engine.transport._reading.close()  # like a cut: it asks again in the middle of this
        sending = asyncio.create_task(sender.send_message(channel, {"n": 1}))
        await asyncio.wait_for(told["wire"].wait(), WAIT_S)
        await asyncio.wait_for(told["ingress"].wait(), WAIT_S)
    finally:
        await store.client.script_kill()
        await asyncio.gather(script, return_exceptions=True)
        await store.client.config_set("busy-reply-threshold", 5000)
        await other.aclose()
    assert (await asyncio.wait_for(sending, WAIT_S)).fate == "delivered"
    assert [message.payload["n"] for message in await fetch_all(receiver, 1)] == [1]
    await store.heard_by(1, channel, b'{"n":2}')
    assert [message.payload["n"] for message in await fetch_all(receiver, 1)] == [2]


async def is_busy(client):
    try:
        await client.exists("key")
    except ResponseError as error:
        return "BUSY" in str(error)
    return False
