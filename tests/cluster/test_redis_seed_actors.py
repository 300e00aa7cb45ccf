"""AgentSociety's pattern: groups as Ray actors, each with its Messager, and an interceptor beside them."""

import asyncio
import json
import uuid

import pytest
import ray
from support.cluster import PATIENCE_S, wait_for

from ray_messaging import Messager, RedisConfig


@ray.remote(num_cpus=0)
class Interceptor:
    """Answer `forward`, and nothing else."""

    def __init__(self, black_set):
        self.black_set = black_set
        self.asked = []

    async def forward(self, from_id, to_id, msg):
        self.asked.append((from_id, to_id, msg))
        return (from_id, to_id) not in self.black_set and "rude" not in json.loads(msg)["content"]


@ray.remote(num_cpus=0)
class AgentGroup:
    """A group of agents that answer messages, written as AgentSociety's users do."""

    def __init__(self, config, exp_id, agents, message_interceptor=None):
        self._config, self._exp_id, self._interceptor = config, exp_id, message_interceptor
        self._heard = {agent: [] for agent in agents}
        self._messager = None
        self._dispatch = None

    async def init(self):
        self._messager = Messager(self._config, self._exp_id)
        await self._messager.init()
        if self._interceptor is not None:
            self._messager.set_message_interceptor(self._interceptor)
        channels = [f"exps:{self._exp_id}:agents:{agent}:*" for agent in self._heard]
        await self._messager.subscribe_and_start_listening(channels)
        self._dispatch = asyncio.create_task(self._message_dispatch())

    async def _message_dispatch(self):
        while True:
            messages = await self._messager.fetch_messages()
            for message in messages:
                channel = message["channel"].decode("utf-8")
                payload = json.loads(message["data"].decode("utf-8"))
                _, _, _, agent_id, topic_type = channel.strip(":").split(":")
                await self._handle(int(agent_id), topic_type, payload)
            await asyncio.sleep(0.02)

    async def _handle(self, agent, topic_type, payload):
        self._heard[agent].append((topic_type, payload["content"]))
        if topic_type == "agent-chat" and payload["content"] == "hello":
            await self.say(agent, payload["from"], "hello yourself")

    async def say(self, from_id, to_id, content):
        channel = self._messager.get_subtopic_channel(to_id, "agent-chat")
        await self._messager.send_message(channel, {"from": from_id, "content": content}, from_id, to_id)

    async def heard(self):
        return self._heard

    async def step(self):
        redis_log = self._messager.get_log_list()
        self._messager.clear_log_list()
        return redis_log

    async def has_interceptor(self, interceptor):
        return self._messager.message_interceptor == interceptor

    async def close(self):
        self._dispatch.cancel()
        await asyncio.gather(self._dispatch, return_exceptions=True)
        await self._messager.close()
        await self._messager.close()


@pytest.fixture(scope="module")
def society(ray_cluster, valkey_config):
    """Start two groups of three agents and an interceptor; agent 1 may not write to agent 4."""
    exp_id = f"seed-{uuid.uuid4().hex[:8]}"
    interceptor = Interceptor.remote({(1, 4)})
    config = RedisConfig(**valkey_config.model_dump())
    groups = [AgentGroup.remote(config, exp_id, agents, interceptor) for agents in (range(3), range(3, 6))]
    ray.get([group.init.remote() for group in groups], timeout=PATIENCE_S)
    yield exp_id, groups, interceptor
    ray.get([group.close.remote() for group in groups], timeout=PATIENCE_S)
    for actor in (*groups, interceptor):
        ray.kill(actor)


def call(actor, method, *args):
    return ray.get(getattr(actor, method).remote(*args), timeout=PATIENCE_S)


def heard(group, agent, text):
    return wait_for(lambda: [each for each in call(group, "heard")[agent] if each[1] == text], text)


def test_agents_of_two_actors_talk_and_answer(society):
    _, (west, east), interceptor = society
    call(west, "say", 0, 3, "hello")
    assert heard(east, 3, "hello") == [("agent-chat", "hello")]
    assert heard(west, 0, "hello yourself") == [("agent-chat", "hello yourself")]
    asked = call(interceptor, "__ray_call__", lambda self: self.asked)
    pairs = [(from_id, to_id, json.loads(msg)["content"]) for from_id, to_id, msg in asked]
    assert [pair for pair in pairs if "hello" in pair[2]] == [(0, 3, "hello"), (3, 0, "hello yourself")]


def test_a_foreign_interceptor_blocks_and_passes(society):
    _, (west, east), interceptor = society
    call(west, "step")
    for from_id, to_id, content in ((1, 4, "hi"), (1, 5, "hi there"), (2, 4, "how rude")):
        call(west, "say", from_id, to_id, content)
    assert heard(east, 5, "hi there")
    rows = call(west, "step")
    assert [(row["from_id"], row["to_id"], row["sent"]) for row in rows] == [(1, 4, False), (1, 5, True), (2, 4, False)]
    assert [row["payload"]["content"] for row in rows] == ["hi", "hi there", "how rude"]
    assert "agent-chat" not in dict(call(east, "heard")[4])
    assert call(west, "step") == []
    assert call(west, "has_interceptor", interceptor)
