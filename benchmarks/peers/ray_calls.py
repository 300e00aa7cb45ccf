"""Direct Ray actor calls from one half to the other, as in a simulation without a library.

Awaits: the other actor has counted the message, or the frame of 1,000. Filters nothing, keeps nothing, and Ray's async
actors do not keep the order. Messages are tuples (from, to, payload), packed by msgpack: payloads stay dicts, which is
faster than JSON here. Fast way: frames of 1,000, a few under way at once, below the 100 KB that go through Ray's object
store; unpacked and counted by the receiver.
"""

import time
from collections import deque
from typing import Any

import msgpack
import ray

from benchmarks.work import Half, payload

FRAME, UNDER_WAY = 1000, 8


@ray.remote(num_cpus=0)
class CallHalf(Half):
    """Call the other half."""

    async def meet(self, other: Any) -> None:
        """Remember the other half."""
        self.other = other

    async def take(self, frame: bytes) -> None:
        """Count the messages of a frame."""
        messages = msgpack.unpackb(frame)
        if len(messages) == 1:
            self.arrivals.time(messages[0][2])
        self.arrivals.add(len(messages))

    async def send(self, to_id: int, content: dict[str, Any], from_id: int) -> bool:
        """Send one message by a call of its own."""
        await self.other.take.remote(msgpack.packb([(from_id, to_id, content)]))
        return True

    async def bulk(self, seconds: float) -> int:
        """Send frames of 1,000."""
        messages = [
            (self.agents[n % len(self.agents)], self.others[n % len(self.others)], payload(n)) for n in range(FRAME)
        ]
        sent, end = 0, time.perf_counter() + seconds
        flying: deque[Any] = deque()
        while time.perf_counter() < end:
            flying.append(self.other.take.remote(msgpack.packb(messages)))
            if len(flying) == UNDER_WAY:
                await flying.popleft()
            sent += FRAME
        for each in flying:
            await each
        return sent


class Calls:
    """Start two halves that know each other."""

    def __init__(self, agents: int, server: None) -> None:  # noqa: ARG002 - it needs none
        west, east = range(agents // 2), range(agents // 2, agents)
        self.halves: list[Any] = [CallHalf.remote(west, east), CallHalf.remote(east, west)]
        ray.get([half.meet.remote(other) for half, other in zip(self.halves, reversed(self.halves), strict=True)])

    def close(self) -> None:
        """Stop both."""
        for half in self.halves:
            ray.kill(half)
