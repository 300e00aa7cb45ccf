"""A server that refuses a call has taken nothing: the sender gets that error, not OutcomeUnknown."""

import asyncio

import pytest
from faults.proxy import Proxy
from support.contracts import client_of, fetch_all, until

from ray_messaging import Outgoing
from ray_messaging.errors import ConnectionFailed, OutcomeUnknown, PayloadTooLarge, TransitError


@pytest.fixture
async def client(redis_process):
    client = client_of(redis_process.config)
    yield client
    await client.aclose()


async def refuse(client, *, writes):
    """Make the server refuse all writes, or accept them again."""
    await client.config_set("min-replicas-to-write", 0 if writes else 1)


async def test_a_send_refused_at_each_attempt_was_not_sent(redis_process, client, opener):
    receiver = await opener(redis_process.config, host=[1])
    sender = await opener(redis_process.config, send_timeout_s=0.5)
    await sender.send(None, 1, {"n": 0})
    await refuse(client, writes=False)
    with pytest.raises(ConnectionFailed, match=r"(?s)NOREPLICAS.*nothing of these messages was sent") as caught:
        await sender.send_messages([Outgoing.to_agent(1, {"n": "refused"}) for _ in range(3)])
    assert list(caught.value.receipts) == [None] * 3
    assert not isinstance(caught.value, OutcomeUnknown)
    assert "host and port" not in str(caught.value)  # it was reached
    await refuse(client, writes=True)
    assert (await sender.send(None, 1, {"n": 1})).fate == "delivered"
    assert [message.payload["n"] for message in await fetch_all(receiver, 2)] == [0, 1]


async def test_after_a_cut_attempt_the_outcome_is_unknown_despite_later_refusals(redis_process, client, opener):
    await opener(redis_process.config, host=[1])
    with Proxy(redis_process.config) as proxy, redis_process.client() as other:
        sender = await opener(proxy.config, send_timeout_s=1.0)
        await sender.send(None, 1, {"n": 0})
        proxy.lose(1, up=True, then=lambda: other.config_set("min-replicas-to-write", 1))
        with pytest.raises(OutcomeUnknown):
            await sender.send(None, 1, {"n": 1})
        assert proxy.spare()
        await refuse(client, writes=True)


async def test_a_refused_transaction_has_no_effect(redis_process, client, opener):
    worker = await opener(redis_process.config, name="worker", host=[1], send_timeout_s=0.5)
    receiver = await opener(redis_process.config, host=[2])
    await worker.send_message(worker.get_agent_chat_channel(1), {"n": 1})

    async def pass_on(*, refused):
        async with worker.transaction() as tx:
            [message] = await tx.fetch_messages(timeout=10)
            tx.send_message(worker.get_agent_chat_channel(2), message.payload)
            if refused:  # after the fetch: a process that stood still must renew its lease before it hands messages out
                await refuse(client, writes=False)

    with pytest.raises(ConnectionFailed, match="nothing of these messages was sent"):
        await pass_on(refused=True)
    await refuse(client, writes=True)
    await pass_on(refused=False)
    assert [message.payload["n"] for message in await fetch_all(receiver, 1)] == [1]


async def test_one_unknown_fate_makes_the_error_of_the_call_unknown(redis_process, opener):
    await opener(redis_process.config, name="small", host=[1], mailbox_bytes=4096)
    full = await opener(redis_process.config, name="full", host=[2], mailbox_messages=1)
    sender = await opener(redis_process.config, send_timeout_s=2.0)
    await sender.send_message(sender.get_agent_chat_channel(2), {"n": 0})
    sends = [Outgoing.to_agent(1, {"text": 100_000 * "x"}), Outgoing.to_agent(2, {"n": 1})]
    sending = asyncio.create_task(sender.send_messages(sends))
    await until(lambda: sender.stats()["outbox"] == 1)
    redis_process.kill()
    with pytest.raises(OutcomeUnknown, match="cannot hold") as caught:
        await sending
    assert list(caught.value.receipts) == [None, None]
    assert len(caught.value.message_ids) == 2
    redis_process.start()
    with pytest.raises(PayloadTooLarge):  # one error stays as it is
        await sender.send_messages(sends[:1])
    assert full.stats()["inbox"] <= 2


async def test_a_refused_close_raises_the_reason(redis_process, client, opener):
    receiver = await opener(redis_process.config, name="box", host=[1], send_timeout_s=0.3)
    await receiver.send_message(receiver.get_agent_chat_channel(1), {"n": 1})
    assert len(await fetch_all(receiver, 1)) == 1
    await refuse(client, writes=False)
    with pytest.raises(TransitError, match=r"(?s)NOREPLICAS.*gets them again") as caught:
        await receiver.close()
    assert "longer than" not in str(caught.value)
    await refuse(client, writes=True)
    successor = await opener(redis_process.config, name="box", host=[1])
    assert [message.payload["n"] for message in await fetch_all(successor, 1)] == [1]
