"""AgentSociety's Messager on MQTT, member by member, on Mosquitto and beside plain MQTT clients."""

import asyncio
import inspect
import json
import pickle
import re
import subprocess
import sys
import uuid
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import partial
from inspect import signature

import aiomqtt
import pytest
from support.contracts import WAIT_S, fetch_all, until
from support.interceptors import Foreign, interceptor_with
from support.receivers import reads_nothing

from ray_messaging import Messager, Messaging, MessagingConfig, Msg, rules
from ray_messaging.compat.mqtt import Messager as MqttMessager
from ray_messaging.compat.mqtt import MqttConfig
from ray_messaging.errors import (
    Closed,
    ConfigError,
    ConnectionFailed,
    Fenced,
    InvalidAddress,
    InvalidPayload,
    NotListening,
    OutcomeUnknown,
    PayloadTooLarge,
    ServerRefused,
)


@pytest.fixture
def exp():
    """Return an experiment name for topics only: the broker and its topics are shared."""
    return f"exp-{uuid.uuid4().hex[:12]}"


@pytest.fixture
async def open_one(mosquitto_config):
    """Open messagers as AgentSociety does; at the end stop them, and check that no task is left."""
    opened = []

    async def open_one(*topics, interceptor=None, config=mosquitto_config, **options):
        messager = MqttMessager(config, message_interceptor=interceptor, **options)
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
    """Give a plain MQTT 3.1.1 client."""
    config = mosquitto_config
    async with aiomqtt.Client(config.server, port=config.port, protocol=aiomqtt.ProtocolVersion.V311) as client:
        yield client


def numbers(messages):
    return [json.loads(message.payload)["n"] for message in messages]


async def next_of(client):
    return await asyncio.wait_for(anext(aiter(client.messages)), WAIT_S)


# -- the seed's members, one by one -----------------------------------------------------------------------------------


def test_constructor_takes_agentsocietys_arguments():
    handle = Foreign()
    messager = MqttMessager("broker", 1884, "ann", "secret", 5, handle)
    assert messager.message_interceptor is handle
    assert "secret" not in repr(vars(messager))
    assert repr(messager) == "Messager(broker:1884, name=None)"


def test_constructor_takes_a_host_or_an_mqtt_config():
    config = MqttConfig(server="broker", port=8883, ssl=True)
    assert repr(MqttMessager(config)) == "Messager(broker:8883, name=None)"
    assert repr(MqttMessager("broker")) == "Messager(broker:1883, name=None)"
    assert signature(MqttMessager).parameters["timeout"].default == 60
    assert repr(MqttMessager("broker", username=None, password="")) == repr(MqttMessager("broker"))
    with pytest.raises(ConfigError, match="cannot be passed next to an MqttConfig"):
        MqttMessager(config, 1883, "ann")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"hostname": "h", "port": 0}, "port"),
        ({"hostname": "h", "port": "many"}, "port"),
        ({"hostname": None}, "hostname"),
        ({"hostname": "h", "timeout": 0}, "timeout"),
        ({"hostname": "h", "password": "a secret"}, "username"),
        ({"hostname": "mqtt://ann:a secret@h"}, "the host is a URL"),
        ({"hostname": "h", "message_interceptor": object()}, "forward"),
    ],
)
def test_constructor_refuses_invalid_arguments(arguments, named):
    with pytest.raises(ConfigError, match=named) as caught:
        MqttMessager(**arguments)
    assert "a secret" not in str(caught.value)


async def test_message_interceptor_returns_the_given_one():
    assert MqttMessager("broker").message_interceptor is None
    handle = Foreign()
    messager = MqttMessager("broker", message_interceptor=handle)
    assert messager.message_interceptor is handle
    with pytest.raises(AttributeError):
        messager.message_interceptor = None


