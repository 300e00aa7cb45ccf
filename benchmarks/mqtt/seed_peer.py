"""AgentSociety's way over MQTT: one Ray call to an interceptor and one awaited PUBLISH per message, by aiomqtt."""

import asyncio
import json
import logging
import socket
from typing import Any

import aiomqtt
import ray

from benchmarks.mosquitto import Mosquitto
from benchmarks.work import Half

# The fastest setting here, of 10 to 1,000 at once: from 100 on the Ray calls are the limit. paho's own limit of 20
# publications under way costs nothing then, and a higher one gains nothing.
AT_ONCE = 100
NO_DELAY = (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # the seed does without, and waits for TCP at times: 40 ms


@ray.remote(num_cpus=0)
class PlainInterceptor:
    """Answer for one message at a time."""

    def __init__(self) -> None:
        self.black_set = {(-1, -2)}

    async def forward(self, from_id: int, to_id: int, message: str) -> bool:  # noqa: ARG002 - the seed's
        """Tell whether a message may pass."""
        return (from_id, to_id) not in self.black_set


@ray.remote(num_cpus=0)
class SeedHalf(Half):
    """Send as the seed does: await the interceptor's `forward`, then PUBLISH at QoS 1; listen by a filter per agent."""

    at_once = AT_ONCE

    async def __init__(self, host: str, port: int, interceptor: Any, agents: range, others: range) -> None:  # type: ignore[misc]
        super().__init__(agents, others)
        self.interceptor = interceptor
        # aiomqtt writes a line for each call above ten under way.
        logging.getLogger("mqtt").setLevel(logging.ERROR)
        self.client = aiomqtt.Client(host, port, timeout=60, socket_options=[NO_DELAY])
        await self.client.__aenter__()
        await self.client.subscribe([(f"exps/plain/agents/{agent}/#", 1) for agent in agents])
        self.counting = asyncio.create_task(self._count())

    async def _count(self) -> None:
        async for message in self.client.messages:
            assert isinstance(message.payload, bytes)
            self.arrivals.time(json.loads(message.payload))
            self.arrivals.add(1)

    async def send(self, to_id: int, content: dict[str, Any], from_id: int) -> bool:
        """Ask the interceptor, then publish."""
        text = json.dumps(content, default=str)
        if not await self.interceptor.forward.remote(str(from_id), str(to_id), text):
            return False
        await self.client.publish(f"exps/plain/agents/{to_id}/agent-chat", text, qos=1)
        return True


class SeedPeer:
    """Start an interceptor and two halves on a broker."""

    name = "Ray call + PUBLISH"

    def __init__(self, agents: int, broker: Mosquitto) -> None:
        self._interceptor = PlainInterceptor.remote()
        west, east = range(agents // 2), range(agents // 2, agents)
        self.halves: list[Any] = [
            SeedHalf.remote(broker.host, broker.port, self._interceptor, west, east),
            SeedHalf.remote(broker.host, broker.port, self._interceptor, east, west),
        ]

    def close(self) -> None:
        """Stop all."""
        for actor in (*self.halves, self._interceptor):
            ray.kill(actor)
