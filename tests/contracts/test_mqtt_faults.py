"""Faults on MQTT: killed, forgetful and refusing brokers, and clients that vanish; promises to the peers are kept."""

import asyncio
import signal

import pytest
from support.contracts import MqttStore, fetch_all, take_in, until
from support.patience import WAIT_S

from ray_messaging import AlreadyExists, MailboxFull, OutcomeUnknown, Outgoing, PayloadTooLarge, ServerRefused
from ray_messaging.errors import ConnectionFailed
from ray_messaging.mqtt import transport
from ray_messaging.mqtt.receiving import session

pytestmark = pytest.mark.long

PASSWORDS = {"writer": "a secret", "reader": "another"}


@pytest.fixture
def server(mosquitto):
    return mosquitto.config


@pytest.fixture
def quick(monkeypatch):
    """Check for lost frames more often."""
    monkeypatch.setattr(transport, "CHECK_S", 0.05)


def numbers(messages):
    return [message.payload["n"] for message in messages]


async def send(sender, *ns, to=1):
    receipts = await sender.send_messages([Outgoing.to_agent(to, {"n": n}, from_id=0) for n in ns])
    assert receipts.counts()["delivered"] == len(ns)


async def crash(messager):
    """End a messager as a kill does: its sockets close without a goodbye."""
    engine = messager.engine
    await engine.accumulator.stop(RuntimeError("crashed"))
    subscription = engine.subscription
    subscription._renewing.cancel()
    await asyncio.gather(subscription._renewing, return_exceptions=True)
    if subscription._reader is not None:
        await subscription._reader.close()
        await engine.transport._receiver.session.link.abort()
    await engine.transport._control.link.abort()
    await engine.transport.close()
    engine.closed = True


async def cut(link):
    """Cut a connection as a network does."""
    link._connection.drop(ConnectionFailed("cut by the test"))


async def stream(sender, count, started):
    """Send one after the other, each as soon as the last one has its receipt."""
    channel = sender.get_agent_chat_channel(1)
    for n in range(count):
        receipt = await sender.send_message(channel, {"n": n}, from_id=0)
        assert receipt.fate == "delivered"
        if n == count // 3:
            started.set()


# -- a broker that dies -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [True, False], ids=["kept", "lost"])
@pytest.mark.parametrize("name", ["group", None], ids=["named", "nameless"])
async def test_a_broker_killed_under_load_loses_nothing(mosquittos, opener, durable, name):
    broker, started = mosquittos(durable=durable), asyncio.Event()
    sender, receiver = await opener(broker.config), await opener(broker.config, name=name, host=[1])
    sending = asyncio.create_task(stream(sender, 300, started))
    await started.wait()
    early = numbers(await fetch_all(receiver, 50))
    broker.kill()
    broker.start()
    late = numbers(await fetch_all(receiver, 300 - len(early)))
    await sending
    assert early + late == list(range(300))
    assert len(await receiver.fetch_messages()) == 0


@pytest.mark.parametrize("durable", [True, False], ids=["kept", "lost"])
async def test_waiting_messages_outlive_the_broker(mosquittos, opener, durable):
    broker = mosquittos(durable=durable)
    sender, receiver = await opener(broker.config), await opener(broker.config, name="group", host=[1])
    await send(sender, *range(10))
    await take_in(receiver, 10)
    assert numbers(await receiver.fetch_messages(limit=4)) == [0, 1, 2, 3]
    for _ in range(2):
        broker.kill()
        broker.start()
    await send(sender, 10)
    assert numbers(await fetch_all(receiver, 7)) == list(range(4, 11))
    await receiver.ack()
    await crash(receiver)
    await send(sender, 11)
    successor = await opener(broker.config, name="group", host=[1])
    assert numbers(await fetch_all(successor, 1)) == [11]


async def test_a_broker_restored_from_old_data_loses_nothing(mosquittos, opener):
    broker = mosquittos(options=["autosave_interval 1800", "autosave_on_changes false"])
    sender = await opener(broker.config)
    old = await opener(broker.config, name="old", host=[1])
    broker.process.send_signal(signal.SIGUSR1)

    async def saved():
        return any("Saving in-memory database" in line for line in broker.lines)

    await until(saved)
    await old.host_agents([2], ["agent-chat"])
    await old.subscribe_and_start_listening(["town/square"])
    new = await opener(broker.config, name="new", host=[3])
    nameless = await opener(broker.config, host=[4])
    for n in range(20):
        for to in (1, 2, 3, 4):
            await send(sender, n, to=to)
    assert numbers(await fetch_all(old, 40, limit=5))[:4] == [0, 0, 1, 1]
    broker.kill()
    broker.start()
    for to in (1, 2, 3, 4):
        await send(sender, 20, to=to)
    assert (await sender.send_message("town/square", {"n": 21})).fate == "delivered"
    assert numbers(await fetch_all(old, 3)) == [20, 20, 21]
    for receiver in (new, nameless):
        assert numbers(await fetch_all(receiver, 21)) == list(range(21))
    store = await MqttStore(broker.config, sender.exp_id, []).open()
    assert await store.publish("town/square", b'{"n":22}') == 1
    assert numbers(await fetch_all(old, 1)) == [22]
    await store.close()


