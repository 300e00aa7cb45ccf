"""AgentSociety's Messager beside ours: messages both ways, its interceptor asked by both, and how fast each is."""

import asyncio
import json
import time
import uuid
from contextlib import asynccontextmanager
from statistics import median

import ray
import redis.asyncio as aioredis
from agentsociety import message as seed
from agentsociety.llm import LLMConfig
from ray.util.queue import Queue

import ray_messaging

WAIT_S = 30.0
KINDS = {"theirs": (seed.Messager, seed.RedisConfig), "ours": (ray_messaging.Messager, ray_messaging.RedisConfig)}
MESSAGES = 50
RATE_AGENTS, RATE_MESSAGES, RATE_RUNS = 200, 2000, 3
LLM = LLMConfig(provider="vllm", base_url="http://127.0.0.1:9/v1", api_key="none", model="none")


async def until(condition, what):
    """Wait until an async condition holds, and return it."""
    deadline = time.monotonic() + WAIT_S
    while not (found := await condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {WAIT_S:g} s")
        await asyncio.sleep(0.02)
    return found


@asynccontextmanager
async def messager_of(kind, server, exp_id, channels=()):
    """Open a Messager of either kind, as AgentSociety does."""
    messager_class, config_class = KINDS[kind]
    messager = messager_class(config_class(**server), exp_id)
    await messager.init()
    if channels:
        await messager.subscribe_and_start_listening(list(channels))
        await subscribed(server, exp_id, channels)
    yield messager
    await messager.close()
    await messager.close()


async def subscribed(server, exp_id, channels):
    """Wait until each channel has a listener: AgentSociety's subscribes in the background."""
    async with aioredis.Redis(host=server["server"], port=server["port"], password=server["password"]) as client:

        async def all_there():
            patterns = await client.pubsub_numpat()
            exact = sum(count for _, count in await client.pubsub_numsub(*channels))
            return patterns + exact >= len(channels)

        await until(all_there, f"the subscriptions of {exp_id}")


async def poll(messager, count):
    """Fetch as AgentSociety's loops do."""
    found = []

    async def enough():
        messages = await messager.fetch_messages()
        found.extend((each["channel"].decode("utf-8"), json.loads(each["data"].decode("utf-8"))) for each in messages)
        return len(found) >= count

    await until(enough, f"{count} messages, {len(found)} came")
    return found


async def talk(server, sender_kind, receiver_kind):
    """Send 50 messages to each kind of channel, from one Messager to the other; return count and correctness."""
    exp_id = f"talk-{uuid.uuid4().hex[:8]}"
    names = ray_messaging.Messager(ray_messaging.RedisConfig(**server), exp_id)
    channels = {
        "agent-chat": names.get_agent_chat_channel(7),
        "user-chat": names.get_user_chat_channel(7),
        "user-survey": names.get_user_survey_channel(7),
        "user-payback": names.get_user_payback_channel(),
    }
    answer = {}
    async with (
        messager_of(receiver_kind, server, exp_id, channels.values()) as receiver,
        messager_of(sender_kind, server, exp_id) as sender,
    ):
        for kind, channel in channels.items():
            sent = [{"n": n, "content": f"héllo {n}\n", "list": [None, 1.5, True]} for n in range(MESSAGES)]
            for payload in sent:
                await sender.send_message(channel, payload, 3, 7 if kind == "agent-chat" else None)
            answer[kind] = [MESSAGES, await poll(receiver, MESSAGES) == [(channel, payload) for payload in sent]]
        keys = ["channel", "payload", "from_id", "to_id", "start_time", "consumption", "sent"]
        rows = sender.get_log_list()
        answer["log rows"] = [len(rows), all(list(row)[:7] == keys and row["sent"] for row in rows)]
        sender.clear_log_list()
        answer["log cleared"] = [1, sender.get_log_list() == []]
    return answer


class NoRudeness(seed.MessageBlockBase):
    """Refuse one word; read the text as AgentSociety's own blocks do."""

    async def forward(self, llm, from_id, to_id, msg, violation_counts, black_set):  # noqa: ARG002 - AgentSociety's
        """Judge a message."""
        if (from_id, to_id) in black_set or "rude" in json.loads(msg)["content"]:
            return False, f"refused {from_id} {to_id}"
        return True, ""


async def intercept(server):
    """Have AgentSociety's MessageInterceptor judge for either kind of Messager; return the verdicts of each."""
    queue = Queue(actor_options={"num_cpus": 0})
    options = {"blocks": [NoRudeness("manners")], "llm_config": [LLM], "queue": queue, "black_set": {(3, 8)}}
    interceptor = seed.MessageInterceptor.options(num_cpus=0).remote(**options)
    await interceptor.init.remote()
    cases = [(3, 7, "hello"), (3, 7, "rude"), (3, 8, "hello"), (4, 8, "hello"), (None, 7, "rude"), (3, None, "rude")]
    told = {}
    for kind in KINDS:
        exp_id = f"intercept-{uuid.uuid4().hex[:8]}"
        async with messager_of(kind, server, exp_id) as messager:
            channels = ["news", *map(messager.get_agent_chat_channel, (7, 8))]
            async with messager_of("ours", server, exp_id, channels):
                messager.set_message_interceptor(interceptor)
                assert messager.message_interceptor is interceptor
                for from_id, to_id, content in cases:
                    channel = "news" if to_id is None else messager.get_agent_chat_channel(to_id)
                    await messager.send_message(channel, {"content": content}, from_id, to_id)
                refused = [await queue.get_async(timeout=WAIT_S) for _ in range(2)]
                told[kind] = [[row["sent"] for row in messager.get_log_list()], refused]
    ray.kill(interceptor)
    queue.shutdown(force=True)
    return told


async def rate(server, kind):
    """Send 2,000 messages at once to agents that listen by a pattern each; return messages a second, received."""
    found = []
    for _ in range(RATE_RUNS):
        exp_id = f"rate-{uuid.uuid4().hex[:8]}"
        patterns = [f"exps:{exp_id}:agents:{agent}:*" for agent in range(RATE_AGENTS)]
        async with (
            messager_of(kind, server, exp_id, patterns) as receiver,
            messager_of(kind, server, exp_id) as sender,
        ):
            channels = [sender.get_agent_chat_channel(n % RATE_AGENTS) for n in range(RATE_MESSAGES)]
            began = time.perf_counter()
            sends = [sender.send_message(channel, {"content": "hello", "n": n}) for n, channel in enumerate(channels)]
            await asyncio.gather(poll(receiver, RATE_MESSAGES), *sends)
            found.append(RATE_MESSAGES / (time.perf_counter() - began))
    return round(median(found))
