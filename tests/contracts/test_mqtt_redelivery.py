"""Redelivered, undeliverable and unreadable MQTT messages: each message comes once, and no link ends."""

import asyncio

import msgspec
import pytest
from support.contracts import MqttStore, fetch_all, take_in, until, vanish
from support.patience import WAIT_S

from ray_messaging.errors import ConnectionFailed
from ray_messaging.mqtt.connection import connection
from ray_messaging.mqtt.connection.control_link import ControlLink
from ray_messaging.mqtt.connection.packets import Arrival
from ray_messaging.mqtt.receiving import mailbox
from ray_messaging.mqtt.receiving import receiver as receiver_module
from ray_messaging.mqtt.receiving.foreign import ForeignMessages
from ray_messaging.mqtt.wire.messages import Data, encode_data
from ray_messaging.receiving import subscription

LIMIT = 1_000_000


@pytest.fixture
def server(mosquitto_config):
    return mosquitto_config


@pytest.fixture
async def store(server, exp_id):
    opened = await MqttStore(server, exp_id, []).open()
    yield opened
    await opened.close()


@pytest.fixture
def small(monkeypatch):
    """Settings with a small mailbox."""
    monkeypatch.setattr(mailbox, "_MAX_UNREAD_BYTES", LIMIT)


def link_of(receiver):
    return receiver.engine.transport._receiver.session.link


async def cut(receiver):
    """Cut the mailbox's connection; return when the broker has redelivered everything."""
    link = link_of(receiver)
    link._connection.drop(ConnectionFailed("cut by the test"))
    await link.wait_connected(10)


def numbers(messages):
    return [message.payload["n"] for message in messages]


async def publish(store, *ns, text=""):
    for n in ns:
        await store.publish("news", b'{"n":%d,"text":"%s"}' % (n, text.encode()))


async def send(sender, *ns, nbytes=0):
    for n in ns:
        receipt = await sender.send_message(sender.get_agent_chat_channel(1), {"n": n, "text": "x" * nbytes}, from_id=0)
        assert receipt.fate == "delivered"


async def fill(sender, receiver, nbytes):
    """Send 1 MB at a time until the mailbox is full and `nbytes` more wait; return the number of messages."""
    box = receiver.engine.transport._receiver.mailbox
    count = more = 0
    while not box.full or more * LIMIT < nbytes:
        await send(sender, count, nbytes=LIMIT)
        count += 1
        more += box.full
    return count


# -- foreign clients --------------------------------------------------------------------------------------------------


async def test_waiting_foreign_messages_are_delivered_once(server, opener, store):
    receiver = await opener(server, listen=["news"], inbox_messages=1)
    await publish(store, *range(8))
    await publish(store, 7, 7)  # equal ones are as many as were published
    for _ in range(3):
        await take_in(receiver, 1)
        await cut(receiver)
    await publish(store, 7, 8)
    assert numbers(await fetch_all(receiver, 12)) == [*range(8), 7, 7, 7, 8]
    assert not await receiver.fetch_messages()


async def test_foreign_messages_handled_while_the_broker_is_away_do_not_come_again(server, opener, store):
    receiver = await opener(server, listen=["news"], name="group")
    await publish(store, 1, 2, 2, 3)
    got = numbers(await fetch_all(receiver, 3, limit=3))
    link_of(receiver)._connection.drop(ConnectionFailed("cut by the test"))
    await receiver.ack()
    await link_of(receiver).wait_connected(10)
    await publish(store, 2)
    assert got + numbers(await fetch_all(receiver, 2)) == [1, 2, 2, 3, 2]
    await receiver.ack()
    await vanish(receiver)
    successor = await opener(server, listen=["news"], name="group")
    assert not await successor.fetch_messages(timeout=0.1)


async def test_unhandled_foreign_messages_go_to_the_successor(server, opener, store, exp_id):
    sender = await opener(server, exp_id=f"{exp_id}-other")  # its messages have names, and go to no mailbox of ours
    receiver = await opener(server, listen=["news"], name="group")
    await publish(store, 1, 2)
    assert [(await sender.send_message("news", {"n": n})).fate for n in (3, 4)] == ["published"] * 2
    await cut(receiver)
    await take_in(receiver, 4)
    assert numbers(await receiver.fetch_messages(limit=1)) == [1]
    await vanish(receiver)
    successor = await opener(server, listen=["news"], name="group")
    assert numbers(await fetch_all(successor, 4)) == [1, 2, 3, 4]
    assert not await successor.fetch_messages()


def test_a_redelivered_message_that_never_arrived_is_accepted():
    foreign, over, acknowledged = ForeignMessages("exp", "group", 1, 100), set(), []

    def arrive(name, *, connection, duplicate=False):
        arrival = Arrival(
            "news",
            b"{}",
            (),
            qos=1,
            retain=False,
            duplicate=duplicate,
            puback=lambda: acknowledged.append(name),
            over=lambda: connection in over,
        )
        foreign.take(arrival)

    arrive("first", connection=1)
    over.add(1)  # and the later one is lost on the way
    arrive("first again", connection=2, duplicate=True)
    arrive("second", connection=2, duplicate=True)
    ((_, kept),) = foreign.flush()
    for publication in kept:
        publication.acknowledge()
    assert acknowledged == ["first again", "second"]
    arrive("third", connection=2)
    over.add(2)
    foreign.unhandled.session_lost()  # the broker has lost the session: it repeats nothing of it
    arrive("fourth", connection=3, duplicate=True)
    assert foreign.count == 4


