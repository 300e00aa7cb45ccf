"""AgentScope's bus on an experiment: its rules judge what passes, its log has it, and a bus is killed in the middle."""

import asyncio
import subprocess
import sys
from collections import Counter

import pytest

pytest.importorskip("agentscope.app.message_bus", reason="AgentScope is not here: pip install --group agentscope")

from ray_messaging import Messaging, rules
from ray_messaging.compat.agentscope import ItemBlocked, RayMessageBus
from ray_messaging.errors import InvalidPayload

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("by_value")]


class Manners(rules.Rule):
    needs_payload = True

    def check(self, message):
        if message.payload.get("say") == "shout":
            return rules.rewrite({"say": "whisper"}, "hushed")
        return rules.block("rude") if message.payload.get("say") == "insult" else rules.ALLOW


class Judge(rules.SlowRule):
    needs_payload = True

    async def judge(self, message):
        await asyncio.sleep(0.05)
        return rules.block("slowly found rude") if message.payload.get("say") == "hint" else rules.ALLOW


@pytest.fixture
def experiment(ray_cluster, tmp_path, exp_id):
    with Messaging.start(exp_id, rules=[Manners(), Judge()], log_dir=tmp_path / "log") as messaging:
        yield messaging


async def test_rules_block_and_rewrite_and_the_log_has_all(experiment):
    async with RayMessageBus(experiment) as one, RayMessageBus(experiment) as other:
        ready = asyncio.Event()
        news = other.subscribe("news", on_ready=ready.set)
        heard = asyncio.create_task(anext(news))
        await ready.wait()
        pushed = [await one.queue_push("work", {"say": text}, ttl_secs=60) for text in ("hello", "shout")]
        for text in ("insult", "hint"):
            with pytest.raises(ItemBlocked, match=r"blocked an item for 'work': .*rude") as blocked:
                await one.queue_push("work", {"say": text})
            assert (blocked.value.key, blocked.value.rule) == ("work", "manners" if text == "insult" else "judge")
        assert await other.queue_drain("work") == [*zip(pushed, [{"say": "hello"}, {"say": "whisper"}], strict=True)]
        entries = [await one.log_append("diary", {"n": n}, max_len=2) for n in range(4)]
        assert await other.log_read("diary") == [(entries[n], {"n": n}) for n in (2, 3)]
        await one.publish("news", {"say": "shout"})
        assert await heard == {"say": "whisper"}
        await news.aclose()
        with pytest.raises(ItemBlocked, match="'news'"):
            await one.publish("news", {"say": "insult"})
        good, bad = await asyncio.gather(
            *(one.queue_push("work", {"n": n}) for n in (1, object())), return_exceptions=True
        )
        assert isinstance(bad, InvalidPayload)
        assert await other.queue_drain("work") == [(good, {"n": 1})]
        assert await one.queue_push_all("work", []) == []
        async with RayMessageBus(experiment, "other") as apart:
            assert await apart.queue_drain("work") == []
    found = experiment.log.query().to_pandas()
    assert Counter(found.to_id) == {"agentscope/queue/work": 5, "agentscope/log/diary": 4, "agentscope/topic/news": 2}
    assert Counter(found.fate) == {"delivered": 7, "published": 1, "blocked": 3}
    assert not experiment.log.balance().fates["undeliverable"]


async def test_any_agent_can_write_to_a_queue(experiment):
    async with RayMessageBus(experiment) as bus:
        messager = await experiment.open_messager("town", ["ann"])
        async with messager:
            receipt = await messager.send("ann", "agentscope/queue/team:1", {"say": "hello"}, subtopic="a,b")
        assert receipt.fate == "delivered"
        assert await drained(bus, "team:1", 1) == [{"say": "hello"}]


VICTIM = """
import asyncio, sys
from ray_messaging import Messaging
from ray_messaging.compat.agentscope import RayMessageBus

async def push(bus, who):
    for n in range(1_000_000):
        await bus.queue_push("work", {"who": who, "n": n})
        print(who, n, flush=True)

async def main(messaging):
    async with RayMessageBus(messaging) as bus:
        await asyncio.gather(*(push(bus, f"{sys.argv[2]}.{each}") for each in range(20)))

asyncio.run(main(Messaging.connect(sys.argv[1])))
"""


async def drained(bus, key, count):
    """Drain a queue until as many items have come as are wanted."""
    found = []
    async with asyncio.timeout(60):
        while len(found) < count:
            found += [item for _, item in await bus.queue_drain(key)]
    return found


async def test_a_bus_is_killed_while_it_pushes(experiment):
    pushers = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", VICTIM, experiment.exp_id, str(n), stdout=subprocess.PIPE
        )
        for n in range(2)
    ]
    told = [await pusher.stdout.readline() for pusher in pushers for _ in range(2000)]
    for pusher in pushers:
        pusher.kill()
    told += [line for pusher in pushers for line in (await pusher.stdout.read()).splitlines()[:-1]]
    async with RayMessageBus(experiment) as bus:
        logged = experiment.log.query().to_pandas()
        found = await drained(bus, "work", len(logged))
        assert await bus.queue_drain("work") == []
    by_pusher = {}
    for item in found:
        by_pusher.setdefault(item["who"], []).append(item["n"])
    assert len(by_pusher) == 40
    assert all(numbers == [*range(len(numbers))] for numbers in by_pusher.values())  # in order, none twice
    assert all(int(n) < len(by_pusher[who]) for who, n in (line.decode().split() for line in told))  # none lost
