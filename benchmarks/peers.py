"""What people use today: a Ray queue per group, or one Ray call to an interceptor and one PUBLISH per message."""

import asyncio
import json
import time
from typing import Any

import ray
import redis.asyncio as aioredis
from ray.util import get_node_ip_address
from ray.util.queue import Queue

from benchmarks.work import SUBTOPICS, Half, payload
from ray_messaging import RedisConfig
from ray_messaging.cluster.server import EmbeddedServer

BATCH = 1000


@ray.remote(num_cpus=0)
class QueueHalf(Half):
    """Send by ray.util.queue: one awaited put per message, or batches of 1,000; nothing is filtered or kept."""

    async def __init__(self, mine: Queue, theirs: Queue, agents: range, others: range) -> None:  # type: ignore[misc]
        super().__init__(agents, others)
        self.mine, self.theirs = mine, theirs
        self.counting = asyncio.create_task(self._count())

    async def _count(self) -> None:
        while True:
            batch = [await self.mine.get_async()]
            waiting = await self.mine.actor.qsize.remote()  # nobody else takes them, so they are there
            if waiting:
                batch += await self.mine.actor.get_nowait_batch.remote(min(BATCH, waiting))
            for each in batch if len(batch) == 1 else ():
                self.arrivals.time(json.loads(each)["content"])
            self.arrivals.add(len(batch))

    async def send(self, from_id: int, to_id: int, content: dict[str, Any]) -> bool:
        """Put one message."""
        await self.theirs.put_async(json.dumps({"from": from_id, "to": to_id, "content": content}))
        return True

    async def bulk(self, seconds: float) -> int:
        """Put batches of 1,000."""
        sent, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            batch = [json.dumps({"from": 0, "to": 1, "content": payload(number)}) for number in range(BATCH)]
            await self.theirs.actor.put_nowait_batch.remote(batch)
            sent += BATCH
        return sent


class QueuePeer:
    """Start two queues and two halves."""

    name = "ray.util.queue"

    def __init__(self, agents: int) -> None:
        self._queues = [Queue(actor_options={"num_cpus": 0}) for _ in range(2)]
        west, east = range(agents // 2), range(agents // 2, agents)
        a, b = self._queues
        self.halves: list[Any] = [QueueHalf.remote(a, b, west, east), QueueHalf.remote(b, a, east, west)]

    def close(self) -> None:
        """Stop all."""
        for half in self.halves:
            ray.kill(half)
        for queue in self._queues:
            queue.shutdown(force=True)


@ray.remote(num_cpus=0)
class PlainInterceptor:
    """Answer for one message at a time."""

    def __init__(self) -> None:
        self.black_set = {(-1, -2)}

    async def forward(self, from_id: int, to_id: int, message: str) -> bool:  # noqa: ARG002 - the seed's
        """Tell whether a message may pass."""
        return (from_id, to_id) not in self.black_set


@ray.remote(num_cpus=0)
class PlainHalf(Half):
    """Send as the seeds do: await the interceptor's `forward`, then PUBLISH; listen by a pattern per channel."""

    async def __init__(self, config: RedisConfig, interceptor: Any, agents: range, others: range) -> None:  # type: ignore[misc]
        super().__init__(agents, others)
        self.interceptor = interceptor
        # At most so many connections; who finds none waits.
        pool = aioredis.BlockingConnectionPool(
            host=config.server, port=config.port, password=config.password, max_connections=100, timeout=None
        )
        self.client = aioredis.Redis(connection_pool=pool)
        self.pubsub = self.client.pubsub()
        patterns = [f"exps:plain:agents:{agent}:{topic}" for agent in agents for topic in SUBTOPICS]
        for start in range(0, len(patterns), BATCH):
            await self.pubsub.psubscribe(*patterns[start : start + BATCH])
        self.counting = asyncio.create_task(self._count())

    async def _count(self) -> None:
        async for message in self.pubsub.listen():
            if message["type"] == "pmessage":
                self.arrivals.time(json.loads(message["data"]))
                self.arrivals.add(1)

    async def send(self, from_id: int, to_id: int, content: dict[str, Any]) -> bool:
        """Ask the interceptor, then publish."""
        text = json.dumps(content)
        if not await self.interceptor.forward.remote(from_id, to_id, text):
            return False
        return bool(await self.client.publish(f"exps:plain:agents:{to_id}:agent-chat", text))


@ray.remote(num_cpus=0)
class PlainServer:
    """Own a server without our scripts."""

    def __init__(self) -> None:
        self.server = EmbeddedServer(get_node_ip_address())

    def config(self) -> RedisConfig:
        """Start, and return where it is."""
        return self.server.start()

    def stop(self) -> None:
        """Stop."""
        self.server.stop()


class PlainPeer:
    """Start a server, an interceptor and two halves."""

    name = "Ray call + PUBLISH"

    def __init__(self, agents: int) -> None:
        self._server = PlainServer.remote()
        config = ray.get(self._server.config.remote())
        self._interceptor = PlainInterceptor.remote()
        west, east = range(agents // 2), range(agents // 2, agents)
        self.halves: list[Any] = [
            PlainHalf.remote(config, self._interceptor, west, east),
            PlainHalf.remote(config, self._interceptor, east, west),
        ]

    def close(self) -> None:
        """Stop all."""
        for actor in (*self.halves, self._interceptor):
            ray.kill(actor)
        ray.get(self._server.stop.remote())
        ray.kill(self._server)
