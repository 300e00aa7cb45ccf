"""Cursors of a named mailbox's reader on MQTT: kept in pages, for any number of senders."""

import asyncio
import time

import pytest
from support.contracts import MqttStore, fetch_all, until

from ray_messaging.errors import ConnectionFailed, Fenced
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn, PayloadColumn
from ray_messaging.mqtt.receiving import cursors
from ray_messaging.mqtt.wire.messages import Data, decode_positions, encode_data
from ray_messaging.wire.frames import encode

PACKET = 4000  # bytes; our pages are smaller by what comes round them
MANY = 160  # senders; one page of that size takes the places of about 70


@pytest.fixture
def broker(mosquittos):
    return mosquittos(durable=False, options=[f"max_packet_size {PACKET}"])


class Crowd:
    """Senders that live for one message, at a broker that may lose its memory."""

    def __init__(self, broker, exp_id):
        self.broker = broker
        self.exp_id = exp_id
        self.store = None

    async def open(self):
        self.store = await MqttStore(self.broker.config, self.exp_id, []).open()

    async def send(self, numbers, seq=1):
        await asyncio.gather(*(self._send(number, seq) for number in numbers))

    async def _send(self, number, seq):
        batch = Batch(
            sender=f"crowd-{number}",
            epoch=7,
            first=seq,
            from_ids=IdColumn.of([7]),
            rows=1,
            to_ids=IdColumn.of([1]),
            topics=("agent-chat",),
            lines=PayloadColumn.of([b'{"n":%d}' % number]),
        )
        data = Data(batch.sender, 7, seq, 1, seq - 1, encode(batch))
        await self.store.publisher.publish(self.store.topics.mailbox("group"), encode_data(data), qos=1)

    async def pages(self):
        client = await self.store.client(self.store.topics.cursors("group"))
        return {message.topic.value: message.payload for message in await self.store.drain(client)}

    async def kept(self):
        return {sender for payload in (await self.pages()).values() for sender in decode_positions(payload)}

    async def close(self):
        await self.store.close()


@pytest.fixture
async def crowd(broker, exp_id):
    made = Crowd(broker, exp_id)
    await made.open()
    yield made
    await made.close()


def names(numbers):
    return {f"crowd-{number}" for number in numbers}


async def handle(receiver, count):
    """Fetch and commit."""
    found = [message.payload["n"] for message in await fetch_all(receiver, count)]
    await receiver.ack()
    return found


async def test_a_commit_publishes_the_changed_pages_only(broker, opener, crowd):
    receiver = await opener(broker.config, name="group", host=[1])
    await crowd.send(range(MANY))
    assert sorted(await handle(receiver, MANY)) == list(range(MANY))
    pages = await crowd.pages()
    assert 2 <= len(pages) <= 4
    assert await crowd.kept() == names(range(MANY))
    listener = await crowd.store.client(crowd.store.topics.cursors("group"))
    await crowd.store.drain(listener)
    await crowd.send([5], seq=2)
    assert await handle(receiver, 1) == [5]
    (moved,) = await crowd.store.drain(listener)
    assert len(moved.payload) < PACKET // 2
    assert "crowd-5" in decode_positions(moved.payload)


async def test_a_successor_goes_on_with_each_sender(broker, opener, crowd):
    first = await opener(broker.config, name="group", host=[1])
    await crowd.send(range(MANY))
    await handle(first, MANY)
    await first.close()
    second = await opener(broker.config, name="group", host=[1])
    await crowd.send(range(MANY))  # as uninformed senders do
    await crowd.send([3, MANY - 1], seq=2)
    await crowd.send([MANY])
    assert sorted(await handle(second, 3)) == [3, MANY - 1, MANY]
    assert await crowd.kept() == names(range(MANY + 1))


async def test_a_sender_silent_for_a_day_is_forgotten(broker, opener, crowd, monkeypatch):
    receiver, ahead = await opener(broker.config, name="group", host=[1]), 0
    monkeypatch.setattr(cursors, "monotonic", lambda: time.monotonic() + ahead)
    await crowd.send(range(MANY))
    await handle(receiver, MANY)
    ahead = 50_000
    await crowd.send([0, 80, 159], seq=2)
    await handle(receiver, 3)
    assert await crowd.kept() == names(range(MANY))
    ahead = 100_000
    for seq in range(3, 10):
        await crowd.send([80], seq=seq)
        await handle(receiver, 1)
    remembered = await crowd.kept()
    assert names([0, 80, 159]) <= remembered
    assert len(remembered) < MANY // 2
    for seq in range(3, 5):
        await crowd.send([0, 159], seq=seq)
        await handle(receiver, 2)
    assert await crowd.kept() == names([0, 80, 159])


async def test_the_number_of_pages_is_bounded(broker, opener, crowd, monkeypatch):
    monkeypatch.setattr(cursors, "_MAX_PAGES", 2)
    receiver = await opener(broker.config, name="group", host=[1])
    for begin in range(0, MANY, 40):
        await crowd.send(range(begin, begin + 40))
        await handle(receiver, 40)
    assert len(await crowd.pages()) == 2
    kept = await crowd.kept()
    assert names(range(MANY - 40, MANY)) <= kept
    assert len(kept) < MANY


