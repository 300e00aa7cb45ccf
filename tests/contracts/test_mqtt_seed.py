"""AgentSociety's Messager on MQTT, member by member, on Mosquitto and beside plain MQTT clients."""

import asyncio
import inspect
import json
import logging
import pickle
import sys
import uuid
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from functools import partial

import aiomqtt
import pytest
from support.contracts import WAIT_S, until

from ray_messaging import (
    Closed,
    ConfigError,
    ConnectionFailed,
    InvalidAddress,
    InvalidPayload,
    MessagingConfig,
    MessagingError,
    Msg,
    NotListening,
    Outgoing,
    PayloadTooLarge,
    ServerRefused,
)
from ray_messaging.interception.rules import BlackList
from ray_messaging.interception.server.interceptor import Interceptor
from ray_messaging.mqtt import Deliveries, Delivery, Messager, MqttConfig, logger


@pytest.fixture
def exp():
    """Return an experiment name for topics only: the broker and its topics are shared."""
    return f"exp-{uuid.uuid4().hex[:12]}"


@pytest.fixture
async def open_one(mosquitto_config):
    """Open messagers as AgentSociety does; at the end stop them, and check that no task is left."""
    opened = []

    async def open_one(*topics, interceptor=None, config=mosquitto_config, **options):
        messager = Messager(config, message_interceptor=interceptor, **options)
        opened.append(messager)
        await messager.connect()
        if topics:
            await messager.subscribe([*topics], ["whoever"])
            await messager.start_listening()
        return messager

    yield open_one
    for messager in reversed(opened):
        await messager.stop()
    left = [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("ray_messaging")]
    assert not left


@pytest.fixture
async def foreign(mosquitto_config):
    """Give a plain MQTT 3.1.1 client; `subscribed` subscribes it, and returns a function that gets its messages."""
    config = mosquitto_config
    async with AsyncExitStack() as stack:
        client = aiomqtt.Client(config.server, port=config.port, protocol=aiomqtt.ProtocolVersion.V311)
        yield await stack.enter_async_context(client)


async def fetch_all(messager, count, **options):
    found = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            found += await messager.fetch_messages(timeout=WAIT_S, **options)
    return found


async def next_of(client):
    async with asyncio.timeout(WAIT_S):
        return await anext(aiter(client.messages))


class Forward:
    """An actor with AgentSociety's `forward`, which records its questions."""

    def __init__(self, verdict=True):
        self.verdict = verdict
        self.asked = []
        self.forward = self

    async def remote(self, from_uuid, to_uuid, msg):
        self.asked.append((from_uuid, to_uuid, msg))
        return self.verdict


# -- the seed's members, one by one -----------------------------------------------------------------------------------


def test_constructor_takes_agentsocietys_arguments():
    parameters = list(inspect.signature(Messager).parameters.values())
    assert [(each.name, each.default) for each in parameters[:6]] == [
        ("hostname", inspect.Parameter.empty),
        ("port", 1883),
        ("username", None),
        ("password", None),
        ("timeout", 60),
        ("message_interceptor", None),
    ]
    assert all(each.kind is inspect.Parameter.KEYWORD_ONLY for each in parameters[6:])
    handle = Forward()
    messager = Messager("broker", 1884, "ann", "secret", 5, handle)
    assert messager.message_interceptor is handle
    assert "secret" not in repr(vars(messager))


def test_constructor_takes_an_mqtt_config_or_a_url():
    config = MqttConfig(server="broker", port=8883, ssl=True)
    assert Messager(config)._config is config
    assert Messager("mqtts://ann:pw@broker")._config.ssl
    assert Messager("broker")._config == MqttConfig(server="broker", port=1883, timeout=60)
    with pytest.raises(ConfigError, match="there"):
        Messager(config, 1883, "ann")
    with pytest.raises(ConfigError, match="there"):
        Messager("mqtt://broker", port=1884)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"hostname": "h", "port": 0}, "port"),
        ({"hostname": "h", "port": "many"}, "port"),
        ({"hostname": None}, "hostname"),
        ({"hostname": "h", "timeout": 0}, "timeout"),
        ({"hostname": "h", "password": "a secret"}, "username"),
        ({"hostname": "http://h"}, "http"),
        ({"hostname": "h", "message_interceptor": object()}, "forward"),
    ],
)
def test_constructor_refuses_invalid_arguments(arguments, named):
    with pytest.raises(ConfigError, match=named) as caught:
        Messager(**arguments)
    assert "a secret" not in str(caught.value)


async def test_message_interceptor_returns_the_given_one():
    assert Messager("broker").message_interceptor is None
    handle = Forward()
    messager = Messager("broker", message_interceptor=handle)
    assert messager.message_interceptor is handle
    with pytest.raises(AttributeError):
        messager.message_interceptor = None


async def test_set_message_interceptor_applies_from_the_next_send(open_one, exp):
    topic = f"exps/{exp}/agents/b/agent-chat"
    sender, _ = await open_one(), await open_one(topic)
    refusing, passing = Forward(verdict=False), Forward()
    sender.set_message_interceptor(refusing)
    assert sender.message_interceptor is refusing
    receipt = await sender.send_message(topic, {"n": 1}, "a", "b")
    assert (receipt.fate, receipt.rule) == ("blocked", "forward")
    sender.set_message_interceptor(passing)
    assert (await sender.send_message(topic, {"n": 2}, "a", "b")).fate == "delivered"
    sender.set_message_interceptor(None)
    assert (await sender.send_message(topic, {"n": 3}, "a", "b")).fate == "delivered"
    assert [json.loads(msg) for _, _, msg in refusing.asked + passing.asked] == [{"n": 1}, {"n": 2}]
    with pytest.raises(ConfigError, match="forward"):
        sender.set_message_interceptor(object())
    assert sender.message_interceptor is None


