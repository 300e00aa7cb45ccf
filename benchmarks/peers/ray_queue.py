"""ray.util.queue: a queue actor for each half, unbounded.

Awaits: the queue actor has taken the message (`put_async`), or the 1,000 of a batch. Filters nothing, keeps nothing:
waiting messages are lost with the queue's actor. Fast way: `put_nowait_batch` of the queue's actor, a few batches in
flight, and the receiver takes all that wait by `get_nowait_batch`. Messages are encoded by msgspec, as ours are, and
not decoded to be counted, as ours are not.
"""

import asyncio
import time
from collections import deque
from typing import Any

import msgspec
import ray
from ray.util.queue import Queue

from benchmarks.work import FEW, STAMP, Half, payload

BATCH, UNDER_WAY = 1000, 4
TAKEN = 10_000  # more in one reply gains nothing


@ray.remote(num_cpus=0)
class QueueHalf(Half):
    """Put messages into the other half's queue, and take those of its own."""

    async def __init__(self, mine: Queue, theirs: Queue, agents: range, others: range) -> None:  # type: ignore[misc]
        super().__init__(agents, others)
        self.mine, self.theirs = mine, theirs
        self.counting = asyncio.create_task(self._count())

    async def _count(self) -> None:
        while True:
            batch = [await self.mine.get_async()]
            waiting = await self.mine.actor.qsize.remote()  # nobody else takes them, so they are there
            if waiting:
                batch += await self.mine.actor.get_nowait_batch.remote(min(TAKEN, waiting))
            for message in batch if len(batch) <= FEW else ():
                if STAMP in message:
                    self.arrivals.time(msgspec.json.decode(message)[2])
            self.arrivals.add(len(batch))

    async def send(self, to_id: int, content: dict[str, Any], from_id: int) -> bool:
        """Put one message."""
        await self.theirs.put_async(msgspec.json.encode((from_id, to_id, content)))
        return True

    async def bulk(self, seconds: float) -> int:
        """Put batches of 1,000."""
        payloads = [payload(number) for number in range(BATCH)]
        sent, end = 0, time.perf_counter() + seconds
        flying: deque[Any] = deque()
        while time.perf_counter() < end:
            batch = [msgspec.json.encode((0, 1, content)) for content in payloads]
            flying.append(self.theirs.actor.put_nowait_batch.remote(batch))
            if len(flying) == UNDER_WAY:
                await flying.popleft()
            sent += BATCH
        for each in flying:
            await each
        return sent


class Queues:
    """Start two queues and two halves."""

    def __init__(self, agents: int, server: None) -> None:  # noqa: ARG002 - it needs none
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