async def test_pages_lost_by_the_broker_are_published_again(broker, opener, crowd):
    receiver = await opener(broker.config, name="group", host=[1])
    await crowd.send(range(MANY))
    await handle(receiver, MANY)
    await crowd.close()
    broker.kill()
    broker.start()
    await crowd.open()
    await receiver.engine.transport._receiver.session.link.wait_connected(10)
    await crowd.send([5], seq=2)
    assert await handle(receiver, 1) == [5]
    assert await crowd.kept() == names(range(MANY))


async def test_a_page_that_could_not_be_published_is_published_next_time(broker, opener, crowd, monkeypatch):
    receiver = await opener(broker.config, name="group", host=[1])
    control = receiver.engine.transport._control
    retain = control.retain

    async def fail(*_said):
        raise ConnectionFailed("cut by the test")

    await crowd.send(range(MANY))
    await fetch_all(receiver, MANY)
    monkeypatch.setattr(control, "retain", fail)
    with pytest.raises(ConnectionFailed):
        await receiver.ack()
    monkeypatch.setattr(control, "retain", retain)
    await crowd.send([3], seq=2)
    await handle(receiver, 1)
    assert await crowd.kept() == names(range(MANY))


@pytest.mark.parametrize("ours", [True, False], ids=["by its reader", "by another"])
async def test_pages_are_removed_with_the_mailbox(broker, opener, crowd, ours):
    receiver, other = await opener(broker.config, name="group", host=[1]), await opener(broker.config)
    await crowd.send(range(MANY))
    await handle(receiver, MANY)
    remover = receiver if ours else other
    await remover.engine.transport.remove("group", None)
    assert await crowd.pages() == {}


async def test_foreign_pages_are_ignored(broker, opener, crowd):
    for page in ("1/0", "1/1", "9/0", "9/7", "3/999999999", "west/0", "-1/-1"):
        topic = crowd.store.topics.cursors("group").replace("+/+", page)
        await crowd.store.publisher.publish(topic, b"no page", qos=1, retain=True)
    receiver = await opener(broker.config, name="group", host=[1])
    await crowd.send(range(MANY))
    assert len(await handle(receiver, MANY)) == MANY
    await receiver.close()
    second = await opener(broker.config, name="group", host=[1])
    await crowd.send(range(MANY))
    await crowd.send([3], seq=2)
    assert await handle(second, 1) == [3]


# -- readers with an unnoticed successor ------------------------------------------------------------------------------


async def stand_still(messager, *, still):
    """Cut a messager off from the broker's messages, or connect it again."""
    transport = messager.engine.transport
    for link in (transport._control.link, transport._receiver.session.link):
        link.pause() if still else link.resume()


async def vanish(messager):
    """End a messager without a goodbye."""
    engine = messager.engine
    await engine.accumulator.stop(RuntimeError("vanished"))
    engine.subscription._renewing.cancel()
    await asyncio.gather(engine.subscription._renewing, return_exceptions=True)
    await engine.subscription._reader.close()
    await engine.transport._receiver.session.link.abort()
    await engine.transport._control.link.abort()
    await engine.transport.close()
    engine.closed = True


async def test_a_reader_with_a_successor_moves_no_cursor(broker, opener, crowd):
    first = await opener(broker.config, name="group", host=[1])
    await crowd.send(range(20))
    await fetch_all(first, 20)
    await stand_still(first, still=True)
    second = await opener(broker.config, name="group", host=[1])
    handled = [message.payload["n"] for message in await fetch_all(second, 5, limit=5)]
    await second.ack()
    late = asyncio.create_task(first.ack())

    async def said():
        return any(topic.endswith("/1/0") for topic in await crowd.pages())

    await until(said)  # that it has handled all
    await stand_still(first, still=False)
    with pytest.raises(Fenced):
        await late
    for messager in (second, first):
        await vanish(messager)
    third = await opener(broker.config, name="group", host=[1])
    rest = [message.payload["n"] for message in await fetch_all(third, 15)]
    assert sorted(handled + rest) == list(range(20))
    assert {topic.split("/")[4] for topic in await crowd.pages()} == {"3"}


async def test_a_reader_that_died_while_copying_pages_loses_no_cursor(broker, opener, crowd):
    first = await opener(broker.config, name="group", host=[1])
    await crowd.send(range(MANY))
    await handle(first, MANY)
    await first.close()
    pages = await crowd.pages()
    topic, page = next((topic, page) for topic, page in pages.items() if not topic.endswith("/0"))
    await crowd.store.publisher.publish(topic.replace("/1/", "/2/"), page, qos=1, retain=True)
    second = await opener(broker.config, name="group", host=[1])
    await crowd.send(range(MANY))
    await crowd.send([3], seq=2)
    assert await handle(second, 1) == [3]
    assert await crowd.kept() == names(range(MANY))