async def test_set_message_interceptor_before_connect(open_one, exp, mosquitto_config):
    messager = Messager(mosquitto_config)
    with pytest.raises(ConfigError, match="forward"):
        messager.set_message_interceptor(object())
    messager.set_message_interceptor(Forward(verdict=False))
    async with messager:
        receipt = await messager.send_message(f"exps/{exp}/agents/b/agent-chat", {}, "a", "b")
        assert receipt.fate == "blocked"


async def test_get_log_list_has_agentsocietys_keys_and_ours(open_one, exp):
    topic = f"exps/{exp}/agents/b/agent-chat"
    messager = await open_one(topic, interceptor=Interceptor("x", [BlackList([(13, None)])]))
    assert messager.get_log_list() == []
    receipt = await messager.send_message(topic, {"n": 1}, "7")
    await messager.send_message(topic, {"n": 2}, 13, "b")
    await messager.send_message(f"exps/{exp}/user_payback", {"count": 1})
    rows = messager.get_log_list()
    first, second, third = rows
    assert [*first] == [
        *("topic", "payload", "from_uuid", "to_uuid", "channel", "from_id", "to_id", "start_time", "consumption"),
        *("sent", "fate", "rule", "reason", "message_id"),
    ]
    assert (first["topic"], first["payload"], first["from_uuid"], first["to_uuid"]) == (topic, {"n": 1}, "7", "b")
    assert (first["from_id"], first["to_id"], first["sent"], first["fate"]) == (7, "b", True, "delivered")
    assert first["message_id"] == receipt.message_id
    assert isinstance(first["start_time"], float)
    assert first["consumption"] >= 0
    assert (second["fate"], second["sent"], second["rule"], second["from_uuid"]) == (
        "blocked",
        False,
        "black_list",
        "13",
    )
    assert (third["topic"], third["fate"]) == (f"exps/{exp}/user_payback", "undeliverable")
    assert (third["from_uuid"], third["to_uuid"]) == (None, None)
    await messager.stop()
    assert messager.get_log_list() == rows


async def test_clear_log_list_empties_it(open_one, exp):
    messager = await open_one()
    await messager.send_message(f"x/{exp}", {})
    messager.clear_log_list()
    assert messager.get_log_list() == []
    await messager.send_message(f"y/{exp}", {})
    assert [row["topic"] for row in messager.get_log_list()] == [f"y/{exp}"]


async def test_aexit_stops(mosquitto_config):
    messager = Messager(mosquitto_config)
    await messager.connect()
    await messager.start_listening()
    await messager.__aexit__(None, None, None)
    assert not await messager.is_connected()


async def test_async_with_connects_and_stops(mosquitto_config):
    async with Messager(mosquitto_config) as messager:
        assert await messager.is_connected()
    assert not await messager.is_connected()


async def test_ping_reaches_the_broker(open_one, foreign):
    await foreign.subscribe("ping")
    messager = await open_one()
    await messager.ping()
    message = await next_of(foreign)
    assert (message.topic.value, message.payload) == ("ping", b"ping")
    await messager.disconnect()
    with pytest.raises(Closed, match="connect"):
        await messager.ping()


async def test_connecting_twice_is_harmless(open_one, exp):
    messager = await open_one(f"a/{exp}")
    await messager.connect()
    assert (await messager.send_message(f"a/{exp}", {})).fate == "delivered"
    assert len(await fetch_all(messager, 1)) == 1


async def test_connect_without_a_broker_names_the_address(mosquitto_config):
    messager = Messager("127.0.0.1", port=1)
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:1\b"):
        await messager.connect()
    assert not await messager.is_connected()


async def test_connect_without_the_extra_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray_messaging.mqtt.transport", None)
    with pytest.raises(ConfigError, match=r"ray-messaging\[mqtt\]"):
        await Messager("broker").connect()


async def test_connect_with_a_wrong_password_is_refused_at_once(mosquittos):
    config = mosquittos(users={"ann": "right"}, durable=False).config
    with pytest.raises(ServerRefused) as caught:
        await Messager(config.server, config.port, "ann", "wr0ng").connect()
    assert "wr0ng" not in str(caught.value)
    messager = Messager(config.server, config.port, "ann", "right")
    await messager.connect()
    assert await messager.is_connected()
    await messager.stop()


async def test_disconnect_and_connect_again(open_one, exp):
    topic = f"exps/{exp}/agents/1/agent-chat"
    messager = await open_one(topic)
    await messager.disconnect()
    await messager.disconnect()
    assert not await messager.is_connected()
    for call in (messager.send_message(topic, {}), messager.send_messages([]), messager.flush()):
        with pytest.raises(Closed, match=r"connect\(\)` again"):
            await call
    await messager.connect()
    assert (await messager.send_message(topic, {})).fate == "undeliverable"
    with pytest.raises(NotListening, match="start_listening"):
        await messager.fetch_messages(timeout=None)
    await messager.start_listening()
    await messager.subscribe(topic, 1)
    assert (await messager.send_message(topic, {"n": 1})).fate == "delivered"
    assert [item.message.payload for item in await fetch_all(messager, 1)] == [{"n": 1}]


