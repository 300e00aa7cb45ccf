"""The messager on MQTT as a Ray actor, as AgentSociety runs it, and in a running experiment."""

import asyncio
import json
import logging
import uuid

import aiomqtt
import pytest
import ray
from support.cluster import PATIENCE_S, wait_for

from ray_messaging import ConfigError, InvalidAddress, Messager, Outgoing, UnknownName
from ray_messaging.mqtt import Messager as MqttMessager


@pytest.fixture
def exp():
    """Return an experiment name for topics only: the broker and its topics are shared."""
    return f"exp-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def broker(mosquitto_config):
    """Give the broker's address as AgentSociety's arguments."""
    return {"hostname": mosquitto_config.server, "port": mosquitto_config.port}


@pytest.fixture
def start(ray_cluster, broker):
    """Start messagers as actors, which takes a second unless they start at once; at the end they stop."""
    started = []

    def start(make=MqttMessager.remote, **options):
        started.append(make(**broker, **options))
        return started[-1]

    yield start
    ask([actor.stop.remote() for actor in started])
    for actor in started:
        ray.kill(actor)


def ask(ref):
    return ray.get(ref, timeout=PATIENCE_S)


def fetch_all(actor, count):
    found = []
    wait_for(lambda: found.extend(ask(actor.fetch_messages.remote(timeout=1.0))) or len(found) >= count, "all messages")
    return found


@pytest.fixture
def interceptor(ray_cluster):
    """Start an actor that answers as AgentSociety's interceptor does, and records its questions."""

    @ray.remote(num_cpus=0)
    class Interceptor:
        def __init__(self):
            self.asked = []

        async def forward(self, from_uuid, to_uuid, msg):
            self.asked.append((from_uuid, to_uuid, msg))
            return json.loads(msg).get("text") != "bad"

        async def questions(self):
            return self.asked

    handle = Interceptor.remote()
    yield handle
    ray.kill(handle)


def test_an_actor_is_used_as_agentsociety_uses_it(start, exp, monkeypatch):
    """Start a messager for a group and one for the user; both poll."""
    warnings = []
    monkeypatch.setattr("ray.actor.logger.warning", warnings.append)
    group, user = start(), start(ray.remote(MqttMessager).remote)
    assert not warnings
    ask(group.connect.remote())
    assert ask(group.is_connected.remote()) is True
    ask(group.start_listening.remote())
    agents = [uuid.uuid4().hex for _ in range(3)]
    ask(group.subscribe.remote([(f"exps/{exp}/agents/{agent}/#", 1) for agent in agents], agents))
    ask(group.ping.remote())
    ask(user.connect.remote())
    ask(user.subscribe.remote([(f"exps/{exp}/user_payback", 1)], [exp]))
    ask(user.start_listening.remote())
    for agent in agents:
        receipt = ask(user.send_message.remote(f"exps/{exp}/agents/{agent}/user-survey", {"for": agent}))
        assert receipt.fate == "delivered"
    for message in fetch_all(group, 3):
        payload = json.loads(message.payload.decode("utf-8"))
        _, _, _, agent_uuid, topic_type = message.topic.value.strip("/").split("/")
        assert (agent_uuid, topic_type) == (payload["for"], "user-survey")
        ask(group.send_message.remote(f"exps/{exp}/user_payback", {"count": 1}))
    ask(group.send_message.remote(f"exps/{exp}/agents/{agents[0]}/agent-chat", {"n": 1}, agents[1], agents[0]))
    assert len(fetch_all(user, 3)) == 3
    rows = ask(group.get_log_list.remote())
    assert [(row["topic"].rpartition("/")[2], row["from_uuid"], row["to_uuid"]) for row in rows] == [
        *[("user_payback", None, None)] * 3,
        ("agent-chat", agents[1], agents[0]),
    ]
    ask(group.clear_log_list.remote())
    assert ask(group.get_log_list.remote()) == []
    ask(group.stop.remote())
    assert ask(group.is_connected.remote()) is False


async def test_a_foreign_interceptor_on_ray_is_asked_as_by_agentsociety(broker, exp, interceptor):
    topic = f"exps/{exp}/agents/b/agent-chat"
    async with MqttMessager(**broker, message_interceptor=interceptor) as sender:
        assert (await sender.send_message(topic, {"text": "good"}, "a", "b")).fate == "undeliverable"
        assert (await sender.send_message(topic, {"text": "bad"}, "a", "b")).fate == "blocked"
        sender.set_message_interceptor(None)
        assert (await sender.send_message(topic, {"text": "bad"}, "a", "b")).fate == "undeliverable"
        sender.set_message_interceptor(interceptor)
        assert (await sender.send_message(topic, {"text": "bad"}, "7", "b")).fate == "blocked"
    asked = await interceptor.questions.remote()
    assert [(sender, recipient) for sender, recipient, _ in asked] == [("a", "b"), ("a", "b"), ("7", "b")]
    assert [json.loads(msg)["text"] for _, _, msg in asked] == ["good", "bad", "bad"]


async def test_the_interceptor_of_an_experiment_judges_without_exp_id(logged, broker, exp):
    messaging, *_ = logged
    async with MqttMessager(**broker, message_interceptor=messaging.interceptor) as sender:
        receipt = await sender.send_message(f"exps/{exp}/agents/1/agent-chat", {}, "0")
        assert (receipt.fate, receipt.rule) == ("blocked", "black_list")
        assert (await sender.send_message(f"exps/{exp}/agents/1/agent-chat", {}, "1")).fate == "undeliverable"
        assert sender.stats()["interceptor"] == "lane"


