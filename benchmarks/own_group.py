"""A group whose steps an actor of one's own drives by `messager.steps`, as docs/steps.md writes it."""

import time
from collections.abc import Callable

import ray

from ray_messaging import Messaging
from ray_messaging.steps.step import Step


@ray.remote(num_cpus=0)
class OwnGroup:
    """A group in an actor of one's own; `run_step` is called in each step."""

    def __init__(self, run_step: Callable[[Step], None]) -> None:
        self._run_step = run_step

    async def open(self, messaging: Messaging, name: str, agents: range) -> None:
        """Host the agents."""
        self._messager = await messaging.open_messager(name, agents)

    async def run(self, until: int) -> list[float]:
        """Drive the group; return when each step began."""
        stamps = []
        async for step in self._messager.steps(until=until):
            stamps.append(time.perf_counter())
            self._run_step(step)
        return stamps
