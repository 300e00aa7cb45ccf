"""An open link to an MQTT broker: publications and their answers, arrivals, subscriptions, pausing."""

import asyncio
import gc

import pytest
from support.mqtt_links import CONNACK, PINGREQ, PUBLISH, SUBSCRIBE, FakeBroker, Watched, listener, until

from ray_messaging.errors import Closed, ConnectionFailed, InvalidAddress, PayloadTooLarge, ServerRefused
from ray_messaging.mqtt.connection.reasons import Reason

ALL = 10_000


async def test_a_publication_arrives_with_all_that_belongs_to_it(open_link, mosquitto_config, topic):
    there = await listener(open_link, mosquitto_config, topic)
    here = await open_link(mosquitto_config)
    properties = (("kind", "frame"), ("kind", "twice"), ("ключ", "✓" * 100), ("", ""))
    assert await here.link.publish(topic, b"\x00\xff", properties=properties) == Reason.SUCCESS
    assert await here.link.publish(topic, b"") == Reason.SUCCESS
    await until(lambda: len(there.arrivals) == 2)
    first, second = there.arrivals
    assert (first.topic, first.payload, first.properties) == (topic, b"\x00\xff", properties)
    assert (first.qos, first.retain, first.duplicate) == (1, False, False)
    assert (second.payload, second.properties) == (b"", ())


async def test_the_broker_reports_missing_subscribers(open_link, mosquitto_config, topic):
    here = await open_link(mosquitto_config)
    assert await here.link.publish(topic, b"x") == Reason.NO_MATCHING_SUBSCRIBERS


async def test_all_in_order_however_many_wait(open_link, mosquitto_config, topic):
    there = await listener(open_link, mosquitto_config, topic)
    here = await open_link(mosquitto_config)
    sent = [here.link.publish(topic, b"%d" % n) for n in range(ALL)]
    assert set(await asyncio.gather(*sent)) == {Reason.SUCCESS}
    await until(lambda: len(there.arrivals) == ALL)
    assert there.payloads == [b"%d" % n for n in range(ALL)]


async def test_packet_ids_go_round(open_link, mosquitto_config, topic):
    here = await open_link(mosquitto_config)
    here.link._connection._client._last_mid = 65_000  # 65,000 publications take too long for a test
    answers = await asyncio.gather(*(here.link.publish(topic, b"x") for _ in range(1_000)))
    assert answers == [Reason.NO_MATCHING_SUBSCRIBERS] * 1_000


async def test_a_packet_id_that_is_taken(mosquitto_config):
    fake = await FakeBroker(mosquitto_config, CONNACK).start()
    here = Watched(fake.config, "taken")
    await here.link.connect()
    first = here.link.publish("topic", b"x")
    here.link._connection._client._last_mid = 0  # once round
    second = here.link.publish("topic", b"x")
    await until(lambda: fake.packets.count(PUBLISH) == 2)
    fake.say(b"\x40\x03\x00\x02\x10")
    assert await second == Reason.NO_MATCHING_SUBSCRIBERS
    assert not first.done()
    fake.say(b"\x40\x02\x00\x01")
    assert await first == Reason.SUCCESS
    await here.link.close()
    await fake.stop()


async def test_a_publication_cancelled_before_its_turn_is_not_sent(open_link, mosquitto_config, topic):
    there = await listener(open_link, mosquitto_config, topic)
    here = await open_link(mosquitto_config)
    sent = [here.link.publish(topic, b"%d" % n) for n in range(30)]
    sent[5].cancel()  # under way: it arrives
    sent[25].cancel()
    await asyncio.wait(sent)
    await until(lambda: len(there.arrivals) == 29)
    assert b"5" in there.payloads
    assert b"25" not in there.payloads


async def test_a_property_that_cannot_be(open_link, mosquitto_config, topic):
    here = await open_link(mosquitto_config)
    with pytest.raises(ValueError, match="65535"):
        here.link.publish(topic, b"x", properties=(("key", "x" * 65_536),))


async def test_large_ones_both_ways(open_link, mosquitto_config, topic):
    there = await listener(open_link, mosquitto_config, topic)
    here = await open_link(mosquitto_config)
    frames = [bytes([n]) * 3_000_000 for n in range(8)]
    assert set(await asyncio.gather(*(here.link.publish(topic, frame) for frame in frames))) == {Reason.SUCCESS}
    await until(lambda: len(there.arrivals) == 8)
    assert there.payloads == frames


