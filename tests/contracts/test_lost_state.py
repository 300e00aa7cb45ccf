"""Servers that lost data (flushed, or restored from older data): clients get an error, and old owners stay fenced."""

import asyncio
import logging

import pytest
from support.contracts import WAIT_S, fetch_all

from ray_messaging.errors import Fenced, NotListening, TransactionError


class Backup:
    """Copy an experiment's keys, and put them back as they were."""

    def __init__(self, store):
        self.client = store.client
        self.pattern = store.keys.prefix.replace("[", "\\[") + "*"

    async def wipe(self):
        """Delete all keys, as FLUSHALL does."""
        async for key in self.client.scan_iter(self.pattern, count=1000):
            await self.client.delete(key)

    async def take(self):
        found = [
            (key, max(0, await self.client.pttl(key)), await self.client.dump(key))
            async for key in self.client.scan_iter(self.pattern, count=1000)
        ]
        self.kept = [entry for entry in found if entry[2] is not None]  # a lease may just have ended
        return self

    async def restore(self):
        await self.wipe()
        for key, ttl, value in self.kept:
            await self.client.restore(key, ttl, value)


@pytest.fixture
def backup(store):
    return Backup(store)


async def test_senders_and_receivers_on_a_flushed_server_get_an_error(messagers, backup):
    receiver, sender = await messagers(name="group", host=[1]), await messagers()
    await sender.send(None, 1, {"n": 1})
    await fetch_all(receiver, 1)
    await backup.wipe()
    with pytest.raises(Fenced, match=f"{sender.name}.*flushed") as caught:
        await sender.send(None, 1, {"n": 2})
    assert "another messager" not in str(caught.value)
    with pytest.raises(Fenced):  # for good
        await sender.send(None, 1, {"n": 3})
    with pytest.raises(Fenced, match=r"'group'.*flushed"):
        await receiver.ack()


async def test_an_idle_receiver_notices_a_flush_at_its_lease_renewal(messagers, backup):
    receiver = await messagers(host=[1], lease_s=0.3)
    await backup.wipe()
    with pytest.raises(NotListening, match="flushed"):
        await receiver.fetch_messages(timeout=WAIT_S)


async def test_a_receiver_that_subscribes_after_a_flush_gets_an_error(messagers, backup):
    receiver = await messagers(listen=["news"])
    await backup.wipe()
    with pytest.raises(Fenced, match="flushed"):
        await receiver.subscribe_and_start_listening(["more"])


async def test_messagers_from_before_a_flush_stay_fenced(messagers, backup):
    old, old_sender = await messagers(name="group", host=[1]), await messagers(name="sender")
    await old_sender.send(None, 1, {"n": "before"})
    await fetch_all(old, 1)
    await backup.wipe()
    new, new_sender = await messagers(name="group", host=[1]), await messagers(name="sender")
    receipts = [await new_sender.send(None, 1, {"n": n}) for n in range(5)]
    assert [message.payload["n"] for message in await fetch_all(new, 5)] == [0, 1, 2, 3, 4]
    assert old.stats()["inbox"] == 0  # it does not even read the new owner's messages
    for call in (old.ack(), old_sender.send(None, 1, {"n": "after"})):
        with pytest.raises(Fenced):
            await call
    assert len(await new.fetch_messages()) == 0
    assert len({receipt.message_id for receipt in receipts}) == 5


async def test_a_sender_continues_after_a_restore_of_older_data(messagers, backup, caplog):
    receiver, first = await messagers(host=[1, 2]), await messagers(name="sender")
    await first.send(None, 1, {"n": 0})
    await first.close()
    await backup.take()
    second = await messagers(name="sender")
    for n in (1, 2):
        await second.send(None, 1, {"n": n})
    assert len(await fetch_all(receiver, 3)) == 3
    await backup.restore()
    with caplog.at_level(logging.ERROR):
        receipts = await second.send_columns([1] * 4, [1, 2] * 2, {"n": "new"})
    assert receipts.counts()["delivered"] == 4
    assert "restored from older data" in caplog.text
    assert [message.payload["n"] for message in await fetch_all(receiver, 4)] == ["new"] * 4
    third = await messagers(name="sender")
    assert (await third.send(None, 1, {"n": 5})).fate == "delivered"
    with pytest.raises(Fenced, match="another messager"):
        await second.send(None, 1, {"n": 6})


async def test_after_a_restore_only_one_of_two_senders_of_a_name_continues(messagers, backup):
    receiver, first = await messagers(host=[1]), await messagers(name="sender")
    await first.send(None, 1, {"n": 0})
    await backup.take()
    second, third = await messagers(name="sender"), await messagers(name="sender")
    await second.flush()
    for messager in (second, third):  # each takes its epoch with its first message
        await messager.send(None, 1, {"n": 1})
    await backup.restore()
    results = await asyncio.gather(
        *(messager.send(None, 1, {"n": 2}) for messager in (second, third)), return_exceptions=True
    )
    alive = [result for result in results if not isinstance(result, Exception)]
    assert all(isinstance(result, Fenced) for result in results if isinstance(result, Exception))
    assert len(await fetch_all(receiver, 3 + len(alive))) == 3 + len(alive)
    last = await asyncio.gather(
        *(messager.send(None, 1, {"n": 3}) for messager in (second, third)), return_exceptions=True
    )
    assert sum(isinstance(result, Fenced) for result in last) == 1


async def test_a_reader_newer_than_the_restored_data_gets_an_error(messagers, backup):
    first, sender = await messagers(name="group", host=[1]), await messagers()
    await sender.send(None, 1, {"n": 0})
    await first.close()
    await backup.take()
    second = await messagers(name="group", host=[1])
    assert len(await fetch_all(second, 1)) == 1
    await backup.restore()
    with pytest.raises(Fenced, match="restored from older data"):
        await second.ack()
    await second.close()
    third = await messagers(name="group", host=[1])
    assert [message.payload["n"] for message in await fetch_all(third, 1)] == [0]


async def test_a_transaction_on_a_restored_server_has_no_effect(messagers, backup):
    first = await messagers(name="worker", host=[1])
    channel = first.get_agent_chat_channel(1)
    await first.send_message(channel, {"n": 0})
    await first.close()
    await backup.take()
    worker = await messagers(name="worker", host=[1])
    await worker.send_message(channel, {"n": 1})
    await backup.restore()

    async def pass_on():
        async with worker.transaction() as tx:
            await tx.fetch_messages(timeout=WAIT_S)
            tx.send_message(channel, {"n": 2})

    with pytest.raises((TransactionError, Fenced)):
        await pass_on()
    await worker.close()
    successor = await messagers(name="worker", host=[1])
    assert [message.payload["n"] for message in await fetch_all(successor, 1)] == [0]


async def test_a_messager_that_reads_the_directory_of_a_restored_server_forgets_what_came_later(messagers, backup):
    sender, group = await messagers(name="sender", host=[2]), await messagers(name="group", host=[1])
    await backup.take()
    await group.remove_agents([1])
    await sender.add_agents([3])  # reads the directory
    await backup.restore()
    await sender.add_agents([4])  # reads the older one
    assert {(await sender.send(None, agent, {})).fate for agent in (1, 2, 3, 4)} == {"delivered"}
