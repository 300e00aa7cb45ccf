"""64 groups that neither read nor send: the time of the barrier alone."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import ray

from benchmarks.steps.model import per_step_ms
from ray_messaging import Group, Messager, Messaging, Steps

GROUPS, PROCESSES = 64, 8


@ray.remote(num_cpus=0)
class OwnGroups:
    """Some groups in one actor of one's own."""

    async def open(self, messaging: Messaging, numbers: range) -> None:
        """Host one agent in each group."""
        opened = [messaging.open_messager(f"idle{number}", [number]) for number in numbers]
        self._messagers = await asyncio.gather(*opened)

    async def run(self, until: int) -> list[float]:
        """Drive the groups; return when each step of the first one began."""
        return (await asyncio.gather(*(_drive(messager, until) for messager in self._messagers)))[0]


async def _drive(messager: Messager, until: int) -> list[float]:
    return [time.perf_counter() async for _ in messager.steps(until=until)]


@ray.remote(num_cpus=0)
class DrivenGroups:
    """A process that drives some groups by their handles, each in a thread."""

    def __init__(self, groups: list[Group]) -> None:
        self._groups = groups
        self._threads = ThreadPoolExecutor(len(groups))

    def run(self, until: int) -> list[float]:
        """Drive the groups; return when each step of the first one began."""

        def drive(group: Group) -> list[float]:
            return [time.perf_counter() for _ in group.steps(until=until)]

        first, *_ = self._threads.map(drive, self._groups)
        return first


class _Idle:
    """All groups, driven in a few processes."""

    def __init__(self, name: str) -> None:
        self._messaging = Messaging.start(name, steps=Steps(groups=GROUPS))
        self._drivers: list[ray.actor.ActorHandle] = []
        self._until = 0

    def turn(self, steps: int) -> float:
        """Run some steps; return the milliseconds of one."""
        self._until += steps
        return per_step_ms(ray.get([driver.run.remote(self._until) for driver in self._drivers])[0])

    def shutdown(self) -> None:
        """End the experiment."""
        for driver in self._drivers:
            ray.kill(driver)
        self._messaging.shutdown()


class IdleInOwnActors(_Idle):
    """Groups in actors of one's own."""

    name = "messager.steps"
    most = 15.0

    def __init__(self) -> None:
        super().__init__("idle-own")
        self._drivers = [OwnGroups.remote() for _ in range(PROCESSES)]
        numbers = range(GROUPS)
        ray.get([driver.open.remote(self._messaging, numbers[n::PROCESSES]) for n, driver in enumerate(self._drivers)])


class IdleByHandles(_Idle):
    """Groups in actors of their own, driven by their handles."""

    name = "group.steps"
    most = 60.0

    def __init__(self) -> None:
        super().__init__("idle-handles")
        groups = list(self._messaging.create_groups({f"idle{number}": [number] for number in range(GROUPS)}).values())
        self._drivers = [DrivenGroups.remote(groups[n::PROCESSES]) for n in range(PROCESSES)]
