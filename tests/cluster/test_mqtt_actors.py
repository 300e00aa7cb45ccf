"""AgentSociety's Messager on MQTT as a Ray actor, as AgentSociety runs it, and with an experiment's interceptor."""

import json
import uuid

import pytest
import ray
from support.cluster import PATIENCE_S, wait_for

from ray_messaging.compat.mqtt import Messager as MqttMessager


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
    """Start messagers as actors; at the end they stop."""
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
        assert receipt.fate == "published"
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


async def test_the_interceptor_of_an_experiment_judges(logged, broker, exp):
    messaging, *_ = logged
    async with MqttMessager(**broker, message_interceptor=messaging.interceptor) as sender:
        receipt = await sender.send_message(f"exps/{exp}/agents/1/agent-chat", {}, "0")
        assert (receipt.fate, receipt.rule) == ("blocked", "black_list")
        assert (await sender.send_message(f"exps/{exp}/agents/1/agent-chat", {}, "1")).fate == "published"