async def test_sends_fail_while_the_broker_is_away_for_too_long(mosquitto, opener):
    sender, receiver = await opener(mosquitto.config, send_timeout_s=0.2), await opener(mosquitto.config, host=[1])
    await send(sender, 1)
    mosquitto.kill()
    with pytest.raises(OutcomeUnknown):
        await sender.send_message(sender.get_agent_chat_channel(1), {"n": 2}, from_id=0)
    mosquitto.start()
    await sender.engine.transport._control.link.wait_connected(10)
    await send(sender, 3)
    assert numbers(await fetch_all(receiver, 2)) == [1, 3]


# -- connections that are cut -----------------------------------------------------------------------------------------


async def test_cut_connections_lose_nothing(mosquitto, opener):
    started = asyncio.Event()
    sender, receiver = await opener(mosquitto.config), await opener(mosquitto.config, name="group", host=[1])
    sending = asyncio.create_task(stream(sender, 300, started))
    got = []
    links = [
        sender.engine.transport._control.link,
        receiver.engine.transport._control.link,
        receiver.engine.transport._receiver.session.link,
    ]
    async with asyncio.timeout(WAIT_S):
        while len(got) < 300:
            got += numbers(await receiver.fetch_messages(limit=20, timeout=10))
            link = links[len(got) % 3]
            if link.connected and not sending.done():
                await cut(link)
    await sending
    assert got == list(range(300))


# -- processes that die -----------------------------------------------------------------------------------------------


async def test_the_successor_of_a_dead_receiver_gets_uncommitted_messages(server, opener):
    sender, first = await opener(server), await opener(server, name="group", host=[1], owner="actor-1", lease_s=1)
    await send(sender, *range(10))
    await take_in(first, 10)
    assert numbers(await first.fetch_messages(limit=3)) == [0, 1, 2]
    assert numbers(await first.fetch_messages(limit=3)) == [3, 4, 5]  # the first three are committed
    await crash(first)
    await send(sender, *range(10, 20))
    second = await opener(server, name="group")

    async def taken():
        try:
            await second.host_agents([1], ["agent-chat"], owner="actor-2")
        except AlreadyExists:
            return False
        return True

    await until(taken)  # when the dead one's lease ends
    assert numbers(await fetch_all(second, 17)) == list(range(3, 20))


async def test_messages_of_a_dead_sender_arrive(server, opener):
    sender, receiver = await opener(server, name="group"), await opener(server, host=[1])
    await send(sender, *range(100))
    await crash(sender)
    successor = await opener(server, name="group")
    await send(successor, *range(100, 110))
    assert numbers(await fetch_all(receiver, 110)) == list(range(110))


async def test_a_dead_receiver_without_a_name_is_removed_when_its_lease_expires(server, opener):
    sender, receiver = await opener(server, lease_s=1), await opener(server, host=[1], lease_s=1)
    await send(sender, 1)
    await crash(receiver)
    await send(sender, 2)  # its session is there for a while

    async def gone():
        receipt = await sender.send_message(sender.get_agent_chat_channel(1), {"n": 3}, from_id=0)
        return receipt.fate == "undeliverable"

    await until(gone)


# -- a broker that drops ----------------------------------------------------------------------------------------------


async def lossy(mosquittos, opener, monkeypatch, **settings):
    """Make a broker drop most messages: it sends 20 unhandled ones, and keeps 5 more."""
    monkeypatch.setattr(session, "RECEIVE_MAXIMUM", 20)
    broker = mosquittos(options=["max_queued_messages 5"])
    sender, receiver = await opener(broker.config), await opener(broker.config, host=[1], **settings)
    for n in range(100):
        await send(sender, n)
    return broker, sender, receiver


async def test_messages_dropped_by_a_full_broker_are_sent_again(mosquittos, opener, monkeypatch, quick):
    _, sender, receiver = await lossy(mosquittos, opener, monkeypatch)
    got = numbers(await fetch_all(receiver, 60))  # no later frame shows that the last ones are lost
    await send(sender, 100)
    got += numbers(await fetch_all(receiver, 101 - len(got)))
    assert got == list(range(101))