async def test_is_connected_from_connect_to_disconnect(mosquitto_config):
    messager = Messager(mosquitto_config)
    assert inspect.iscoroutinefunction(messager.is_connected)
    assert await messager.is_connected() is False
    await messager.connect()
    assert await messager.is_connected() is True
    await messager.disconnect()
    assert await messager.is_connected() is False


async def test_is_connected_through_a_restart_of_the_broker(mosquitto, open_one, exp):
    messager = await open_one(f"a/{exp}", config=mosquitto.config)
    mosquitto.kill()
    assert await messager.is_connected()
    mosquitto.start()
    assert (await messager.send_message(f"a/{exp}", {"n": 1})).fate == "delivered"
    assert len(await fetch_all(messager, 1)) == 1


async def test_is_connected_is_false_after_a_final_refusal(mosquittos, open_one, exp):
    broker = mosquittos(users={"ann": "right"}, durable=False)
    config = broker.config.model_copy(update={"username": "ann", "password": "right"})
    messager = await open_one(f"{exp}/a", config=config)
    broker.kill()
    broker._users = {"ann": "another"}
    broker.start()

    async def gone():
        return not await messager.is_connected()

    await until(gone)
    with pytest.raises(ServerRefused):
        await messager.ping()
    with pytest.raises(MessagingError):
        await messager.fetch_messages()
    with pytest.raises(MessagingError):
        await messager.send_message(f"{exp}/a", {})
    with pytest.raises(ServerRefused):
        await messager.connect()
    broker.kill()
    broker._users = {"ann": "right"}
    broker.start()
    await messager.connect()
    await messager.subscribe(f"{exp}/a", None)
    assert (await messager.send_message(f"{exp}/a", {})).fate == "delivered"


async def test_subscribe_as_agentsociety_does(open_one, exp):
    """Start listening first, then subscribe to a filter for each agent, with its QoS."""
    messager, sender = await open_one(), await open_one()
    await messager.start_listening()
    assert list(await messager.fetch_messages()) == []
    agents = [uuid.uuid4().hex for _ in range(3)]
    await messager.subscribe([(f"exps/{exp}/agents/{agent}/#", 1) for agent in agents], agents)
    for n, agent in enumerate(agents):
        for subtopic in ("agent-chat", "user-chat", "user-survey", "gather"):
            receipt = await sender.send_message(f"exps/{exp}/agents/{agent}/{subtopic}", {"n": n}, "me", agent)
            assert receipt.fate == "delivered"
    found = await fetch_all(messager, 12)
    for item in found:
        _, _, _, agent_uuid, _ = item.topic.value.strip("/").split("/")
        assert agents[json.loads(item.payload.decode("utf-8"))["n"]] == agent_uuid == item.to_uuid


async def test_subscribe_takes_one_topic_a_pair_or_a_list(open_one, exp):
    messager, sender = await open_one(), await open_one()
    await messager.start_listening()
    await messager.subscribe(f"{exp}/a", "agent")
    await messager.subscribe((f"{exp}/b", 2), None)
    await messager.subscribe([f"{exp}/c", f"{exp}/d"], ["agent", "other"])
    for n, name in enumerate("abcde"):
        receipt = await sender.send_message(f"{exp}/{name}", {"n": n})
        assert receipt.fate == ("undeliverable" if name == "e" else "delivered")
    assert [item.topic.value[-1] for item in await fetch_all(messager, 4)] == [*"abcd"]


@pytest.mark.parametrize(
    ("wanted", "yes", "no"),
    [
        ("{}/+/chat", ["{}/1/chat", "{}//chat"], ["{}/chat", "{}/1/2/chat", "{}/1/survey"]),
        ("{}/#", ["{}", "{}/1", "{}/1/2"], ["{}x", "x/{}/1"]),
        ("+/{}", ["a/{}", "/{}"], ["{}", "a/b/{}"]),
    ],
)
async def test_subscribe_matches_wildcards_as_mqtt_does(open_one, exp, foreign, wanted, yes, no):
    messager, sender = await open_one(wanted.format(exp)), await open_one()
    for topic in [each.format(exp) for each in no]:
        assert (await sender.send_message(topic, {})).fate == "undeliverable"
        await foreign.publish(topic, b"{}", qos=1)
    for n, topic in enumerate(each.format(exp) for each in yes):
        assert (await sender.send_message(topic, {"n": n})).fate == "delivered"
        await foreign.publish(topic, b'{"n":%d}' % n, qos=1)
    found = await fetch_all(messager, 2 * len(yes))
    assert sorted(item.topic.value for item in found) == sorted(2 * [each.format(exp) for each in yes])
    assert list(await messager.fetch_messages()) == []


async def test_overlapping_subscriptions_bring_each_message_once(open_one, exp, foreign):
    messager, sender = await open_one(f"{exp}/#", f"{exp}/+", (f"{exp}/a", 1)), await open_one()
    await messager.subscribe(f"{exp}/a", None)
    assert (await sender.send_message(f"{exp}/a", {"n": 1})).fate == "delivered"
    await foreign.publish(f"{exp}/a", b'{"n":2}', qos=1)
    await foreign.publish(f"{exp}/end", b'{"n":3}', qos=1)
    assert sorted(item.message.payload["n"] for item in await fetch_all(messager, 3)) == [1, 2, 3]
    assert list(await messager.fetch_messages()) == []