async def test_set_message_interceptor_applies_from_the_next_send(open_one, exp):
    topic = f"exps/{exp}/agents/b/agent-chat"
    sender, receiver = await open_one(), await open_one(topic)
    refusing, passing = Foreign(lambda *_: False), Foreign()
    sender.set_message_interceptor(refusing)
    assert sender.message_interceptor is refusing
    receipt = await sender.send_message(topic, {"n": 1}, "a", "b")
    assert (receipt.fate, receipt.rule, bool(receipt)) == ("blocked", "forward", False)
    sender.set_message_interceptor(passing)
    assert (await sender.send_message(topic, {"n": 2}, "a", "b")).fate == "published"
    sender.set_message_interceptor(None)
    assert (await sender.send_message(topic, {"n": 3}, "a", "b")).fate == "published"
    assert [json.loads(msg) for _, _, msg in refusing.calls + passing.calls] == [{"n": 1}, {"n": 2}]
    assert numbers(await fetch_all(receiver, 2)) == [2, 3]
    with pytest.raises(ConfigError, match="forward"):
        sender.set_message_interceptor(object())
    assert sender.message_interceptor is None


async def test_the_log_list_has_agentsocietys_keys_and_ours(open_one, exp):
    topic = f"exps/{exp}/agents/b/agent-chat"
    messager = await open_one(topic, interceptor=interceptor_with(rules.BlackList([(13, None)])))
    assert messager.get_log_list() == []
    receipt = await messager.send_message(topic, {"n": 1}, "7")
    await messager.send_message(topic, {"n": 2}, 13, "b")
    await messager.send_message(f"exps/{exp}/user_payback", {"count": 1})
    first, second, third = rows = messager.get_log_list()
    assert [*first] == [
        *("topic", "payload", "from_uuid", "to_uuid", "start_time", "consumption"),
        *("sent", "fate", "rule", "reason", "message_id"),
    ]
    assert (first["topic"], first["payload"], first["from_uuid"], first["to_uuid"]) == (topic, {"n": 1}, "7", "b")
    assert (first["sent"], first["fate"], first["message_id"]) == (True, "published", receipt.message_id)
    assert isinstance(first["start_time"], float)
    assert first["consumption"] >= 0
    blocked = {"fate": "blocked", "sent": False, "rule": "black_list", "from_uuid": "13"}
    assert second == second | blocked
    assert (third["topic"], third["from_uuid"], third["to_uuid"]) == (f"exps/{exp}/user_payback", None, None)
    await messager.stop()
    assert messager.get_log_list() == rows
    messager.clear_log_list()
    assert messager.get_log_list() == []


async def test_the_log_list_is_bounded(open_one, exp):
    messager = await open_one(settings=MessagingConfig(log_list_messages=2))
    for n in range(4):
        await messager.send_message(f"{exp}/a", {"n": n})
    assert [row["payload"] for row in messager.get_log_list()] == [{"n": 2}, {"n": 3}]


async def test_aexit_stops(mosquitto_config):
    async with MqttMessager(mosquitto_config) as messager:
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
    assert (await messager.send_message(f"a/{exp}", {"n": 1})).sent
    assert numbers(await fetch_all(messager, 1)) == [1]


async def test_connect_without_a_broker_names_the_address():
    messager = MqttMessager("127.0.0.1", port=1)
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:1\b"):
        await messager.connect()
    assert not await messager.is_connected()
    await messager.stop()


async def test_connect_with_a_wrong_password_is_refused_at_once(mosquittos):
    config = mosquittos(users={"ann": "right"}, durable=False).config
    with pytest.raises(ServerRefused) as caught:
        await MqttMessager(config.server, config.port, "ann", "wr0ng").connect()
    assert "wr0ng" not in str(caught.value)
    async with MqttMessager(config.server, config.port, "ann", "right") as messager:
        assert await messager.is_connected()


async def test_disconnect_and_connect_again(open_one, exp):
    topic = f"exps/{exp}/agents/1/agent-chat"
    messager = await open_one(topic)
    await messager.disconnect()
    await messager.disconnect()
    assert not await messager.is_connected()
    with pytest.raises(Closed, match=r"connect\(\)` again"):
        await messager.send_message(topic, {})
    await messager.connect()
    with pytest.raises(NotListening, match="start_listening"):
        await messager.fetch_messages(timeout=None)
    await messager.start_listening()
    await messager.send_message(topic, {"n": 0})  # to nobody: the disconnect has ended the subscription
    await messager.subscribe(topic, 1)
    await messager.send_message(topic, {"n": 1})
    assert numbers(await fetch_all(messager, 1)) == [1]


