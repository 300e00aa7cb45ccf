"""Sends on MQTT while connections, brokers and names come and go: no needless repetition, and no hanging call."""

import asyncio
import signal

import pytest
from support.contracts import MqttStore, fetch_all, until

from ray_messaging import MailboxFull, OutcomeUnknown, PayloadTooLarge
from ray_messaging.common.backoff import RetryPolicy
from ray_messaging.errors import ConnectionFailed
from ray_messaging.mqtt import transport
from ray_messaging.mqtt.connection import connection
from ray_messaging.mqtt.connection.control_link import ControlLink
from ray_messaging.mqtt.receiving import mailbox
from ray_messaging.mqtt.sending import mailbox_sender as way
from ray_messaging.mqtt.wire.messages import Signal, SignalKind, decode_data, decode_entry, encode_signal
from ray_messaging.receiving import subscription

SOON_S = 5  # a hanging call takes longer than this


@pytest.fixture
def server(mosquitto_config):
    return mosquitto_config


@pytest.fixture
async def store(server, exp_id):
    opened = await MqttStore(server, exp_id, []).open()
    yield opened
    await opened.close()


@pytest.fixture
def no_search(monkeypatch):
    """Turn off the search for lost frames: only events make progress."""
    monkeypatch.setattr(transport, "CHECK_S", 1000)


def control_of(messager):
    return messager.engine.transport._control


def numbers(messages):
    return [message.payload["n"] for message in messages]


async def send(sender, *ns, text=""):
    for n in ns:
        receipt = await sender.send_message(sender.get_agent_chat_channel(1), {"n": n, "text": text}, from_id=0)
        assert receipt.fate == "delivered"


async def cut(link):
    """Cut a connection as a network does, and return when it is made again."""
    link._connection.drop(ConnectionFailed("cut by the test"))
    await link.wait_connected(SOON_S)


async def restart(broker, messager):
    """Kill a broker and start it again; return when a messager has received all of its records."""
    control = control_of(messager)
    before = control.connections
    broker.kill()
    broker.start()

    async def back():
        return control.connections > before and control.link.connected

    await until(back)


async def settled(messager):
    """Wait until a messager and its broker have received everything from each other."""
    for _ in range(2):
        await messager.engine.transport.load_directory(-1)


async def on_its_way(sender, n):
    """Send a message, and leave its PUBACK unread; return the waiting call."""
    control_of(sender).link.pause()
    before = sum((await sender.engine.transport.waiting()).values())
    sending = asyncio.create_task(send(sender, n))

    async def offered():
        return sum((await sender.engine.transport.waiting()).values()) > before

    await until(offered)
    return sending


async def lost_by_broker(mosquittos, opener):
    """Let three messages wait for a named mailbox without a reader, at a broker that has lost them."""
    broker = mosquittos(durable=False)
    sender, first = await opener(broker.config, send_timeout_s=0.2), await opener(broker.config, name="group", host=[1])
    control_of(sender).patience_s = SOON_S  # for the broker; the mailbox has less
    await send(sender, 1, 2, 3)
    await first.close()
    await restart(broker, sender)
    return broker, sender


# -- repeated publications --------------------------------------------------------------------------------------------


@pytest.fixture
async def watched(server, opener, store):
    """Give a sender, a function that returns the numbers of its new publications, and one for its reader."""
    sender, receiver = await opener(server), await opener(server, name="group", host=[1])
    client = await store.client(store.topics.mailbox("group"))
    await receiver.close()

    async def published():
        await settled(sender)
        found = [decode_data(message.payload) for message in await store.drain(client)]
        return [data.seq for data in found if data.frame]

    async def read(count):
        return numbers(await fetch_all(await opener(server, name="group", host=[1]), count))

    return sender, published, read


async def test_after_a_cut_a_sender_does_not_repeat_confirmed_frames(watched, no_search):
    sender, published, read = watched
    await send(sender, *range(10))
    for _ in range(3):
        await cut(control_of(sender).link)
    assert await published() == list(range(1, 11))
    assert await read(10) == list(range(10))