@pytest.mark.parametrize(
    "wanted",
    [
        *("a/#/b", "a+", "", "a\x00b", 7, None, ("a", 3), ("a", True), ("a",), ("a", 1, 2), ("a+b", 1)),
        *("exps:e:agents:1:agent-chat", "exps/_/agents/1/#", "ray_messaging/_/#"),
    ],
    ids=repr,
)
async def test_subscribe_refuses_invalid_filters(open_one, wanted):
    messager = await open_one()
    with pytest.raises(InvalidAddress) as caught:
        await messager.subscribe([wanted], [1])
    assert caught.value.value is not None or wanted is None


async def test_subscribe_takes_any_sequence(open_one, exp):
    messager, sender = await open_one(), await open_one()
    await messager.subscribe((f"{exp}/a", f"{exp}/b"), None)
    await messager.subscribe([f"{exp}/c", (f"{exp}/d", 0)], None)
    await messager.subscribe((), None)
    for name in "abcd":
        assert (await sender.send_message(f"{exp}/{name}", {})).fate == "delivered"
    for wrong in (7, None, {"a": 1}, b"a", (f"{exp}/e", 3)):
        with pytest.raises(InvalidAddress):
            await messager.subscribe(wrong, None)


async def test_subscribe_to_the_brokers_own_topics(open_one):
    for wanted in ("$SYS/broker/version", "$SYS/#"):
        messager = await open_one(wanted)
        found = await fetch_all(messager, 1)
        assert all(item.topic.value.startswith(wanted.rstrip("#")) for item in found)
        assert all(item.to_uuid is None and "$SYS" in repr(item) for item in found)
        with pytest.raises(InvalidAddress, match="the broker's own"):
            await messager.send_message("$SYS/broker/version", {})
        await messager.stop()


async def test_receive_messages_can_run_as_a_task(open_one, exp):
    messager = await open_one()
    await messager.subscribe(f"{exp}/a", None)
    receiving = asyncio.create_task(messager.receive_messages())
    await asyncio.sleep(0)  # so that it begins
    await messager.send_message(f"{exp}/a", {"n": 1})
    assert len(await fetch_all(messager, 1)) == 1
    assert not receiving.done()
    await messager.disconnect()
    async with asyncio.timeout(WAIT_S):
        assert await receiving is None


async def test_fetch_messages_returns_topics_and_payloads(open_one, exp):
    topic = f"exps/{exp}/agents/b-1/agent-chat"
    messager, sender = await open_one(topic), await open_one()
    receipt = await sender.send_message(topic, {"text": "hé"}, "7")
    found = await messager.fetch_messages(timeout=WAIT_S)
    (item,) = found
    assert isinstance(found, Deliveries)
    assert isinstance(item, Delivery)
    assert isinstance(item.topic, aiomqtt.Topic)
    assert (item.topic.value, str(item.topic)) == (topic, topic)
    assert item.topic.matches(f"exps/{exp}/+/+/agent-chat")
    assert item.payload == b'{"text":"h\xc3\xa9"}'
    assert (item.from_uuid, item.to_uuid) == ("7", "b-1")
    assert (item.message.id, item.message.from_id, item.message.to_id) == (receipt.message_id, 7, "b-1")
    assert item.message.payload == {"text": "hé"}
    for copy in (pickle.loads(pickle.dumps(item)), pickle.loads(pickle.dumps(found))[0]):
        assert (copy.topic.value, copy.payload, copy.message.id) == (topic, item.payload, item.message.id)
    assert (len(found), found[-1].payload, len(found[:1])) == (1, item.payload, 1)
    assert found.messages.payloads == [{"text": "hé"}]
    assert topic in repr(item)
    assert list(await messager.fetch_messages()) == []


async def test_batches_compare_and_add_up_as_lists_do(open_one, exp):
    messager = await open_one(f"{exp}/a")
    assert await messager.fetch_messages() == []
    await messager.send_messages([Outgoing(f"{exp}/a", {"n": n}) for n in range(3)])
    found = await messager.fetch_messages(timeout=WAIT_S)
    assert found == found[:] == pickle.loads(pickle.dumps(found))
    assert all(found != other for other in ([], found[:2], 7))
    assert found[0] == found[0] != found[1]
    assert found[1] in found
    assert (found.index(found[2]), len({*found, *found})) == (2, 3)
    assert found + found[:1] == [*found, found[0]]
    assert found[:2] + found.split(2)[1] == found
    seen = []
    seen += found
    assert seen == found


async def test_fetch_messages_before_connecting_raises_with_the_remedy(mosquitto_config, exp):
    messager = Messager(mosquitto_config)
    for call in (messager.fetch_messages, messager.ack, messager.start_listening, messager.receive_messages):
        with pytest.raises(NotListening, match=r"connect\(\)"):
            await call()
    with pytest.raises(NotListening, match=r"connect\(\)"):
        await messager.subscribe("a", None)
    with pytest.raises(NotListening, match=r"connect\(\)"):
        await anext(aiter(messager))
    await messager.connect()
    await messager.subscribe(f"{exp}/a", None)
    for call in (partial(messager.fetch_messages, timeout=None), messager.ack):
        with pytest.raises(NotListening, match=r"start_listening\(\)"):
            await call()
    await messager.start_listening()
    assert list(await messager.fetch_messages()) == []
    await messager.ack()
    await messager.stop()