async def test_is_connected_through_a_restart_of_the_broker(mosquitto, open_one, exp):
    messager = await open_one(f"a/{exp}", config=mosquitto.config)
    assert inspect.iscoroutinefunction(messager.is_connected)
    mosquitto.stop()
    assert await messager.is_connected()
    sending = [asyncio.create_task(messager.send_message(f"a/{exp}", {"n": n})) for n in range(50)]
    mosquitto.start()
    async with asyncio.timeout(WAIT_S):
        assert all(receipt.sent for receipt in await asyncio.gather(*sending))
    assert numbers(await fetch_all(messager, 50)) == [*range(50)]


async def test_a_send_without_a_broker_fails_in_time_and_later_ones_pass(mosquitto, open_one, exp):
    messager = await open_one(f"a/{exp}", config=mosquitto.config.model_copy(update={"timeout": 0.3}))
    mosquitto.stop()
    while True:
        with pytest.raises((ConnectionFailed, OutcomeUnknown)) as caught:
            await messager.send_message(f"a/{exp}", {"n": 0})
        if "nothing was sent" in str(caught.value):  # the first may meet the very moment of the cut
            break
    mosquitto.start()
    seen = []
    async with asyncio.timeout(WAIT_S):
        while 1 not in seen:
            with suppress(ConnectionFailed, OutcomeUnknown):
                await messager.send_message(f"a/{exp}", {"n": 1})
            seen += numbers(await messager.fetch_messages())


async def test_subscribe_as_agentsociety_does(open_one, exp):
    """Start listening first, then subscribe to a filter for each agent, with its QoS."""
    messager, sender = await open_one(), await open_one()
    await messager.start_listening()
    assert await messager.fetch_messages() == []
    agents = [uuid.uuid4().hex for _ in range(3)]
    await messager.subscribe([(f"exps/{exp}/agents/{agent}/#", 1) for agent in agents], agents)
    for n, agent in enumerate(agents):
        for subtopic in ("agent-chat", "user-chat", "user-survey", "gather"):
            await sender.send_message(f"exps/{exp}/agents/{agent}/{subtopic}", {"n": n}, "me", agent)
    for item in await fetch_all(messager, 12):
        _, _, _, agent_uuid, _ = item.topic.value.strip("/").split("/")
        assert agents[json.loads(item.payload.decode("utf-8"))["n"]] == agent_uuid


async def test_subscribe_takes_one_topic_a_pair_or_a_list(open_one, exp):
    messager, sender = await open_one(), await open_one()
    await messager.start_listening()
    await messager.subscribe(f"{exp}/a", "agent")
    await messager.subscribe((f"{exp}/b", 2), None)
    await messager.subscribe([f"{exp}/c", f"{exp}/d"], ["agent", "other"])
    await messager.subscribe((), None)
    for name in "eabcd":
        await sender.send_message(f"{exp}/{name}", {"n": 1})
    assert [item.topic.value[-1] for item in await fetch_all(messager, 4)] == [*"abcd"]


async def test_subscribe_matches_wildcards(open_one, exp, foreign):
    messager, sender = await open_one(f"{exp}/1/#", f"{exp}/+/x/y"), await open_one()
    for n, topic in enumerate([f"{exp}/1", f"{exp}/1/x", f"{exp}x", f"x/{exp}", f"{exp}/2/x/y", f"{exp}/2/x"]):
        await sender.send_message(topic, {"n": n})
        await foreign.publish(topic, b'{"n":%d}' % (10 + n), qos=1)
    assert sorted(numbers(await fetch_all(messager, 6))) == [0, 1, 4, 10, 11, 14]
    assert await messager.fetch_messages() == []


