"""A broken link to an MQTT broker: lost and repeated messages, errors, and final failures."""

import asyncio
import logging
import pickle
import signal

import pytest
from support.mqtt_links import CONNACK, SUBSCRIBE, TAKEN_OVER, WAIT_S, FakeBroker, Watched, listener, until

from ray_messaging.errors import Closed, ConnectionFailed, Fenced, InvalidAddress, ServerRefused
from ray_messaging.mqtt.connection.reasons import Reason

REFUSED = b"\x20\x03\x00\x87\x00"
BUSY = b"\x20\x03\x00\x89\x00"


async def ended(watched):
    """Wait until a link has ended for good; return its error."""
    await until(lambda: watched.lost)
    assert watched.lost == [watched.link.error]
    assert not watched.link.connected
    return watched.link.error


async def test_a_broker_killed_under_pending_publications(open_link, mosquitto, topic, caplog):
    here = await open_link(mosquitto.config)
    mosquitto.process.send_signal(signal.SIGSTOP)
    sent = [here.link.publish(topic, b"%d" % n) for n in range(100)]
    mosquitto.kill()
    for future in sent:
        with pytest.raises(ConnectionFailed, match=str(mosquitto.config.port)):
            await future
    with pytest.raises(ConnectionFailed):
        here.link.publish(topic, b"x")
    with pytest.raises(ConnectionFailed):
        await here.link.subscribe([topic])
    with pytest.raises(ConnectionFailed, match="within 0"):
        await here.link.wait_connected(0)
    assert not here.link.connected
    waiting = asyncio.create_task(here.link.wait_connected(WAIT_S))
    mosquitto.start()
    await waiting
    assert here.sessions == [False, False]
    assert not here.lost
    assert await here.link.publish(topic, b"x") == Reason.NO_MATCHING_SUBSCRIBERS  # nothing was sent again
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert f":{mosquitto.config.port}" in warnings[0].getMessage()


async def test_a_broker_killed_under_a_subscription(open_link, mosquitto, topic):
    here = await open_link(mosquitto.config)
    mosquitto.process.send_signal(signal.SIGSTOP)
    asking = [asyncio.create_task(call([topic])) for call in (here.link.subscribe, here.link.unsubscribe)]
    await asyncio.sleep(0)
    mosquitto.kill()
    for task in asking:
        with pytest.raises(ConnectionFailed):
            await task


async def test_a_broker_that_disconnects_and_returns(open_link, mosquitto, topic):
    async def subscribe(link):
        await link.subscribe([topic])

    there = await open_link(mosquitto.config, on_connected=subscribe)
    for starts in (2, 3):
        mosquitto.stop()
        await until(lambda: not there.link.connected)
        mosquitto.start()
        await there.link.wait_connected(WAIT_S)
        assert len(there.sessions) == starts
    assert await there.link.publish(topic, b"x") == Reason.SUCCESS
    await until(lambda: there.arrivals)


async def test_publications_waiting_for_the_connection_follow_on_connected(open_link, mosquitto_config, relayed, topic):
    order = []

    async def greet(link):
        assert not link.connected
        order.append(await link.publish(topic, b"first"))

    relay = await relayed(mosquitto_config)
    here = await open_link(relay.config, on_connected=greet)
    assert here.link.connected
    relay.cut()
    await until(lambda: not here.link.connected)
    await here.link.wait_connected(WAIT_S)
    assert order == [Reason.NO_MATCHING_SUBSCRIBERS] * 2


async def test_unacknowledged_messages_come_again(open_link, mosquitto_config, relayed, topic):
    relay = await relayed(mosquitto_config)
    there = await open_link(relay.config, expiry_s=60, acknowledge=False)
    await there.link.subscribe([topic])
    here = await open_link(mosquitto_config)
    await asyncio.gather(*(here.link.publish(topic, b"%d" % n) for n in range(10)))
    await until(lambda: len(there.arrivals) == 10)
    for arrival in there.arrivals[:4]:
        arrival.acknowledge()
    await there.link.subscribe(["another"])  # the broker has them
    relay.cut()
    await until(lambda: there.sessions == [False, True])
    await until(lambda: len(there.arrivals) == 16)
    assert there.payloads[10:] == [b"%d" % n for n in range(4, 10)]
    assert all(arrival.duplicate for arrival in there.arrivals[10:])

    for arrival in there.arrivals[4:10]:
        arrival.acknowledge()  # of the old connection: its packet ids have another meaning now
    await there.link.subscribe(["another"])
    relay.cut()
    await until(lambda: len(there.arrivals) == 22)
    assert there.payloads[16:] == [b"%d" % n for n in range(4, 10)]
    await there.link.close(end_session=True)


async def test_a_session_holds_messages_published_while_it_was_offline(open_link, mosquitto, topic):
    there = await open_link(mosquitto.config, client_id="named", expiry_s=60)
    await there.link.subscribe([topic])
    await there.link.close()
    here = await open_link(mosquitto.config)
    assert await here.link.publish(topic, b"x") == Reason.SUCCESS
    mosquitto.stop()
    mosquitto.start()
    again = await open_link(mosquitto.config, client_id="named", expiry_s=60)
    assert again.sessions == [True]
    await until(lambda: again.arrivals)
    await again.link.close(end_session=True)
    after = await open_link(mosquitto.config, client_id="named", expiry_s=60)
    assert after.sessions == [False]