async def test_fetch_messages_before_listening_returns_nothing_and_warns_once(open_one, exp, caplog):
    messager = await open_one()
    assert await messager.fetch_messages() == []
    await messager.subscribe(f"{exp}/a", None)
    assert await messager.fetch_messages() == []
    await messager.send_message(f"{exp}/a", {"n": 1})
    await messager.start_listening()
    assert [item.message.payload for item in await fetch_all(messager, 1)] == [{"n": 1}]
    (told,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "start_listening()" in told.getMessage()


async def test_fetch_messages_after_stop_returns_the_arrived_messages(open_one, exp):
    messager, sender = await open_one(f"{exp}/#"), await open_one()
    for n in range(5):
        await sender.send_message(f"{exp}/a", {"n": n})
    (first,) = await fetch_all(messager, 1, limit=1)
    async with asyncio.timeout(WAIT_S):
        while messager.stats()["inbox"] < 4:  # noqa: ASYNC110 - what is awaited has no event
            await asyncio.sleep(0)
    await messager.stop()
    assert first.message.payload == {"n": 0}
    assert [item.message.payload["n"] for item in await messager.fetch_messages(limit=3)] == [1, 2, 3]
    assert [item.message.payload["n"] for item in await messager.fetch_messages(timeout=None)] == [4]
    assert list(await messager.fetch_messages()) == []


async def test_unfetched_messages_come_first_after_reconnecting(open_one, exp):
    messager, sender = await open_one(f"{exp}/#"), await open_one()
    for n in range(4):
        if n == 3:
            assert [item.message.payload["n"] for item in await messager.fetch_messages(limit=1)] == [0]
        await messager.connect()
        await messager.subscribe(f"{exp}/#", None)
        await messager.start_listening()
        await sender.send_message(f"{exp}/a", {"n": n})
        async with asyncio.timeout(WAIT_S):
            while messager.stats()["inbox"] < 1:  # noqa: ASYNC110 - what is awaited has no event
                await asyncio.sleep(0)
        await messager.stop()
    await messager.connect()
    await messager.start_listening()
    seen = []
    async for item in messager:
        seen.append(item.message.payload["n"])
        if len(seen) == 3:
            break
    assert seen == [1, 2, 3]


async def test_fetch_messages_also_waits_for_the_first_subscription(open_one, exp):
    messager, sender = await open_one(), await open_one()
    await messager.start_listening()
    assert list(await messager.fetch_messages(timeout=0.01)) == []
    waiting = asyncio.create_task(messager.fetch_messages(timeout=None))
    await asyncio.sleep(0)  # so that it waits
    await messager.subscribe(f"{exp}/a", None)
    await sender.send_message(f"{exp}/a", {"n": 1})
    async with asyncio.timeout(WAIT_S):
        assert [item.message.payload for item in await waiting] == [{"n": 1}]


@pytest.mark.parametrize("topics", [[], ["{}/a"]], ids=["unsubscribed", "subscribed"])
async def test_stop_ends_waiting_fetches_without_messages(open_one, exp, topics):
    async def iterate(messager):
        return [item async for item in messager]

    for wait in (lambda messager: messager.fetch_messages(timeout=None), iterate):
        messager = await open_one(*(topic.format(exp) for topic in topics))
        await messager.start_listening()
        waiting = asyncio.create_task(wait(messager))
        await asyncio.sleep(0)  # so that it waits
        await messager.stop()
        async with asyncio.timeout(WAIT_S):
            assert list(await waiting) == []


async def test_send_message_has_a_receipt_for_each_fate(open_one, exp, foreign):
    await foreign.subscribe(f"exps/{exp}/user_payback", qos=1)
    silenced = Interceptor("x", [BlackList([("silenced", None)])])
    sender, _ = await open_one(interceptor=silenced), await open_one(f"exps/{exp}/agents/b/agent-chat")
    to_b, to_c = (f"exps/{exp}/agents/{agent}/agent-chat" for agent in "bc")
    assert (await sender.send_message(to_b, {}, "a", "b")).fate == "delivered"
    assert (await sender.send_message(to_c, {}, "a", "c")).fate == "undeliverable"
    receipt = await sender.send_message(to_b, {}, "silenced")  # without to_uuid the rules still apply
    assert (receipt.fate, receipt.rule, receipt.sent) == ("blocked", "black_list", False)
    assert (await sender.send_message(f"exps/{exp}/user_payback", {"count": 1})).fate == "published"
    message = await next_of(foreign)
    assert (message.topic.value, json.loads(message.payload)) == (f"exps/{exp}/user_payback", {"count": 1})


async def test_send_message_takes_agentsocietys_keywords(open_one, exp):
    messager = await open_one(f"{exp}/a")
    receipt = await messager.send_message(topic=f"{exp}/a", payload={"n": 1}, from_uuid="x", to_uuid="y")
    assert receipt.sent
    (item,) = await fetch_all(messager, 1)
    assert (item.from_uuid, item.to_uuid) == ("x", "y")


async def test_send_message_asks_a_foreign_interceptor_as_agentsociety_does(open_one, exp):
    handle = Forward()
    sender = await open_one(interceptor=handle)
    topic = f"exps/{exp}/agents/2/agent-chat"
    await sender.send_message(topic, {"text": "hé"}, "1", "2")
    await sender.send_message(topic, {}, None, "2")  # the user is not asked about
    await sender.send_message(f"{exp}/plain", {}, "1", None)
    (asked,) = handle.asked
    assert asked[:2] == ("1", "2")
    assert isinstance(asked[2], str)
    assert json.loads(asked[2]) == {"text": "hé"}


@pytest.mark.parametrize(
    "topic",
    [
        *("a/+/b", "a/#", "", "$SYS/x", "a\x00", 7, "x" * 300, "exps:e:agents:1:chat", "ray_messaging/x"),
        *("exps/_/agents/1/chat",),
    ],
    ids=lambda topic: repr(topic)[:30],
)
async def test_send_message_refuses_invalid_topics(open_one, topic):
    messager = await open_one()
    for send in (messager.send_message(topic, {}), messager.send_messages([Outgoing("x", {}), _outgoing(topic)])):
        with pytest.raises(InvalidAddress) as caught:
            await send
        assert caught.value.value == topic
    assert messager.get_log_list() == []


def _outgoing(topic):
    made = Outgoing("x", {})
    made.channel = topic
    return made


async def test_send_message_refuses_a_recipient_that_contradicts_the_topic(open_one, exp):
    messager = await open_one()
    with pytest.raises(InvalidAddress, match="contradicts") as caught:
        await messager.send_message(f"exps/{exp}/agents/1/agent-chat", {}, "a", "2")
    assert caught.value.value == "2"
    assert str(caught.value).startswith(f"to_uuid '2' contradicts the topic 'exps/{exp}/agents/1/agent-chat'")
    with pytest.raises(InvalidAddress, match="is a list") as caught:
        await messager.send_message(f"exps/{exp}/agents/1/agent-chat", {}, [], "1")
    with pytest.raises(InvalidAddress, match="has 300 bytes"):
        await messager.send_message(300 * "x", {})
    assert (await messager.send_message(f"exps/{exp}/agents/1/agent-chat", {}, "a", "1")).fate == "undeliverable"


async def test_send_message_refuses_payloads_that_are_too_large_or_not_json(open_one, exp):
    messager = await open_one(f"{exp}/a", settings=MessagingConfig(payload_bytes=1000))
    with pytest.raises(PayloadTooLarge) as caught:
        await messager.send_message(f"{exp}/a", {"text": 1000 * "x"})
    assert caught.value.limit == 1000
    with pytest.raises(InvalidPayload):
        await messager.send_message(f"{exp}/a", "text")
    with pytest.raises(InvalidPayload):
        await messager.send_message(f"{exp}/a", {"object": object()})


async def test_send_message_above_the_brokers_limit_raises(mosquittos, open_one, exp):
    config = mosquittos(durable=False, options=["max_packet_size 20000"]).config
    messager = await open_one(f"{exp}/a", config=config)
    for topic in (f"{exp}/a", f"{exp}/nobody"):
        with pytest.raises(PayloadTooLarge) as caught:
            await messager.send_message(topic, {"text": 30_000 * "x"})
        assert caught.value.size > 30_000
        assert caught.value.limit < caught.value.size
    assert (await messager.send_message(f"{exp}/a", {"text": "small"})).fate == "delivered"


async def test_send_message_takes_a_msg(open_one, exp):
    messager = await open_one(f"{exp}/a")
    msg = Msg("ann", "hello", "user")
    await messager.send_message(f"{exp}/a", msg)
    (item,) = await fetch_all(messager, 1)
    assert item.message.msg == msg


async def test_many_sends_at_once_keep_their_order(open_one, exp):
    topic = f"exps/{exp}/agents/b/agent-chat"
    messager, sender = await open_one(topic), await open_one()
    receipts = await asyncio.gather(*(sender.send_message(topic, {"n": n}, "a", "b") for n in range(500)))
    assert {receipt.fate for receipt in receipts} == {"delivered"}
    assert [item.message.payload["n"] for item in await fetch_all(messager, 500)] == [*range(500)]


async def test_start_listening_after_subscribe_misses_nothing(open_one, exp):
    messager, sender = await open_one(), await open_one()
    await messager.subscribe(f"{exp}/a", None)
    assert (await sender.send_message(f"{exp}/a", {"n": 1})).fate == "delivered"
    await messager.start_listening()
    await messager.start_listening()
    assert [item.message.payload for item in await fetch_all(messager, 1)] == [{"n": 1}]


async def test_stop_twice_and_without_listening(open_one):
    messager = await open_one()
    await messager.stop()
    await messager.stop()
    assert not await messager.is_connected()
    never = Messager("broker")
    await never.stop()
    assert list(never.get_log_list()) == []


# -- what is ours -----------------------------------------------------------------------------------------------------


async def test_send_messages_and_flush(open_one, exp):
    messager = await open_one(f"exps/{exp}/agents/+/agent-chat")
    messager.step = 3
    topics = [f"exps/{exp}/agents/{n}/agent-chat" for n in range(4)]
    receipts = await messager.send_messages([Outgoing(topic, {"n": n}, 9) for n, topic in enumerate(topics)])
    await messager.flush()
    assert receipts.fates.tolist() == ["delivered"] * 4
    found = await fetch_all(messager, 4)
    assert [(item.to_uuid, item.from_uuid, item.message.step) for item in found] == [(str(n), "9", 3) for n in range(4)]
    messager.step = None
    await messager.send_message(topics[0], {})
    assert [item.message.step for item in await fetch_all(messager, 1)] == [None]
    with pytest.raises(InvalidAddress, match="exp_id"):
        await messager.send_messages([Outgoing.to_agent(1, {})])


async def test_step_is_validated_and_kept_over_connections(open_one, exp):
    messager = Messager("broker")
    with pytest.raises(ConfigError, match="step"):
        messager.step = "three"
    messager = await open_one(f"{exp}/a")
    messager.step = 5
    await messager.disconnect()
    await messager.connect()
    assert messager.step == 5
    await messager.subscribe(f"{exp}/a", None)
    await messager.start_listening()
    await messager.send_message(f"{exp}/a", {})
    assert [item.message.step for item in await fetch_all(messager, 1)] == [5]


async def test_iterating_ends_with_the_messager(open_one, exp):
    messager, sender = await open_one(f"{exp}/a"), await open_one()
    for n in range(3):
        await sender.send_message(f"{exp}/a", {"n": n})
    seen = []
    async with asyncio.timeout(WAIT_S):
        async for item in messager:
            seen.append(item.message.payload["n"])
            if len(seen) == 3:
                await messager.stop()
    assert seen == [0, 1, 2]


async def test_stats_before_and_after_stop(open_one, exp):
    messager = await open_one(f"{exp}/a", interceptor=Forward())
    assert messager.stats()["interceptor"] == "forward"
    assert messager.stats()["inbox"] == 0
    await messager.stop()
    assert messager.stats() == {"name": None, "log_dropped": 0}


async def test_uncommitted_messages_go_to_the_successor_of_that_name(open_one, exp, mosquitto_config):
    name, topic = f"group-{exp}", f"{exp}/a"
    sender, first = await open_one(), await open_one(topic, name=name)
    for n in range(4):
        assert (await sender.send_message(topic, {"n": n})).fate == "delivered"
    await fetch_all(first, 2, limit=2)
    await first.ack()
    await fetch_all(first, 1, limit=1)
    await first.__aexit__(RuntimeError, RuntimeError("in the middle of it"), None)
    assert (await sender.send_message(topic, {"n": 4})).fate == "delivered"  # while nobody is there
    second = await open_one(topic, name=name)
    assert [item.message.payload["n"] for item in await fetch_all(second, 3)] == [2, 3, 4]


def test_repr_shows_address_and_user_but_no_password():
    messager = Messager("broker", 1884, "ann", "secret", exp_id="town", name="group-1")
    assert repr(messager) == "Messager(broker:1884, exp_id='town', name='group-1')"
    assert repr(Messager("mqtts://ann:secret@broker")) == "Messager(broker:8883, exp_id=None, name=None)"


def test_an_empty_password_without_a_user_means_none():
    assert Messager("broker", username=None, password="")._config.password is None
    with pytest.raises(ConfigError):
        Messager("broker", password=" ")


def test_a_subclass_may_be_abstract():
    class Mine(Messager, ABC):
        @abstractmethod
        def more(self): ...

    with pytest.raises(TypeError, match="more"):
        Mine("broker")


async def test_the_module_loggers_level_applies_to_all_our_loggers(open_one, exp, caplog):
    messager = await open_one()
    with caplog.at_level(logging.ERROR, logger=logger.name):
        await messager.fetch_messages()
        logging.getLogger("ray_messaging.mqtt.connection.connection").warning("cut")
    assert caplog.records == []


async def test_the_documented_reconnect_loop_works(mosquitto):
    """Run the loop of docs/migrating.md."""
    mosquitto.kill()
    messager = Messager(mosquitto.config)
    failed = asyncio.Event()

    async def connect():
        while not await messager.is_connected():
            try:
                await messager.connect()
            except ConnectionFailed:
                failed.set()
                await asyncio.sleep(0.01)

    connecting = asyncio.create_task(connect())
    async with asyncio.timeout(WAIT_S):
        await failed.wait()
        mosquitto.start()
        await connecting
    await messager.ping()
    await messager.stop()


async def test_messages_fetched_after_stop_become_no_dead_letters(open_one, exp, foreign, caplog):
    await foreign.subscribe("ray_messaging/_/dead/#", qos=1)
    receiver, sender = await open_one(f"{exp}/a"), await open_one()
    await sender.send_messages([Outgoing(f"{exp}/a", {"n": n}) for n in range(6)])
    await fetch_all(receiver, 2, limit=2)
    await receiver.stop()
    assert [item.message.payload["n"] for item in await receiver.fetch_messages()] == [2, 3, 4, 5]

    async def gone():
        return (await sender.send_message(f"{exp}/a", {})).fate == "undeliverable"

    await until(gone)
    assert not [record for record in caplog.records if "is gone" in record.getMessage()]
    await foreign.publish("ray_messaging/_/dead/end", b"", qos=1)
    assert (await next_of(foreign)).topic.value.endswith("/end")


# -- plain MQTT clients beside us -------------------------------------------------------------------------------------


async def test_a_plain_client_reaches_us(open_one, exp, foreign):
    messager = await open_one(f"exps/{exp}/agents/+/user-chat")
    for n, data in enumerate([b'{"n": 0}', b"no json", b"", b"\xff\x00"]):
        await foreign.publish(f"exps/{exp}/agents/{n}/user-chat", data, qos=n % 2)
    found = await fetch_all(messager, 4)
    assert [item.payload for item in found] == [b'{"n": 0}', b"no json", b"", b"\xff\x00"]
    assert [(item.topic.value, item.to_uuid, item.from_uuid) for item in found] == [
        (f"exps/{exp}/agents/{n}/user-chat", str(n), None) for n in range(4)
    ]


async def test_topics_of_plain_clients_arrive_unchanged(open_one, exp, foreign):
    topics = [
        *("exps:x:agents:1:agent-chat", "exps:x", "exps:_:agents:1:agent-chat", "exps:_:user-payback", "exps%3Ax"),
        *("exps/_", "exps/_/", "exps/_/agents", "exps/_/agents/1/x", "exps/_/agents/01/x", "exps/_/agents:1:c"),
        *(
            "exps/_/user-payback",
            "exps/_/x:y",
            "exps//agents/1/x",
            f"exps/{exp}/agents/a%2Fb/chat",
            "exps/a:b/agents/1/x",
        ),
        *("ray_messagingx", "/", "//", "%", "a b", "é", "exps", 150 * "a/" + "z", 3_000 * "long"),
    ]
    messager = await open_one("#")
    for topic in topics:
        await foreign.publish(topic, exp.encode(), qos=1)
    found = []
    while len(found) < len(topics):
        found += [item for item in await fetch_all(messager, 1) if item.payload == exp.encode()]
    assert [item.topic.value for item in found] == topics
    assert all(repr(item.topic.value)[:20] in repr(item) for item in found)
    agents = dict(zip(topics, [item.to_uuid for item in found], strict=True))
    assert agents["exps:_:agents:1:agent-chat"] is None
    assert (agents["exps/_/agents/1/x"], agents[f"exps/{exp}/agents/a%2Fb/chat"]) == ("1", "a/b")


@pytest.mark.parametrize("wanted", ["exps/{}/agents/1/agent-chat", "exps/{}/agents/+/agent-chat", "exps/{}/#"])
async def test_a_plain_client_receives_our_messages(open_one, exp, foreign, wanted):
    await foreign.subscribe(wanted.format(exp), qos=1)
    messager = await open_one()
    receipt = await messager.send_message(f"exps/{exp}/agents/1/agent-chat", {"text": "hi"}, "2")
    assert receipt.fate == "published"
    message = await next_of(foreign)
    assert (message.topic.value, message.payload) == (f"exps/{exp}/agents/1/agent-chat", b'{"text":"hi"}')


async def test_a_plain_client_receives_mirrored_messages(open_one, exp, foreign):
    topic = f"exps/{exp}/agents/1/agent-chat"
    await foreign.subscribe(topic, qos=1)
    receiver, sender = await open_one(topic), await open_one(settings=MessagingConfig(mirror=True))
    assert (await sender.send_message(topic, {"n": 1})).fate == "delivered"
    assert json.loads((await next_of(foreign)).payload) == {"n": 1}
    await foreign.publish(topic, b'{"n":2}', qos=1)
    assert [item.message.payload["n"] for item in await fetch_all(receiver, 2)] == [1, 2]


async def test_messages_of_a_plain_client_wait_for_a_named_messager(open_one, exp, foreign):
    name, topic = f"group-{exp}", f"exps/{exp}/agents/1/user-chat"
    first = await open_one(topic, name=name)
    await foreign.publish(topic, b"0", qos=1)
    assert [item.payload for item in await fetch_all(first, 1)] == [b"0"]
    await first.stop()
    for n in range(1, 4):
        await foreign.publish(topic, b"%d" % n, qos=1)
    second = await open_one(topic, name=name)
    assert [item.payload for item in await fetch_all(second, 3)] == [b"1", b"2", b"3"]


async def test_nothing_is_lost_when_the_broker_is_killed(mosquitto, open_one, exp):
    topic = f"exps/{exp}/agents/b/agent-chat"
    receiver, sender = (
        await open_one(topic, config=mosquitto.config, name="receiver"),
        await open_one(config=mosquitto.config, name="sender"),
    )
    for n in range(10):
        await sender.send_message(topic, {"n": n}, "a", "b")
    mosquitto.kill()
    under_way = [asyncio.create_task(sender.send_message(topic, {"n": n}, "a", "b")) for n in range(10, 30)]
    mosquitto.start()
    async with asyncio.timeout(WAIT_S):
        assert {receipt.fate for receipt in await asyncio.gather(*under_way)} == {"delivered"}
    assert [item.message.payload["n"] for item in await fetch_all(receiver, 30)] == [*range(30)]
    async with aiomqtt.Client(mosquitto.config.server, port=mosquitto.config.port) as foreign:
        await foreign.publish(topic, b'{"n":30}', qos=1)
    assert [item.message.payload["n"] for item in await fetch_all(receiver, 1)] == [30]


async def test_agentsocietys_dispatch_loop_works(open_one, exp):
    """Poll, parse each message and reply, until the messager is disconnected."""
    ours, user = await open_one(f"exps/{exp}/agents/7/#"), await open_one(f"exps/{exp}/user_payback")
    seen = []

    async def dispatch():
        while True:
            if not await ours.is_connected():
                break
            for message in await ours.fetch_messages():
                payload = message.payload
                if isinstance(payload, bytes):
                    payload = json.loads(payload.decode("utf-8"))
                _, _, _, agent_uuid, topic_type = message.topic.value.strip("/").split("/")
                seen.append((agent_uuid, topic_type, payload))
                await ours.send_message(f"exps/{exp}/user_payback", {"count": 1})

    dispatching = asyncio.create_task(dispatch())
    for subtopic in ("user-chat", "user-survey"):
        await user.send_message(f"exps/{exp}/agents/7/{subtopic}", {"from": "none"})
    assert [item.message.payload for item in await fetch_all(user, 2)] == [{"count": 1}, {"count": 1}]
    await ours.stop()
    async with asyncio.timeout(WAIT_S):
        await dispatching
    assert seen == [("7", "user-chat", {"from": "none"}), ("7", "user-survey", {"from": "none"})]