async def test_a_frame_requested_repeatedly_is_sent_again_once(watched, store, no_search, monkeypatch):
    monkeypatch.setattr(way, "MQTT_RESEND", RetryPolicy(1000, 1000))
    sender, published, read = watched
    await send(sender, *range(4))
    epoch = sender.engine.transport._senders.epoch
    for _ in range(10):
        asked = encode_signal(Signal(SignalKind.RESEND, "group", epoch, 1))
        await store.publisher.publish(store.topics.sender(sender.name), asked, qos=1)
    assert await published() == 2 * [1, 2, 3, 4]
    assert await read(4) == list(range(4))


async def test_a_full_mailbox_does_not_request_missing_frames(server, opener, store, no_search, monkeypatch):
    monkeypatch.setattr(mailbox, "_MAX_UNREAD_BYTES", 100_000)
    monkeypatch.setattr(way, "MQTT_RESEND", RetryPolicy(0, 0))
    one, other, receiver = await opener(server), await opener(server), await opener(server, host=[1], inbox_messages=1)
    client = await store.client(store.topics.mailbox(receiver.name))
    listener = receiver.engine.transport._receiver
    link = listener.session.link
    await send(one, 1)
    link.pause()
    await send(one, 2, 3)
    await send(other, *range(10, 20), text="x" * 30_000)
    arrived = link._connection._on_arrival

    def lose(arrival):
        arrival.acknowledge()
        link._connection._on_arrival = arrived

    link._connection._on_arrival = lose
    link.resume()

    async def full():
        return listener.mailbox.full

    await until(full)
    assert len(listener.mailbox.arrivals.gaps()) == 1
    await settled(receiver)
    await settled(one)
    await store.drain(client)
    for _ in range(3):
        listener.check()
    await settled(receiver)
    await settled(one)
    assert await store.drain(client) == []
    got = numbers(await fetch_all(receiver, 13))
    assert [n for n in got if n < 10] == [1, 2, 3]
    assert [n for n in got if n >= 10] == list(range(10, 20))


# -- messages that the broker refuses ---------------------------------------------------------------------------------


async def test_a_payload_above_the_limit_delays_no_other(mosquittos, opener, no_search):
    broker = mosquittos(options=["max_packet_size 20000"])  # above the other limit Mosquitto cuts us, too
    sender, receiver = await opener(broker.config, send_timeout_s=1), await opener(broker.config, host=[1])
    await send(sender, 1, 2)
    with pytest.raises(PayloadTooLarge):
        await send(sender, 3, text="x" * 30_000)
    await send(sender, 4)
    assert numbers(await fetch_all(receiver, 3)) == [1, 2, 4]


async def test_a_refused_message_is_not_sent_later(mosquittos, opener, no_search):
    broker, sender = await lost_by_broker(mosquittos, opener)
    with pytest.raises(MailboxFull):
        await send(sender, 4)
    sending = await on_its_way(sender, 5)
    sender.engine.transport._senders._senders["group"].resend(1)  # so that what the broker had is refused, too
    control_of(sender).link.resume()
    with pytest.raises(MailboxFull):
        await sending
    second = await opener(broker.config, name="group", host=[1])
    await send(sender, 6)
    assert numbers(await fetch_all(second, 4)) == [1, 2, 3, 6]


# -- absent receivers -------------------------------------------------------------------------------------------------


async def test_a_named_mailbox_lost_by_the_broker_outlives_a_lease(mosquittos, opener, no_search):
    broker, sender = await lost_by_broker(mosquittos, opener)
    registry = sender.engine.transport._directory
    clock = registry._clock
    registry._clock = lambda: clock() + 10 * registry.lease_s
    await settled(sender)  # this looks for expired leases
    with pytest.raises(MailboxFull):  # instead of: no subscriber
        await send(sender, 4)
    second = await opener(broker.config, name="group", host=[1])
    await send(sender, 5)
    assert numbers(await fetch_all(second, 4)) == [1, 2, 3, 5]