# -- mailboxes that are full ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("behind", "deafness_s"), [(0, 100.0), (8 * LIMIT, 0.1)], ids=["it can hang up", "it cannot: sockets are full"]
)
async def test_a_receiver_with_a_full_mailbox_notices_a_dead_broker(
    mosquitto, opener, small, behind, deafness_s, monkeypatch
):
    monkeypatch.setattr(connection, "_MAX_TICK_S", 0.1)
    monkeypatch.setattr(connection, "_MAX_PROBE_INTERVAL_S", deafness_s)
    patient = mosquitto.config.model_copy(update={"keepalive_s": 65535})
    sender, receiver = await opener(mosquitto.config), await opener(patient, host=[1], inbox_messages=1)
    count = await fill(sender, receiver, behind)
    closed = link_of(receiver)._connection.closed
    mosquitto.kill()
    mosquitto.start()
    async with asyncio.timeout(WAIT_S):
        await asyncio.wait({closed})
        await link_of(receiver).wait_connected(10)
    await send(sender, count)
    assert numbers(await fetch_all(receiver, count + 1)) == list(range(count + 1))


async def test_a_receiver_with_a_full_mailbox_can_subscribe_and_close(server, opener, store, small):
    sender = await opener(server)
    receiver = await opener(server.model_copy(update={"timeout": 1}), host=[1], inbox_messages=1, send_timeout_s=1)
    count = await fill(sender, receiver, 4 * LIMIT)
    await receiver.subscribe_and_start_listening(["news"])
    await publish(store, count)
    assert numbers(await fetch_all(receiver, 1)) == [0]
    await receiver.close()

    async def all_buried():
        return len(await store.dead()) >= count - 1

    await until(all_buried)


async def test_messages_not_published_as_dead_letters_in_time_are_counted(server, opener, monkeypatch, caplog):
    sender, receiver = await opener(server), await opener(server, host=[1])
    monkeypatch.setattr(receiver_module, "_BURIED_AT_ONCE", 2)
    monkeypatch.setattr(subscription, "_LEAVE_S", 0.5)
    await send(sender, *range(6))
    bury, letters = ControlLink.bury, []

    async def slow(control, mailbox, entry, *args, **options):
        letters.append(entry)
        if len(letters) == 3:
            await asyncio.Event().wait()
        await bury(control, mailbox, entry, *args, **options)

    monkeypatch.setattr(ControlLink, "bury", slow)
    await receiver.close()
    assert "with 6 unhandled frames: up to 4 of them are lost" in caplog.text


# -- messages that cannot be accepted ---------------------------------------------------------------------------------


async def test_a_dead_letters_reason_is_bounded_despite_a_long_sender_name(server, opener, store):
    sender, receiver = await opener(server), await opener(server, name="group", host=[1])
    header = msgspec.msgpack.encode(["\x01" * 60_000, 1, 1, 1, 0])
    frame = b"RMD\x01" + len(header).to_bytes(2, "little") + header + b"x"
    await store.publisher.publish(store.topics.mailbox("group"), frame, qos=1)
    await send(sender, 1)
    assert numbers(await fetch_all(receiver, 1)) == [1]
    [(name, reason, payload)] = await store.dead()
    assert (name, payload) == ("group", frame)
    assert "not published by this library" in reason
    assert len(reason) < 2000


async def test_a_dead_letter_above_the_packet_limit_goes_without_its_payload(mosquittos, opener, exp_id):
    server = mosquittos(options=["max_packet_size 20000"]).config
    store = await MqttStore(server, exp_id, []).open()
    sender, receiver = await opener(server), await opener(server, name="group", host=[1])
    topic = store.topics.mailbox("group")
    fits = 20_000 - len(topic) - 8
    garbage = [b"?" * fits, encode_data(Data("mallory", 1, 1, 1, 0, b"RM" + b"x" * (fits - 200))).ljust(fits, b"y")]
    for payload in garbage:  # no envelope, and an envelope with no frame
        await store.publisher.publish(topic, payload, qos=1)
    await send(sender, 1)
    assert numbers(await fetch_all(receiver, 1)) == [1]
    letters = await store.dead_letters()
    assert [letter.payload for letter, _ in letters] == [b"", b""]
    assert all(int(told["rm-bytes"]) > 19_000 and told["rm-reason"] for _, told in letters)
    await store.close()


async def test_an_unforeseen_publication_becomes_a_dead_letter(server, opener, store, monkeypatch, caplog):
    sender, receiver = await opener(server), await opener(server, name="group", host=[1], listen=["news/#"])
    address = ForeignMessages.address

    def odd(foreign, topic):
        if topic == "news/odd":
            raise RuntimeError("a fault of ours")
        return address(foreign, topic)

    monkeypatch.setattr(ForeignMessages, "address", odd)
    await store.publish("news/odd", b"odd")
    await send(sender, 1)
    await store.publish("news/plain", b'{"n": 2}')
    assert numbers(await fetch_all(receiver, 2)) == [1, 2]
    [(name, reason, payload)] = await store.dead()
    assert (name, payload) == ("group", b"odd")
    assert "a fault of ours" in reason
    assert any(record.levelname == "ERROR" and record.exc_info for record in caplog.records)
    await vanish(receiver)
    await opener(server, name="group", host=[1], listen=["news/#"])
    assert len(await store.dead()) == 1  # and it does not come again
