"""1,000,000 agents in two groups, one message each: in a step by columns, and unsynchronised."""

import time
from typing import Any

import numpy as np
import ray

from benchmarks.steps.model import per_step_ms
from ray_messaging import Messager, Messaging, Steps
from ray_messaging.common.process_tuning import tune_process

AGENTS = 1_000_000
HALF = AGENTS // 2


def columns(number: int) -> tuple[Any, Any, Any]:
    """Return the messages of a group: each of its agents writes to one of the other group."""
    ids = np.arange(HALF) + number * HALF
    return ids, np.random.default_rng(number).permutation(HALF) + (1 - number) * HALF, [{"mood": 0.5}] * HALF


@ray.remote(num_cpus=0)
class HalfGroup:
    """One of the two groups, in an actor of one's own."""

    async def open(self, messaging: Messaging, number: int) -> None:
        """Host half of the agents."""
        tune_process()
        agents = range(number * HALF, (number + 1) * HALF)
        self._messager: Messager = await messaging.open_messager(f"half{number}", agents)
        self._columns = columns(number)

    async def steps(self, until: int) -> list[float]:
        """Send a message of each agent in each step; return when each step began."""
        stamps = []
        async for step in self._messager.steps(until=until):
            stamps.append(time.perf_counter())
            if step.number and len(step.messages.to_ids) != HALF:
                raise RuntimeError(f"step {step.number} has {len(step.messages):,} messages")
            step.send_columns(*self._columns)
        return stamps

    async def unsynchronised(self, rounds: int) -> list[float]:
        """Send and fetch the same, round by round, without waiting for the other group; return when each began."""
        stamps = [time.perf_counter()]
        fetched = 0
        for number in range(rounds):
            await self._messager.send_columns(*self._columns)
            while fetched < (number + 1) * HALF:
                fetched += len((await self._messager.fetch_messages(timeout=30)).to_ids)
            stamps.append(time.perf_counter())
        return stamps


class Million:
    """The two groups: one experiment with steps, one without."""

    def __init__(self, *, stepped: bool) -> None:
        self._stepped = stepped
        self._messaging = Messaging.start(
            f"million-{'steps' if stepped else 'free'}", steps=Steps(groups=2) if stepped else None
        )
        self._halves = [HalfGroup.remote() for _ in range(2)]
        ray.get([half.open.remote(self._messaging, number) for number, half in enumerate(self._halves)])
        self._until = 0

    def turn(self, steps: int) -> float:
        """Run some steps, or rounds; return the milliseconds of one."""
        self._until += steps + 1
        if self._stepped:
            return per_step_ms(ray.get([half.steps.remote(self._until) for half in self._halves])[0])
        return per_step_ms(ray.get([half.unsynchronised.remote(steps) for half in self._halves])[0])

    def shutdown(self) -> None:
        """End the experiment."""
        for half in self._halves:
            ray.kill(half)
        self._messaging.shutdown()
