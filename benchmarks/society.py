"""The same work for everybody: two groups that write to each other, JSON payloads of about 100 bytes, counted."""

import asyncio
import time
from typing import Any

import numpy as np
import ray

from ray_messaging import Messaging
from ray_messaging.cluster.tuning import tune_collector

CALL_ROWS = 32_768


def payload(number: int) -> dict[str, Any]:
    """Build a payload of about 100 bytes of JSON."""
    return {"n": number, "type": "chat", "content": "a message of about a hundred bytes in all, as people write"}


@ray.remote(num_cpus=0)
class Half:
    """One group in an actor of its own: sends for its agents to the other half's, and counts what comes."""

    async def __init__(self, messaging: Messaging | None, name: str, agents: range, others: range) -> None:
        self.agents, self.others = agents, others
        self.messager = await messaging.open_messager(name, agents)
        self.received = 0
        self._counting = asyncio.create_task(self._count())
        rng = np.random.default_rng(7)
        self.senders = rng.choice(np.array(agents), CALL_ROWS)
        self.receivers = rng.choice(np.array(others), CALL_ROWS)
        self.payloads = [payload(number) for number in range(CALL_ROWS)]
        self.channels = [self.messager.get_agent_chat_channel(agent) for agent in others]
        tune_collector()

    async def _count(self) -> None:
        while True:
            self.received += len(await self.messager.fetch_messages(timeout=None))

    async def ready(self) -> None:
        """Answer once everything is there."""

    async def bulk(self, seconds: float) -> int:
        """Send columns for some time; return how many were delivered."""
        delivered, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            receipts = await self.messager.send_columns(self.senders, self.receivers, self.payloads)
            delivered += int(receipts.sent.sum())
        return delivered

    async def awaited(self, seconds: float) -> int:
        """Have every agent await one message after the other for some time; return how many were delivered."""
        end = time.perf_counter() + seconds

        async def talk(agent: int, place: int) -> int:
            sent = 0
            text = payload(agent)
            while time.perf_counter() < end:
                receipt = await self.messager.send_message(self.channels[place], text, agent)
                sent += receipt.sent
                place = (place + 1) % len(self.channels)
            return sent

        return sum(await asyncio.gather(*(talk(agent, place) for place, agent in enumerate(self.agents))))

    async def drained(self, count: int) -> float:
        """Wait until so many messages have come in all; return the time (unix s)."""
        while self.received < count:
            await asyncio.sleep(0.001)
        return time.time()

    async def echo(self, count: int) -> None:
        """Answer messages one by one."""


def cross_traffic(kind: str, halves: list[Any], seconds: float, before: int) -> tuple[float, int]:
    """Have both halves send for some time; return messages per second, counted in the inboxes, and their number."""
    start = time.time()
    sent = ray.get([getattr(half, kind).remote(seconds) for half in halves])
    total = sum(sent)
    del before
    ends = ray.get([half.drained.remote(count) for half, count in zip(halves, reversed(sent), strict=True)])
    return total / (max(ends) - start), total
