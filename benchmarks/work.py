"""The same work for everybody: two halves of a society that write to each other, counted where they arrive.

Payloads are JSON objects of about 100 bytes. A half is a Ray actor; every peer implements the same few methods, and the
runner drives them alike: `bulk` and `awaited` send for some seconds and return how many were sent, `drained` waits
until so many have arrived, `ping` sends lone messages, whose `latencies` the other half returns.
"""

import asyncio
import time
from typing import Any

SUBTOPICS = ("agent-chat", "user-chat", "user-survey")
PING_GAP_S = 0.002


def payload(number: int) -> dict[str, Any]:
    """Build a payload of about 100 bytes of JSON."""
    return {"n": number, "type": "chat", "content": "a message of about a hundred bytes in all, as people write"}


class Arrivals:
    """Count what arrives, and keep the latencies of lone messages, which carry their send time (perf_counter, s)."""

    def __init__(self) -> None:
        self.count = 0
        self.latencies: list[float] = []
        self._changed = asyncio.Event()

    def add(self, messages: int) -> None:
        """Count messages."""
        self.count += messages
        self._changed.set()

    def time(self, content: dict[str, Any]) -> None:
        """Note how long a lone message took."""
        if "at" in content:
            self.latencies.append(time.perf_counter() - content["at"])

    async def reached(self, count: int) -> float:
        """Wait until so many have arrived; return the time (unix s)."""
        while self.count < count:
            self._changed.clear()
            await self._changed.wait()
        return time.time()


class Half:
    """Send for some agents to the others; subclasses say how one message and a bulk are sent."""

    def __init__(self, agents: range, others: range) -> None:
        self.agents, self.others = agents, others
        self.arrivals = Arrivals()

    async def send(self, from_id: int, to_id: int, content: dict[str, Any]) -> bool:
        """Send one message and await that it was taken."""
        raise NotImplementedError

    async def ready(self) -> None:
        """Answer once everything is there."""

    async def awaited(self, seconds: float) -> int:
        """Have every agent await one message after the other; return how many were taken."""
        end = time.perf_counter() + seconds

        async def talk(agent: int, place: int) -> int:
            sent = 0
            content = payload(agent)
            while time.perf_counter() < end:
                sent += await self.send(agent, self.others[place], content)
                place = (place + 1) % len(self.others)
            return sent

        return sum(await asyncio.gather(*(talk(agent, place) for place, agent in enumerate(self.agents))))

    async def ping(self, count: int) -> int:
        """Send lone messages, one every 2 ms."""
        for _ in range(count):
            await self.send(self.agents[0], self.others[0], payload(0) | {"at": time.perf_counter()})
            await asyncio.sleep(PING_GAP_S)
        return count

    async def drained(self, count: int) -> float:
        """Wait until so many have arrived in all; return the time (unix s)."""
        return await self.arrivals.reached(count)

    async def latencies(self) -> list[float]:
        """Return the latencies of lone messages since the last call, in seconds."""
        found, self.arrivals.latencies = self.arrivals.latencies, []
        return found