async def test_the_brokers_announced_limit_is_kept(open_link, mosquittos, topic):
    config = mosquittos(options=["max_packet_size 1000"]).config
    here = await open_link(config)
    there = await listener(open_link, config, topic)
    assert here.link.maximum_packet == 1000
    properties = (("a", "b"),)
    room = 1000 - (1 + 2 + 2 + len(topic) + 2 + 1 + 7)
    with pytest.raises(PayloadTooLarge) as caught:
        here.link.publish(topic, bytes(room + 1), properties=properties)
    assert (caught.value.size, caught.value.limit) == (1001, 1000)
    assert await here.link.publish(topic, bytes(room), properties=properties) == Reason.SUCCESS
    await until(lambda: there.arrivals)
    await here.link.subscribe([f"{topic}/{n}/{'x' * 100}" for n in range(50)])  # in packets that it takes


async def test_a_limit_that_the_broker_keeps_to_itself(open_link, mosquittos, topic):
    config = mosquittos(options=["message_size_limit 1000"]).config
    here = await open_link(config)
    there = await listener(open_link, config, topic)
    assert here.link.maximum_packet is None
    assert await here.link.publish(topic, bytes(1001)) == Reason.PACKET_TOO_LARGE
    await until(lambda: len(here.sessions) == 2)  # Mosquitto says so, and hangs up
    assert await here.link.publish(topic, bytes(1000)) == Reason.SUCCESS
    await until(lambda: there.arrivals)


async def test_unacknowledged_ones_are_bounded(open_link, mosquitto_config, topic):
    there = await listener(open_link, mosquitto_config, topic, acknowledge=False, receive_maximum=7)
    here = await open_link(mosquitto_config)
    await asyncio.gather(*(here.link.publish(topic, b"%d" % n) for n in range(20)))
    await until(lambda: len(there.arrivals) == 7)
    await there.link.subscribe(["another"])  # the broker answers, and has sent no more before
    assert len(there.arrivals) == 7
    # Mosquitto 2.0.11 counts anew after each acknowledgement: it sends up to seven more.
    while len(there.arrivals) < 20:
        seen = len(there.arrivals)
        there.arrivals[seen - 1].acknowledge()
        there.arrivals[seen - 1].acknowledge()  # the second time does nothing
        await until(lambda seen=seen: len(there.arrivals) > seen)
    assert there.payloads == [b"%d" % n for n in range(20)]


async def test_a_thousand_subscriptions(open_link, mosquitto_config, topic):
    there = await open_link(mosquitto_config)
    filters = [f"{topic}/{n}" for n in range(1_000)]
    await there.link.subscribe(filters)
    here = await open_link(mosquitto_config)
    await asyncio.gather(*(here.link.publish(filter_, b"x") for filter_ in filters))
    await until(lambda: len(there.arrivals) == 1_000)
    await there.link.unsubscribe(filters[:500])
    codes = await asyncio.gather(*(here.link.publish(filter_, b"x") for filter_ in filters))
    assert codes == [Reason.NO_MATCHING_SUBSCRIBERS] * 500 + [Reason.SUCCESS] * 500


async def test_wildcards_and_what_is_retained(open_link, mosquitto_config, topic):
    here = await open_link(mosquitto_config)
    await here.link.publish(f"{topic}/a/b", b"kept", retain=True)
    await here.link.subscribe([f"{topic}/+/b"])
    await here.link.subscribe([f"{topic}/a/#"], retain_handling=2)
    await until(lambda: here.arrivals)
    assert (here.payloads, here.arrivals[0].retain) == ([b"kept"], True)
    other = await open_link(mosquitto_config)
    await other.link.publish(f"{topic}/a/b", b"theirs")
    await until(lambda: b"theirs" in here.payloads)
    await other.link.publish(f"{topic}/a/b", b"", retain=True)


