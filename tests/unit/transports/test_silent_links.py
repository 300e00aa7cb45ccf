"""Links that fall silent: a call, a link and a subscription notice it by themselves."""

import asyncio
import logging
import math

import pytest
from faults.proxy import Proxy
from redis.exceptions import TimeoutError as RedisTimeoutError
from support.contracts import fetch_all, until

from ray_messaging.errors import Closed
from ray_messaging.transports.connection.link import RedisLink
from ray_messaging.transports.connection.protocol import Wire


@pytest.fixture
def proxy(valkey_config):
    with Proxy(valkey_config) as made:
        yield made


@pytest.fixture
def server(valkey_config):
    return valkey_config


@pytest.mark.long
async def test_a_subscription_on_a_silent_link_is_restored(proxy, opener, store, monkeypatch, caplog):
    monkeypatch.setattr("ray_messaging.transports.ingress._SILENCE_S", 0.1)
    monkeypatch.setattr("ray_messaging.transports.ingress._PONG_S", 0.3)
    receiver = await opener(proxy.config, listen=["news", "n*"])
    proxy.swallow()
    with caplog.at_level(logging.ERROR):
        await until(lambda: receiver.engine.transport._ingress.cuts >= 1)

    async def arrived():
        await store.publish("news", b'{"n":1}')
        return receiver.stats()["ingress"] > 0

    await until(arrived)


@pytest.mark.long
async def test_a_subscription_without_messages_stays_open(valkey_config, opener, store, monkeypatch):
    monkeypatch.setattr("ray_messaging.transports.ingress._SILENCE_S", 0.02)
    receiver = await opener(valkey_config, listen=["news"])
    ingress = receiver.engine.transport._ingress
    sent, send = 0, ingress._connection.send_command

    async def counted(*args, **options):
        nonlocal sent
        sent += args == ("PING",)
        return await send(*args, **options)

    monkeypatch.setattr(ingress._connection, "send_command", counted)
    await until(lambda: sent >= 5)
    assert ingress.cuts == 0
    await store.publish("news", b'{"n":1}')
    assert len(await fetch_all(receiver, 1)) == 1


class Slow:
    """A connection that has sent some more of its buffer at each look."""

    def __init__(self, step):
        self.step = step
        self.left = 0
        self.looks = 0
        self.reply = []
        self.transport = self._writer = self

    def set_protocol(self, protocol):
        self.protocol = protocol

    def is_closing(self):
        return False

    def write(self, data):
        self.left += len(data)

    def get_write_buffer_size(self):
        self.looks += 1
        if self.reply:
            self.protocol.data_received(self.reply.pop(0))
        self.left = max(0, self.left - self.step)
        return self.left

    def abort(self):
        pass


@pytest.mark.parametrize("step", [10_000, 0], ids=["sent slowly", "without progress"])
async def test_a_large_command_is_given_up_when_nothing_moves_any_more(step):
    slow = Slow(step)
    with pytest.raises(RedisTimeoutError, match="no reply in time"):
        await Wire(slow).call([b"PUT", b"x" * 100_000], 60.0, 0.001)
    if step:
        assert (slow.left, slow.looks >= 11) == (0, True)
    else:
        assert slow.left > 100_000


async def test_later_writes_do_not_count_as_progress_of_a_stalled_command():
    slow = Slow(step=0)
    wire = Wire(slow)
    first = wire.call([b"PUT", b"x" * 100_000], 60.0, 0.01)
    later = [wire.call([b"PING"], 60.0, 0.01) for _ in range(3)]
    for call in (first, *later):
        with pytest.raises(RedisTimeoutError, match="no reply in time"):
            await call
    assert not wire.is_open


async def test_a_large_reply_received_slowly_is_not_a_stall():
    slow = Slow(step=10_000)
    slow.reply = [b"$100\r\n", *[b"x" * 10] * 10, b"\r\n"]
    assert await Wire(slow).call([b"XREAD"], math.inf, 0.001) == b"x" * 100
    assert slow.reply == []


async def test_a_link_that_falls_silent_after_an_answer_is_noticed():
    wire = Wire(Slow(step=10_000))
    for _ in range(3):
        first = wire.call([b"PING"], 60.0, 0.01)
        wire.data_received(b"+PONG\r\n")
        assert await first == b"PONG"
    calls = [wire.call([b"PING"], 60.0, 0.01) for _ in range(2)]
    wire.data_received(b"+PONG\r\n")
    assert await calls[0] == b"PONG"
    with pytest.raises(RedisTimeoutError, match="no reply in time"):
        await calls[1]
    assert not wire.is_open


async def test_a_call_has_its_own_timeout_beside_longer_ones():
    wire = Wire(Slow(step=10_000))
    long = wire.call([b"PING"], 60.0)
    with pytest.raises(RedisTimeoutError, match="no reply in time"):
        await wire.call([b"PING"], 0.001)
    with pytest.raises(RedisTimeoutError, match="no reply in time"):
        await long


async def test_the_reply_to_a_cancelled_call_goes_to_no_other_call():
    wire = Wire(Slow(step=10_000))
    gone, later = wire.call([b"GONE"], 60.0, 0.01), wire.call([b"PING"], 60.0)
    gone.cancel()
    wire.data_received(b"+GONE\r\n+PONG\r\n")
    assert await later == b"PONG"
    assert wire.is_open


async def test_a_link_that_is_closed_while_it_opens_leaves_no_connection(proxy):
    proxy.delay_s = 0.2
    link = RedisLink(proxy.config, 5.0)
    asking = asyncio.create_task(link.command("PING"))
    await until(lambda: proxy.connections > 0)
    await link.close()
    with pytest.raises(Closed):
        await asking
    await until(lambda: proxy.connections == 0)
