"""64 groups that neither read nor send: the time of the barrier alone."""

import asyncio
import time

import ray

from benchmarks.steps.model import per_step_ms
from ray_messaging import Messaging, Steps

GROUPS, PROCESSES = 64, 8


@ray.remote(num_cpus=0)
class IdleGroups:
    """Some groups in one actor of one's own."""

    async def open(self, messaging: Messaging, numbers: range) -> None:
        """Host one agent in each group."""
        opened = [messaging.open_messager(f"idle{number}", [number]) for number in numbers]
        self._messagers = await asyncio.gather(*opened)

    async def run(self, until: int) -> list[float]:
        """Drive the groups; return when each step of the first one began."""
        return (await asyncio.gather(*(_drive(messager, until) for messager in self._messagers)))[0]


async def _drive(messager, until: int) -> list[float]:
    return [time.perf_counter() async for _ in messager.steps(until=until)]


class Idle:
    """All groups, in a few processes."""

    def __init__(self) -> None:
        self._messaging = Messaging.start("idle-steps", steps=Steps(groups=GROUPS))
        each = GROUPS // PROCESSES
        self._actors = [IdleGroups.remote() for _ in range(PROCESSES)]
        ray.get([a.open.remote(self._messaging, range(n * each, (n + 1) * each)) for n, a in enumerate(self._actors)])
        self._until = 0

    def turn(self, steps: int) -> float:
        """Run some steps; return the milliseconds of one."""
        self._until += steps
        return per_step_ms(ray.get([actor.run.remote(self._until) for actor in self._actors])[0])

    def shutdown(self) -> None:
        """End the experiment."""
        for actor in self._actors:
            ray.kill(actor)
        self._messaging.shutdown()