@pytest.mark.parametrize(("code", "expected"), [(0x87, ServerRefused), (0x97, ServerRefused), (0x8F, InvalidAddress)])
async def test_a_subscription_that_is_refused(mosquitto_config, code, expected):
    fake = await FakeBroker(mosquitto_config, CONNACK).start()
    there = Watched(fake.config, "refused")
    await there.link.connect()
    subscribing = asyncio.create_task(there.link.subscribe(["open/a", "closed/a"]))
    await until(lambda: SUBSCRIBE in fake.packets)
    fake.say(b"\x90\x05\x00\x01\x00\x01" + bytes([code]))
    with pytest.raises(expected, match="'closed/a'"):
        await subscribing
    assert there.link.connected
    await there.link.close()
    await fake.stop()


async def test_a_subscription_without_an_answer_raises(mosquitto_config):
    fake = await FakeBroker(mosquitto_config.model_copy(update={"timeout": 0.05}), CONNACK).start()
    there = Watched(fake.config, "unanswered")
    await there.link.connect()
    with pytest.raises(ConnectionFailed, match=r"no answer in 0\.05 s"):
        await there.link.subscribe(["a"])
    with pytest.raises(ConnectionFailed, match=r"no answer in 0\.05 s"):
        await there.link.unsubscribe(["a"])
    await there.link.close()
    await fake.stop()


async def test_pausing_keeps_the_rest_at_the_broker(open_link, mosquitto_config, topic):
    there = await listener(open_link, mosquitto_config, topic)
    here = await open_link(mosquitto_config)
    there.link.pause()
    there.link.pause()
    sent = [here.link.publish(topic, bytes(1_000_000)) for _ in range(20)]
    assert set(await asyncio.gather(*sent)) == {Reason.SUCCESS}
    for _ in range(5):  # so often the loop has looked at both sockets
        await here.link.publish(topic + "/nobody", b"")
    assert not there.arrivals
    there.link.resume()
    there.link.resume()
    await until(lambda: len(there.arrivals) == 20)


async def test_pausing_from_within_an_arrival(open_link, mosquitto_config, topic):
    there = await listener(open_link, mosquitto_config, topic)
    here = await open_link(mosquitto_config)
    arrived = there.link._handler.on_arrival

    def pause(arrival):
        arrived(arrival)
        there.link.pause()

    there.link._connection._on_arrival = pause
    await asyncio.gather(*(here.link.publish(topic, b"x") for _ in range(100)))
    resumed = 0
    while len(there.arrivals) < 100:
        seen = len(there.arrivals)
        there.link.resume()
        resumed += 1
        await until(lambda seen=seen: len(there.arrivals) > seen)
    assert resumed > 90  # what was read already is not handed out while it is paused


async def test_a_paused_link_is_not_taken_for_dead(mosquitto_config):
    fake = await FakeBroker(mosquitto_config.model_copy(update={"keepalive_s": 1}), CONNACK).start()
    there = Watched(fake.config, "paused")
    await there.link.connect()
    there.link.pause()
    await until(lambda: fake.packets.count(PINGREQ) == 2)
    assert len(there.sessions) == 1
    there.link.resume()
    await until(lambda: not there.link.connected)  # nobody has answered
    await there.link.close()
    await fake.stop()


async def test_close_leaves_no_will_and_fails_waiting_calls(open_link, mosquitto_config, topic):
    there = await listener(open_link, mosquitto_config, topic)
    for reading in (True, False):
        here = Watched(mosquitto_config, "closing", will=topic)
        await here.link.connect()
        await here.link.subscribe(["closing"])
        if not reading:
            here.link.pause()
        sent = [here.link.publish("closing", b"x") for _ in range(100)]
        await here.link.close()
        await here.link.close()
        answers = await asyncio.gather(*sent, return_exceptions=True)
        assert all(isinstance(answer, Closed | int) for answer in answers)
        assert isinstance(answers[-1], Closed)
        with pytest.raises(Closed):
            here.link.publish(topic, b"x")
        with pytest.raises(Closed):
            await here.link.subscribe([topic])
        with pytest.raises(Closed):
            await here.link.wait_connected(1)
        with pytest.raises(Closed):
            await here.link.connect()
        assert not here.lost
    here = await open_link(mosquitto_config, will=topic)
    await here.link.abort()
    await until(lambda: there.arrivals)
    assert there.payloads == [b""]
    gc.collect()  # a future that nobody asked would speak up now