async def test_a_directory_record_returns_after_its_mailbox(mosquittos, opener, exp_id, monkeypatch):
    broker = mosquittos(durable=False)
    receiver = await opener(broker.config, host=[1])
    link, may_listen = receiver.engine.transport._receiver.session.link, asyncio.Event()
    welcome = link._handler.on_connected

    async def late(*, session_present):
        await may_listen.wait()
        await welcome(session_present=session_present)

    monkeypatch.setattr(link._handler, "on_connected", late)
    await restart(broker, receiver)
    await settled(receiver)
    store = await MqttStore(broker.config, exp_id, []).open()
    assert await store.mailboxes() == set()
    may_listen.set()

    async def listed():
        return await store.mailboxes() == {receiver.name}

    await until(listed)
    await send(await opener(broker.config), 1)
    assert numbers(await fetch_all(receiver, 1)) == [1]
    await store.close()


async def test_the_claim_of_a_dead_process_ends(server, opener, store, monkeypatch):
    dead, seen = await opener(server, name="dead", lease_s=1), await store.client(store.topics.all_entries)

    def die(*_claim):
        raise RuntimeError("the process dies here")

    monkeypatch.setattr(dead.engine.transport._directory, "rival", die)
    with pytest.raises(RuntimeError, match="dies here"):
        await dead.host_agents([1], ["agent-chat"])
    (card,) = await store.drain(seen)
    assert decode_entry(card.payload).pending

    async def over():
        return not await store.drain(await store.client(store.topics.all_entries))

    await until(over)
    await opener(server, name="living", host=[1])  # before its own lease expires


# -- messagers without answers ----------------------------------------------------------------------------------------


async def test_a_stopped_messager_with_a_successor_ignores_the_brokers_confirmation(server, opener):
    old, receiver = await opener(server, name="west"), await opener(server, host=[1])
    await send(old, 1)
    control_of(old).link.pause()
    new = await opener(server, name="west")
    await send(new, 2)
    sending = await on_its_way(old, 3)
    control_of(old).link.resume()
    with pytest.raises(OutcomeUnknown):
        await sending
    await send(new, 4)
    assert numbers(await fetch_all(receiver, 3)) == [1, 2, 4]


async def test_a_committed_message_is_delivered_although_the_broker_never_answered(server, opener, monkeypatch):
    sender, receiver = await opener(server), await opener(server, host=[1])
    await send(sender, 1)
    sending = await on_its_way(sender, 2)
    assert numbers(await fetch_all(receiver, 2)) == [1, 2]
    control = control_of(sender)
    ended = control._handler.on_connected

    async def handled():
        return not sum((await sender.engine.transport.waiting()).values())

    async def late(*, kept):
        await receiver.ack()
        await until(handled)
        await ended(kept=kept)

    monkeypatch.setattr(control._handler, "on_connected", late)
    control.link.resume()
    await cut(control.link)
    await asyncio.wait_for(sending, SOON_S)


async def test_a_connection_cut_while_its_marker_is_awaited_recovers(server, opener, monkeypatch):
    sender, receiver = await opener(server), await opener(server, host=[1])
    control, held = control_of(sender), asyncio.Event()
    with monkeypatch.context() as patch:
        patch.setattr(
            control, "_on_marker", lambda arrival: held.set() if arrival.payload in control._barriers else None
        )
        control.link._connection.drop(ConnectionFailed("cut by the test"))
        await asyncio.wait_for(held.wait(), SOON_S)

        async def answered():
            return not control.link._connection.publisher._in_flight

        await until(answered)  # so that only the marker is missing
    await cut(control.link)
    await send(sender, 1)
    assert numbers(await fetch_all(receiver, 1)) == [1]


async def test_the_wait_for_a_marker_is_bounded(server, opener, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(ControlLink, "_on_marker", lambda *_arrival: None)
        with pytest.raises(ConnectionFailed, match="marker"):
            await asyncio.wait_for(opener(server.model_copy(update={"timeout": 0.2})), SOON_S)


async def test_close_does_not_wait_for_a_stopped_broker(mosquitto, opener, monkeypatch):
    monkeypatch.setattr(subscription, "_LEAVE_S", 1000)
    monkeypatch.setattr(connection, "_CLOSE_TIMEOUT_S", 0.05)
    receiver = await opener(mosquitto.config, name="group", host=[1], owner="actor", send_timeout_s=0.2)
    mosquitto.process.send_signal(signal.SIGSTOP)
    try:
        await asyncio.wait_for(receiver.close(), SOON_S)
    finally:
        mosquitto.process.send_signal(signal.SIGCONT)