async def test_dropped_messages_of_a_dead_sender_are_counted_as_lost(mosquittos, opener, monkeypatch, quick, caplog):
    broker, sender, receiver = await lossy(mosquittos, opener, monkeypatch, lease_s=0.3)
    await crash(sender)
    got = numbers(await fetch_all(receiver, 20))
    async with asyncio.timeout(WAIT_S):
        while more := await receiver.fetch_messages(timeout=1):
            got += numbers(more)
    assert got == sorted(set(got))
    assert len(got) < 100  # the rest is lost
    other = await opener(broker.config, name="other")
    await send(other, 1000)
    assert numbers(await fetch_all(receiver, 1)) == [1000]


@pytest.mark.parametrize("back", [True, False], ids=["back", "away"])
async def test_a_closing_sender_checks_that_its_receiver_has_all(mosquittos, opener, caplog, back):
    broker = mosquittos(options=["max_queued_messages 5"])
    sender, first = await opener(broker.config), await opener(broker.config, name="group", host=[1])
    await first.close()
    for n in range(150):
        await send(sender, n)
    if back:
        second = await opener(broker.config, name="group", host=[1])
        await sender.close()
        assert numbers(await fetch_all(second, 150)) == list(range(150))
    else:
        await sender.close()
    assert ("with the broker alone" in caplog.text) is not back


# -- claims -----------------------------------------------------------------------------------------------------------


async def test_of_many_claims_of_an_agent_one_succeeds(server, opener):
    claimants = [await opener(server, name=f"group-{n}") for n in range(5)]
    claims = [claimant.host_agents([1, 10 + n], ["agent-chat"]) for n, claimant in enumerate(claimants)]
    results = await asyncio.gather(*claims, return_exceptions=True)
    refused = [result for result in results if result is not None]
    assert len(refused) == 4
    assert all(isinstance(error, AlreadyExists) and error.value == 1 for error in refused)
    winner = claimants[results.index(None)]
    sender = await opener(server)
    await send(sender, 7)
    assert numbers(await fetch_all(winner, 1)) == [7]


# -- limits -----------------------------------------------------------------------------------------------------------


async def test_a_slow_receiver_makes_senders_wait_and_give_up(server, opener):
    sender, receiver = await opener(server, send_timeout_s=0.3), await opener(server, host=[1], mailbox_messages=8)
    await send(sender, *range(8))
    with pytest.raises(MailboxFull) as caught:
        await send(sender, 8)
    assert caught.value.mailbox == receiver.name
    assert numbers(await fetch_all(receiver, 8)) == list(range(8))
    waiting = asyncio.create_task(send(sender, 9))
    await receiver.ack()
    await waiting
    assert numbers(await fetch_all(receiver, 1)) == [9]


@pytest.mark.parametrize("option", ["max_packet_size 20000", "message_size_limit 20000"], ids=["told", "silent"])
async def test_frames_fit_a_broker_with_small_packets(mosquittos, opener, option):
    broker = mosquittos(options=[option])
    sender, receiver = await opener(broker.config), await opener(broker.config, host=[1])
    text = "x" * 1000
    receipts = await sender.send_columns([0] * 200, [1] * 200, [{"n": n, "text": text} for n in range(200)])
    assert receipts.counts()["delivered"] == 200
    for channel in (sender.get_agent_chat_channel(1), "bare/topic"):
        with pytest.raises(PayloadTooLarge) as caught:
            await sender.send_message(channel, {"text": 30 * text}, from_id=0)
        assert caught.value.size > 30_000
    await send(sender, 200)
    assert numbers(await fetch_all(receiver, 201)) == list(range(201))


async def test_a_foreign_flood_on_a_full_inbox_loses_nothing(server, opener, exp_id):
    receiver = await opener(server, listen=["news"], inbox_messages=40)
    store = await MqttStore(server, exp_id, []).open()
    await asyncio.gather(*(store.publish("news", b'{"n":%d}' % n) for n in range(1000)))
    assert receiver.stats()["inbox"] <= 40
    assert sorted(numbers(await fetch_all(receiver, 1000))) == list(range(1000))
    assert receiver.stats()["ingress_dropped"] == 0
    await store.close()


async def test_a_user_without_publish_rights_is_refused(mosquittos, opener, tmp_path):
    rights = tmp_path / "rights"
    rights.write_text("user writer\ntopic readwrite #\nuser reader\ntopic read #\n")
    broker = mosquittos(users=PASSWORDS, options=[f"acl_file {rights}"])
    able, unable = (broker.config.model_copy(update={"username": u, "password": p}) for u, p in PASSWORDS.items())
    await opener(able, host=[1])
    with pytest.raises(ServerRefused, match="reader") as caught:
        await opener(unable)
    assert "another" not in str(caught.value)
