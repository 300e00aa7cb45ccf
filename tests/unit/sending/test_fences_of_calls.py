"""Calls that arrive after their sender has given them up: a fence on the server refuses them."""

import asyncio
import signal
from functools import partial

import pytest
from faults.proxy import Proxy
from support.contracts import RedisStore, fetch_all, until
from support.patience import WAIT_S

from ray_messaging.common.backoff import RetryPolicy
from ray_messaging.errors import ConnectionFailed, MailboxFull, OutcomeUnknown
from ray_messaging.transports.transport_values import FrameFate

HELD = "held-by-proxy"  # no script contains this text, so that the proxy holds back the payload's requests only
FENCED = b"*1\r\n:3\r\n"  # the send script's answer to a sender with a higher epoch


def epoch_of(receipt):
    """Return the epoch under which its sender sent."""
    return int(receipt.message_id.split("-")[-2])


async def fenced(store, sender, before):
    """Return whether the server has a higher epoch of a sender."""
    return int(await store.client.hget(store.keys.sender(sender.name), "epoch")) > before


@pytest.fixture
def proxy(server):
    with Proxy(server) as made:
        yield made


async def test_a_call_that_arrives_after_its_unknown_outcome_is_fenced(server, proxy, opener, store, monkeypatch):
    monkeypatch.setattr("ray_messaging.sending.frame_sender.FENCE_RETRY", RetryPolicy(0.02, 0.02))
    receiver = await opener(server, name="group", host=[1])
    sender = await opener(proxy.config, send_timeout_s=0.5)
    before = epoch_of(await sender.send(None, 1, {"n": 0}))
    proxy.hold(HELD.encode(), repeats=True)
    with pytest.raises(OutcomeUnknown, match="may still arrive"):
        await sender.send(None, 1, {"n": 1, "t": HELD})

    await until(partial(fenced, store, sender, before))
    proxy.let_go()
    for _ in range(proxy.held):
        assert await asyncio.to_thread(proxy.answers.get, timeout=WAIT_S) == FENCED
    assert proxy.held >= 1
    assert (await sender.send(None, 1, {"n": 2})).fate == "delivered"
    assert [message.payload["n"] for message in await fetch_all(receiver, 2)] == [0, 2]


async def test_a_stopped_server_that_continues_writes_nothing_twice(redis_process, opener, exp_id, monkeypatch):
    monkeypatch.setattr("ray_messaging.sending.frame_sender.FENCE_RETRY", RetryPolicy(0.02, 0.02))
    receiver = await opener(redis_process.config, name="group", host=[1])
    sender = await opener(redis_process.config.model_copy(update={"timeout": 0.3}), send_timeout_s=0.3)
    store = RedisStore(redis_process.config, exp_id)
    before = epoch_of(await sender.send(None, 1, {"n": 0}))
    take, failures = sender.engine.transport.take_sender_epoch, []

    async def noted(*args, **options):
        try:
            return await take(*args, **options)
        except ConnectionFailed as error:
            failures.append(error)
            raise

    sender.engine.transport.take_sender_epoch = noted
    redis_process.process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(OutcomeUnknown, match="may still arrive"):
            await sender.send(None, 1, {"n": 1})
        await until(lambda: len(failures) >= 2)  # by itself, and again
    finally:
        redis_process.process.send_signal(signal.SIGCONT)

    await until(partial(fenced, store, sender, before))
    there = len(await store.entries("group"))  # from now on no old call can arrive
    await store.close()
    assert (await sender.send(None, 1, {"n": 2})).fate == "delivered"
    found = [message.payload["n"] for message in await fetch_all(receiver, there + 1)]
    assert found in ([0, 2], [0, 1, 2])


async def test_the_late_attempt_of_a_refused_call_is_fenced(server, proxy, opener, store):
    receiver = await opener(server, name="group", host=[1], mailbox_messages=4)
    # Each attempt has 0.5 s, the call 2 s: the first one is held, the second one finds the mailbox full.
    sender = await opener(proxy.config.model_copy(update={"timeout": 0.5}), send_timeout_s=2)
    for n in range(4):
        await sender.send(None, 1, {"n": n})
    real, replies = sender.engine.transport.send, []

    async def send(request):
        replies.append(await real(request))
        return replies[-1]

    sender.engine.transport.send = send
    proxy.hold(HELD.encode())
    with pytest.raises(MailboxFull):
        await sender.send(None, 1, {"n": 4, "t": HELD})
    assert proxy.held == 1
    assert replies[0].repeated
    assert FrameFate.FULL in replies[0].fates
    assert len(await fetch_all(receiver, 4)) == 4
    await receiver.ack()
    proxy.let_go()
    assert await asyncio.to_thread(proxy.answers.get, timeout=WAIT_S) == FENCED
    assert await store.entries("group") == []
    assert (await sender.send(None, 1, {"n": 5})).fate == "delivered"
    assert not replies[-1].repeated
    assert [message.payload["n"] for message in await fetch_all(receiver, 1)] == [5]
    await receiver.ack()
    assert await store.entries("group") == []
