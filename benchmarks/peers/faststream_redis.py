"""FastStream on Redis: Pub/Sub for single messages, a list with batches for many.

Awaits: Redis has answered the PUBLISH (`publish`), or the RPUSH of 1,000 (`publish_batch`). Filters nothing. A message
that is published without a subscriber, or too fast for it, is lost; a list keeps it until it is popped, not until it
is worked on. Fast way: bodies are bytes, encoded by msgspec as ours are (it decodes them itself), no dependency
injection (`apply_types=False`), no logger, and one pattern per half rather than a subscription per agent.
"""

import asyncio
import time
from typing import Any

import msgspec
import ray
from faststream.redis import ListSub, PubSub, RedisBroker

from benchmarks.work import Half, payload

AT_ONCE = 50  # connections: redis-py takes one for each command under way, and refuses more than 100
BATCH, UNDER_WAY, POLL_S = 1000, 2, 0.001


@ray.remote(num_cpus=0)
class FastStreamHalf(Half):
    """Publish to the other half's agents, and listen for its own."""

    at_once = AT_ONCE

    async def listen(self, url: str, mine: str, theirs: str) -> None:
        """Connect and subscribe."""
        self.theirs = theirs
        self.broker = RedisBroker(url, logger=None, apply_types=False)
        listed = ListSub(f"list:{mine}", batch=True, max_records=BATCH, polling_interval=POLL_S)

        # No methods: Ray wraps those of an actor, and FastStream takes the wrapper's parameters for the handler's.
        @self.broker.subscriber(PubSub(f"agents:{mine}:*", pattern=True))
        async def came(body: dict[str, Any]) -> None:
            self.arrivals.time(body)
            self.arrivals.add(1)

        @self.broker.subscriber(list=listed)
        async def batch_came(bodies: list[dict[str, Any]]) -> None:
            self.arrivals.add(len(bodies))

        await self.broker.start()

    async def send(self, to_id: int, content: dict[str, Any], from_id: int) -> bool:  # noqa: ARG002 - a channel has no sender
        """Publish one message."""
        await self.broker.publish(msgspec.json.encode(content), f"agents:{self.theirs}:{to_id}")
        return True

    async def bulk(self, seconds: float) -> int:
        """Push batches of 1,000 to the other half's list."""
        payloads, end = [payload(number) for number in range(BATCH)], time.perf_counter() + seconds

        async def push() -> int:
            sent = 0
            while time.perf_counter() < end:
                bodies = [msgspec.json.encode(content) for content in payloads]
                await self.broker.publish_batch(*bodies, list=f"list:{self.theirs}")
                sent += BATCH
            return sent

        return sum(await asyncio.gather(*(push() for _ in range(UNDER_WAY))))


class FastStream:
    """Start two halves on a server."""

    def __init__(self, agents: int, server: dict[str, Any]) -> None:
        url = f"redis://:{server['password']}@{server['host']}:{server['port']}"
        west, east = range(agents // 2), range(agents // 2, agents)
        self.halves: list[Any] = [FastStreamHalf.remote(west, east), FastStreamHalf.remote(east, west)]
        ray.get([self.halves[0].listen.remote(url, "west", "east"), self.halves[1].listen.remote(url, "east", "west")])

    def close(self) -> None:
        """Stop both."""
        for half in self.halves:
            ray.kill(half)