async def test_a_joined_experiment_judges_and_logs(logged, broker):
    messaging, *_ = logged
    exp_id = messaging.exp_id
    west, east = (f"exps/{exp_id}/agents/{agent}/agent-chat" for agent in (70, 80))
    async with (
        MqttMessager(**broker, exp_id=exp_id) as sender,
        MqttMessager(**broker, exp_id=exp_id) as receiver,
        aiomqtt.Client(**broker) as foreign,
    ):
        await foreign.subscribe(f"exps/{exp_id}/user_payback", qos=1)
        assert repr(sender.message_interceptor) == repr(messaging.interceptor)  # which says the actor's id
        await receiver.subscribe([(f"exps/{exp_id}/agents/80/#", 1)], [80])
        await receiver.start_listening()
        receipts = [
            await sender.send_message(east, {"n": 1}, "70", "80"),
            await sender.send_message(east, {"n": 2}, "0"),
            await sender.send_message(west, {"n": 3}, "80"),
            *await sender.send_messages([Outgoing.to_agent(80, {"n": 4}, 70), Outgoing(f"exps/{exp_id}/said", {})]),
            await sender.send_message(f"exps/{exp_id}/user_payback", {"count": 1}, 70),
        ]
        fates = ["delivered", "blocked", "undeliverable", "delivered", "undeliverable", "published"]
        assert [receipt.fate for receipt in receipts] == fates
        async with asyncio.timeout(PATIENCE_S):
            found = [*await receiver.fetch_messages(timeout=None)]
            while len(found) < 2:
                found += await receiver.fetch_messages(timeout=None)
        assert [(item.topic.value, item.from_uuid, item.message.payload) for item in found] == [
            (east, "70", {"n": 1}),
            (east, "70", {"n": 4}),
        ]
        assert found[0].message.channel == f"exps:{exp_id}:agents:80:agent-chat"
        with pytest.raises(InvalidAddress, match="other") as caught:
            await sender.send_message("exps/other/agents/1/agent-chat", {})
        assert caught.value.value == "exps/other/agents/1/agent-chat"
        with pytest.raises(InvalidAddress, match="other"):
            await receiver.subscribe("exps/other/agents/+/agent-chat", None)
        for receipt in receipts:
            row = await asyncio.to_thread(logged_row, messaging, receipt.message_id)
            assert (row["fate"], row["rule"]) == (receipt.fate, receipt.rule)
    assert messaging.log.balance().sends >= len(receipts)


def logged_row(messaging, message_id):
    """Wait until the event log has a message; return its row."""

    def look():
        return [row for row in messaging.log.query().to_pylist() if row["message_id"] == message_id]

    found = wait_for(look, "the message in the log")
    assert len(found) == 1
    return found[0]


async def test_an_actor_can_join_an_experiment(start, logged, broker, exp):
    messaging, *_ = logged
    topic = f"exps/{messaging.exp_id}/agents/90/agent-chat"

    class Heard(MqttMessager):
        """Keep Ray's warnings in this process."""

        def __init__(self, **options):
            super().__init__(**options)
            self.warnings = []
            handler = logging.Handler(logging.WARNING)
            handler.emit = lambda record: self.warnings.append(record.getMessage())
            logging.getLogger("ray._private.worker").addHandler(handler)

        async def heard(self):
            return self.warnings

    made = start(Heard.options(num_cpus=0, name=f"messager-{exp}").remote, exp_id=messaging.exp_id)
    sender = ray.get_actor(f"messager-{exp}")
    assert sender == made
    await sender.connect.remote()
    assert await sender.heard.remote() == []  # of a blocking call in an async actor
    async with MqttMessager(**broker, exp_id=messaging.exp_id) as receiver:
        await receiver.subscribe(topic, 90)
        await receiver.start_listening()
        assert (await sender.send_message.remote(topic, {}, "0", "90")).fate == "blocked"
        receipt = await sender.send_message.remote(topic, {}, "91", "90")
        assert receipt.fate == "delivered"
        (item,) = await receiver.fetch_messages(timeout=PATIENCE_S)
        assert item.message.id == receipt.message_id
    assert (await asyncio.to_thread(logged_row, messaging, receipt.message_id))["fate"] == "delivered"


async def test_an_own_interceptor_works_in_an_experiment_without_a_log(messaging, broker, interceptor):
    topic = f"exps/{messaging.exp_id}/agents/b/agent-chat"
    async with MqttMessager(**broker, message_interceptor=interceptor, exp_id=messaging.exp_id) as sender:
        assert (await sender.send_message(topic, {"text": "bad"}, "a")).fate == "blocked"
        sender.set_message_interceptor(None)  # the experiment's
        assert (await sender.send_message(topic, {"text": "bad"}, "a")).fate == "undeliverable"
        assert sender.message_interceptor is not None


async def test_joining_an_unknown_experiment_raises(ray_cluster, broker, monkeypatch):
    with pytest.raises(UnknownName, match="nobody"):
        await MqttMessager(**broker, exp_id="nobody").connect()
    with pytest.raises(InvalidAddress):
        MqttMessager(**broker, exp_id="no:body")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ConfigError, match=r"ray\.init"):
        await MqttMessager(**broker, exp_id="nobody").connect()


async def test_a_messager_on_mqtt_does_not_fence_a_group_of_its_name(logged, broker):
    """Join with the name of a group: the log notes must not fence the group's own sends."""
    messaging, west, _ = logged
    async with MqttMessager(**broker, exp_id=messaging.exp_id, name="west") as sender:
        assert (await sender.send_message(f"exps/{messaging.exp_id}/agents/99/agent-chat", {}, 1)).fate
        receipt = await asyncio.to_thread(west.send, 1, 2, {})
        assert receipt.fate == "delivered"
        async with Messager(messaging.redis, messaging.exp_id, messaging.interceptor) as other:
            assert (await other.send_message(other.get_agent_chat_channel(3), {}, 1)).fate == "delivered"