async def test_a_client_id_that_is_taken_over(mosquitto_config):
    fake = await FakeBroker(
        mosquitto_config, CONNACK
    ).start()  # Mosquitto 2.0.11 closes the connection without a reason
    here = Watched(fake.config, "ours")
    await here.link.connect()
    link = here.link
    sent = link.publish("topic", b"x")
    calls = [asyncio.create_task(call) for call in (link.subscribe(["topic"]), link.unsubscribe(["topic"]))]
    await until(lambda: SUBSCRIBE in fake.packets)
    fake.say(TAKEN_OVER)
    for call in (sent, *calls):
        with pytest.raises(Fenced):
            await call
    error = await ended(here)
    assert error.name == "ours"
    assert "'ours'" in str(error)
    for call in (link.connect, lambda: link.wait_connected(1), lambda: link.subscribe(["a"])):
        with pytest.raises(Fenced) as caught:
            await call()
        assert pickle.loads(pickle.dumps(caught.value)).name == "ours"
    with pytest.raises(Fenced):
        link.publish("topic", b"x")
    await link.close()
    assert isinstance(link.error, Fenced)
    assert len(fake.writers) == 1
    await fake.stop()


async def test_refused_while_it_comes_back(mosquitto_config):
    config = mosquitto_config.model_copy(update={"username": "ann", "password": "s3cret"})
    fake = await FakeBroker(config, CONNACK, BUSY, None, REFUSED).start()
    here = Watched(fake.config, "ours")
    await here.link.connect()
    fake.writers[-1].transport.abort()
    await until(lambda: not here.link.connected)
    waiting = asyncio.create_task(here.link.wait_connected(WAIT_S))
    error = await ended(here)
    assert isinstance(error, ServerRefused)
    assert "s3cret" not in str(error)
    with pytest.raises(ServerRefused):
        await waiting
    assert len(fake.writers) == 4
    await here.link.close()
    await fake.stop()


async def test_closed_while_it_tries(open_link, mosquitto, topic):
    here = await open_link(mosquitto.config)
    mosquitto.kill()
    await until(lambda: not here.link.connected)
    waiting = asyncio.create_task(here.link.wait_connected(WAIT_S))
    await asyncio.sleep(0)
    await here.link.close()
    with pytest.raises(Closed):
        await waiting
    assert not here.lost


async def test_closed_under_on_connected_leaves_no_will(open_link, mosquitto_config, relayed, topic):
    there = await listener(open_link, mosquitto_config, topic)
    reached = asyncio.Event()

    async def hang(link):
        if len(here.sessions) == 2:
            reached.set()
            await asyncio.Event().wait()

    relay = await relayed(mosquitto_config)
    here = Watched(relay.config, "ours", on_connected=hang, will=topic)
    await here.link.connect()
    relay.cut()
    await reached.wait()
    await here.link.close()
    await there.link.publish(topic, b"last")
    await until(lambda: b"last" in there.payloads)
    assert there.payloads == [b"", b"last"]  # of the first connection


async def test_an_error_of_on_connected_ends_the_first_connect(open_link, mosquitto_config):
    async def fail(_link):
        raise InvalidAddress("not a filter", value="a/#/b")

    with pytest.raises(InvalidAddress):
        await open_link(mosquitto_config, on_connected=fail)


async def test_an_error_of_on_connected_ends_the_link(open_link, mosquitto_config, relayed):
    async def fail_later(_link):
        if len(here.sessions) > 1:
            raise InvalidAddress("not a filter", value="a/#/b")

    relay = await relayed(mosquitto_config)
    here = Watched(relay.config, "ours", on_connected=fail_later)
    await here.link.connect()
    relay.cut()
    assert isinstance(await ended(here), InvalidAddress)
    await here.link.close()


async def test_a_cut_under_on_connected_is_one_more_outage(open_link, mosquitto_config, relayed):
    async def cut_once(link):
        if len(here.sessions) == 2:
            relay.cut()
            await link.subscribe(["a"])

    relay = await relayed(mosquitto_config)
    here = Watched(relay.config, "ours", on_connected=cut_once)
    await here.link.connect()
    relay.cut()
    await until(lambda: len(here.sessions) == 3)
    await here.link.wait_connected(WAIT_S)
    await here.link.close()


async def test_an_error_of_on_publication_ends_the_link_and_leaves_the_message(open_link, mosquitto_config, topic):
    class Broken(Watched):
        def on_arrival(self, arrival):
            raise KeyError("a fault")

    there = Broken(mosquitto_config, topic, expiry_s=60)
    await there.link.connect()
    await there.link.subscribe([topic])
    here = await open_link(mosquitto_config)
    await here.link.publish(topic, b"x")
    error = await ended(there)
    assert isinstance(error.__cause__, KeyError)
    assert "a fault" in str(error)
    await there.link.close()
    again = await open_link(mosquitto_config, client_id=topic, expiry_s=60)
    await until(lambda: again.payloads == [b"x"])
    await again.link.close(end_session=True)


async def test_a_will_is_published_when_the_connection_is_cut(open_link, mosquitto_config, relayed, topic):
    there = await listener(open_link, mosquitto_config, topic)
    relay = await relayed(mosquitto_config)
    await open_link(relay.config, will=topic)
    relay.cut()
    await until(lambda: there.arrivals)
    assert there.payloads == [b""]


async def test_a_pause_outlasts_the_connection(open_link, mosquitto, topic):
    async def subscribe(link):
        await link.subscribe([topic])

    there = await open_link(mosquitto.config, on_connected=subscribe)
    here = await open_link(mosquitto.config)
    mosquitto.stop()
    await until(lambda: not there.link.connected and not here.link.connected)
    there.link.pause()
    mosquitto.start()
    await there.link.wait_connected(WAIT_S)
    await here.link.wait_connected(WAIT_S)
    assert await here.link.publish(topic, b"x") == Reason.SUCCESS
    for _ in range(5):  # so often the loop has looked at both sockets
        await here.link.publish(topic + "/nobody", b"")
    assert not there.arrivals
    there.link.resume()
    await until(lambda: there.payloads == [b"x"])