@pytest.mark.parametrize(
    "wanted",
    [
        *("a/#/b", "a+", "", "a\x00b", 7, None, ("a", 3), ("a", True), ("a",), ("a", 1, 2), ("a+b", 1)),
        *("exps:e:agents:1:agent-chat", "$share/g/a", {"a": 1}, b"a"),
    ],
    ids=repr,
)
async def test_subscribe_refuses_invalid_filters(open_one, wanted):
    messager = await open_one()
    with pytest.raises(InvalidAddress) as caught:
        await messager.subscribe([wanted], [1])
    assert caught.value.value is not None or wanted is None


async def test_subscribe_to_the_brokers_own_topics(open_one):
    messager = await open_one("$SYS/broker/version")
    (item,) = await fetch_all(messager, 1)
    assert item.topic.value == "$SYS/broker/version"
    with pytest.raises(InvalidAddress, match="the broker's own"):
        await messager.send_message("$SYS/broker/version", {})


async def test_receive_messages_can_run_as_a_task(open_one, exp):
    messager = await open_one()
    await messager.subscribe(f"{exp}/a", None)
    receiving = asyncio.create_task(messager.receive_messages())
    await asyncio.sleep(0)  # so that it begins
    await messager.send_message(f"{exp}/a", {"n": 1})
    assert numbers(await fetch_all(messager, 1)) == [1]
    assert not receiving.done()
    await messager.disconnect()
    assert await asyncio.wait_for(receiving, WAIT_S) is None


async def test_fetch_messages_returns_aiomqtts_messages(open_one, exp):
    topic = f"exps/{exp}/agents/b-1/agent-chat"
    messager, sender = await open_one(topic), await open_one()
    await sender.send_message(topic, {"text": "hé"}, "7")
    (item,) = await messager.fetch_messages(timeout=WAIT_S)
    assert isinstance(item, aiomqtt.Message)
    assert (item.topic.value, item.qos) == (topic, 2)
    assert item.topic.matches(f"exps/{exp}/+/+/agent-chat")
    assert item.payload == b'{"text":"h\xc3\xa9"}'
    copy = pickle.loads(pickle.dumps(item))  # as Ray passes it on
    assert (copy.topic.value, copy.payload) == (topic, item.payload)
    assert await messager.fetch_messages() == []


async def test_fetch_messages_before_listening_returns_nothing_and_warns_once(mosquitto_config, open_one, exp, caplog):
    for call in (lambda it: it.subscribe("a", None), lambda it: it.start_listening(), lambda it: it.receive_messages()):
        with pytest.raises(NotListening, match=r"connect\(\)"):
            await call(MqttMessager(mosquitto_config))
    messager = await open_one()
    assert await messager.fetch_messages() == []
    await messager.subscribe(f"{exp}/a", None)
    assert await messager.fetch_messages() == []
    await messager.send_message(f"{exp}/a", {"n": 1})
    await messager.start_listening()
    assert numbers(await fetch_all(messager, 1)) == [1]
    (told,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "start_listening()" in told.getMessage()


async def test_fetch_messages_after_stop_returns_what_had_come_and_ends_waiting(open_one, exp):
    messager, sender = await open_one(f"{exp}/#"), await open_one(f"{exp}/#")
    for n in range(5):
        await sender.send_message(f"{exp}/a", {"n": n})
    await fetch_all(sender, 5)  # so they have come to both
    await messager.ping()
    await messager.stop()
    assert numbers(await messager.fetch_messages(timeout=None)) == [*range(5)]
    assert await messager.fetch_messages(timeout=None) == []
    waiting = asyncio.create_task(sender.fetch_messages(timeout=None))
    await asyncio.sleep(0)  # so that it waits
    await sender.stop()
    assert await asyncio.wait_for(waiting, WAIT_S) == []


async def test_of_two_fetches_that_wait_for_ever_each_gets_a_message(open_one, exp):
    messager = await open_one(f"{exp}/a")
    fetching = [asyncio.create_task(messager.fetch_messages(timeout=None)) for _ in range(2)]
    await asyncio.sleep(0)  # so that they wait
    await messager.send_message(f"{exp}/a", {"n": 0})
    async with asyncio.timeout(WAIT_S):
        await asyncio.wait(fetching, return_when=asyncio.FIRST_COMPLETED)
        await messager.send_message(f"{exp}/a", {"n": 1})
        found = await asyncio.gather(*fetching)
    assert sorted(map(numbers, found)) == [[0], [1]]


async def test_a_subscribe_with_a_full_inbox_says_so(open_one, exp, mosquitto_config):
    config = mosquitto_config.model_copy(update={"timeout": 0.5})
    messager = await open_one(f"{exp}/a", config=config, settings=MessagingConfig(inbox_messages=1))
    await messager.send_message(f"{exp}/a", {"n": 0})
    await until(lambda: reads_nothing(messager))
    with pytest.raises(ConnectionFailed, match="inbox is full"):
        await messager.subscribe(f"{exp}/b", 1)
    assert numbers(await messager.fetch_messages(timeout=WAIT_S)) == [0]


async def test_a_full_inbox_leaves_the_rest_at_the_broker(open_one, exp):
    small = MessagingConfig(inbox_messages=10)
    messager, sender = await open_one(f"{exp}/a", settings=small), await open_one()
    await asyncio.gather(*(sender.send_message(f"{exp}/a", {"n": n}) for n in range(300)))
    found = await messager.fetch_messages(timeout=WAIT_S)
    assert len(found) < 100  # the limit, and what was under way
    async with asyncio.timeout(WAIT_S):
        while len(found) < 300:
            found += await messager.fetch_messages(timeout=WAIT_S)
            await messager.send_message(f"{exp}/b", {})  # sends go on meanwhile
    assert numbers(found) == [*range(300)]


async def test_send_message_asks_a_foreign_interceptor_as_agentsociety_does(open_one, exp):
    handle = Foreign()
    sender = await open_one(interceptor=handle)
    topic = f"exps/{exp}/agents/2/agent-chat"
    await sender.send_message(topic=topic, payload={"text": "hé"}, from_uuid="1", to_uuid="2")
    await sender.send_message(topic, {}, None, "2")  # the user is not asked about
    await sender.send_message(f"{exp}/plain", {}, "1", None)
    (asked,) = handle.calls
    assert asked[:2] == ("1", "2")
    assert json.loads(asked[2]) == {"text": "hé"}


class SlowCensor(rules.SlowRule):
    """Block, rewrite or pass, the first one last."""

    name = "slow_censor"

    def __init__(self):
        self.others = asyncio.Event()

    async def judge(self, message):
        if message.payload["n"] == 0:
            await self.others.wait()
        if message.payload["n"] == 2:
            self.others.set()
            return rules.block("two")
        return rules.rewrite({"n": 10}) if message.payload["n"] == 1 else rules.ALLOW


async def test_slow_rules_block_and_rewrite_and_the_order_stays(open_one, exp):
    messager = await open_one(f"{exp}/a")
    sender = await open_one(interceptor=interceptor_with(SlowCensor()))
    receipts = await asyncio.gather(*(sender.send_message(f"{exp}/a", {"n": n}, "7") for n in range(4)))
    assert [receipt.fate for receipt in receipts] == ["published", "published", "blocked", "published"]
    assert numbers(await fetch_all(messager, 3)) == [0, 10, 3]


@pytest.mark.parametrize(
    "topic",
    [
        *("a/+/b", "a/#", "", "$SYS/x", "a\x00", 7, "x" * 70_000, "exps:e:agents:1:chat", "exps/e/agents/1"),
        *("exps/e/agents//chat", "exps/a:b/agents/1/chat", "/" * 200),
    ],
    ids=lambda topic: repr(topic)[:30],
)
async def test_send_message_refuses_invalid_topics(open_one, topic):
    messager = await open_one()
    with pytest.raises(InvalidAddress) as caught:
        await messager.send_message(topic, {})
    assert caught.value.value == topic
    assert messager.get_log_list() == []


async def test_send_message_refuses_a_recipient_that_contradicts_the_topic(open_one, exp):
    messager = await open_one(interceptor=interceptor_with(rules.BlackList([(None, "a/b")])))
    with pytest.raises(InvalidAddress, match="contradicts") as caught:
        await messager.send_message(f"exps/{exp}/agents/1/agent-chat", {}, "a", "2")
    assert caught.value.value == "2"
    with pytest.raises(InvalidAddress, match="is a list"):
        await messager.send_message(f"exps/{exp}/agents/1/agent-chat", {}, [], "1")
    receipt = await messager.send_message(f"exps/{exp}/agents/a%2Fb/agent-chat", {}, "a")  # the agent a/b
    assert (receipt.fate, receipt.rule) == ("blocked", "black_list")


async def test_send_message_refuses_payloads_that_are_too_large_or_not_json(open_one, exp):
    messager = await open_one(f"{exp}/a", settings=MessagingConfig(payload_bytes=1000))
    with pytest.raises(PayloadTooLarge) as caught:
        await messager.send_message(f"{exp}/a", {"text": 1000 * "x"})
    assert caught.value.limit == 1000
    for payload in ("text", {"object": object()}):
        with pytest.raises(InvalidPayload):
            await messager.send_message(f"{exp}/a", payload)
    await messager.send_message(f"{exp}/a", Msg("ann", "hello", "user"))
    (item,) = await fetch_all(messager, 1)
    assert json.loads(item.payload)["content"] == "hello"


async def test_stop_twice_and_without_listening(open_one):
    messager = await open_one()
    await messager.stop()
    await messager.stop()
    assert not await messager.is_connected()
    never = MqttMessager("broker")
    await never.stop()
    assert never.get_log_list() == []


async def test_stop_waits_for_the_receipts_of_what_is_judged_or_published(open_one, exp):
    judged, go_on = asyncio.Event(), asyncio.Event()

    def slow(*_asked):
        judged.set()
        return go_on.wait()

    messager, sender = await open_one(f"{exp}/a"), await open_one(interceptor=Foreign(slow))
    sending = [
        asyncio.create_task(sender.send_message(f"{exp}/a", {"n": n}, from_uuid=1, to_uuid=2)) for n in range(100)
    ]
    await judged.wait()
    stopping = asyncio.create_task(sender.stop())
    go_on.set()
    await stopping
    assert all(receipt.sent for receipt in await asyncio.gather(*sending))
    assert numbers(await fetch_all(messager, 100)) == [*range(100)]


async def test_a_send_that_races_with_a_disconnect_ends(open_one, exp):
    messager = await open_one()

    async def send_on():
        while True:
            await messager.send_message(f"{exp}/a", {})

    sending = asyncio.create_task(send_on())
    await asyncio.sleep(0.1)
    await messager.disconnect()
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(Closed):
            await sending


def test_without_the_extra_its_name_is_said():
    code = "import sys; sys.modules['paho'] = None; import ray_messaging.compat.mqtt"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'ray-messaging[mqtt]'" in told.stderr.splitlines()[-1]


def test_a_subclass_may_be_abstract():
    class Mine(MqttMessager, ABC):
        @abstractmethod
        def more(self): ...

    with pytest.raises(TypeError, match="more"):
        Mine("broker")


# -- sessions, and plain MQTT clients beside us ---------------------------------------------------------------------


async def test_messages_wait_at_the_broker_for_a_name(open_one, exp, foreign):
    name, topic = f"group-{exp}", f"exps/{exp}/agents/1/user-chat"
    first = await open_one(topic, name=name)
    await foreign.publish(topic, b'{"n":0}', qos=1)
    assert numbers(await fetch_all(first, 1)) == [0]
    await first.stop()
    for n in range(1, 4):
        await foreign.publish(topic, b'{"n":%d}' % n, qos=1)
    second = await open_one(topic, name=name)
    assert numbers(await fetch_all(second, 3)) == [1, 2, 3]


class EndingBroker(asyncio.Protocol):
    """A broker that accepts all, until it tells all clients that their sessions were taken over."""

    def __init__(self, clients, *, accepts=True):
        self.clients, self.accepts = clients, accepts

    def connection_made(self, transport):
        self.transport = transport
        self.clients.append(self)

    def data_received(self, data):
        if data[0] >> 4 == 1 and self.accepts:  # CONNECT
            self.transport.write(b"\x20\x03\x00\x00\x00")
        elif data[0] >> 4 == 1:
            self.end()

    def end(self):
        self.transport.write(b"\xe0\x02\x8e\x00")
        self.transport.close()


async def test_a_name_that_another_client_takes_over_is_lost_for_good():
    clients = []
    broker = await asyncio.get_running_loop().create_server(lambda: EndingBroker(clients), "127.0.0.1", 0)
    port = broker.sockets[0].getsockname()[1]
    async with broker, MqttMessager("127.0.0.1", port, name="ann") as messager, asyncio.timeout(WAIT_S):
        await messager.start_listening()
        waiting = asyncio.create_task(messager.fetch_messages(timeout=None))
        receiving = asyncio.create_task(messager.receive_messages())
        await asyncio.sleep(0)
        for client in clients:
            client.end()
        with pytest.raises(Fenced, match=r"'mqtt-ann-in'.*its own name"):
            await waiting
        with pytest.raises(Fenced):
            await receiving
        with pytest.raises(Fenced, match="'mqtt-ann-out'"):
            await messager.send_message("a/b", {})
        with pytest.raises(Fenced):
            await messager.fetch_messages()
        assert len(clients) == 2  # it has not come back


async def test_a_name_that_is_taken_over_while_it_connects():
    make = partial(EndingBroker, [], accepts=False)
    broker = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    async with broker, asyncio.timeout(WAIT_S):
        with pytest.raises(Fenced, match="'mqtt-ann-out'"):
            await MqttMessager("127.0.0.1", broker.sockets[0].getsockname()[1], name="ann").connect()


async def test_a_session_that_the_broker_has_lost_is_told(mosquittos, open_one, exp, caplog):
    broker = mosquittos(durable=False)
    messager = await open_one(f"a/{exp}", config=broker.config)
    broker.stop()
    broker.start()
    async with asyncio.timeout(WAIT_S):
        while not await messager.fetch_messages(timeout=0.1):  # until it has subscribed again
            await messager.send_message(f"a/{exp}", {})
    assert re.search(r"has lost the session of '[\w-]+-in'", caplog.text)


async def test_plain_clients_reach_us_and_hear_us(open_one, exp, foreign):
    messager = await open_one(f"exps/{exp}/agents/+/user-chat")
    await foreign.subscribe(f"exps/{exp}/#", qos=1)
    bodies = [b'{"n": 0}', b"no json", b"", b"\xff\x00"]
    for n, data in enumerate(bodies):
        await foreign.publish(f"exps/{exp}/agents/{n}/user-chat", data, qos=n % 3)
        assert (await next_of(foreign)).payload == data
    assert sorted(item.payload for item in await fetch_all(messager, 4)) == sorted(bodies)
    await messager.send_message(f"exps/{exp}/agents/1/agent-chat", {"text": "hi"}, "2")
    message = await next_of(foreign)
    assert (message.topic.value, message.payload) == (f"exps/{exp}/agents/1/agent-chat", b'{"text":"hi"}')


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
            await asyncio.sleep(0)

    dispatching = asyncio.create_task(dispatch())
    for subtopic in ("user-chat", "user-survey"):
        await user.send_message(f"exps/{exp}/agents/7/{subtopic}", {"from": "none"})
    assert [json.loads(item.payload) for item in await fetch_all(user, 2)] == [{"count": 1}, {"count": 1}]
    await ours.stop()
    await asyncio.wait_for(dispatching, WAIT_S)
    assert seen == [("7", "user-chat", {"from": "none"}), ("7", "user-survey", {"from": "none"})]


async def test_a_broker_is_no_server_of_our_messager(exp):
    for broker in (MqttConfig(server="broker"), "mqtt://broker"):
        with pytest.raises(ConfigError, match=r"an MQTT broker cannot be the server.*compat\.mqtt\.Messager"):
            Messager(broker, exp)
        with pytest.raises(ConfigError, match=r"an MQTT broker cannot be the server.*compat\.mqtt\.Messager"):
            Messaging.start(exp, redis=broker)
