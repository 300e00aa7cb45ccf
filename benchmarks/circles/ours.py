"""Circles in groups of agents: each tells its place to those near it, and goes by what it hears.

A step of the model is two of ours: in one the agents say where they are, under the pairs of these very places; in the
next they hear it and go. Then the audience is changed.
"""

import asyncio
import time
from typing import Any, NamedTuple

import numpy as np
import ray
from numpy.typing import NDArray

from benchmarks.audiences.followers import Memory
from benchmarks.circles.model import RADIUS, moved, places_of, pulls, side_of
from benchmarks.circles.plain import Round
from ray_messaging import Messager, Messaging, Steps, columns
from ray_messaging.audiences.heard import Heard
from ray_messaging.common.process_tuning import tune_process
from ray_messaging.errors import StepAborted


@ray.remote(num_cpus=0)
class Flyers:
    """A group of agents, in an actor of one's own."""

    async def open(self, messaging: Messaging, name: str, low: int, high: int, agents: int) -> None:
        """Host agents."""
        tune_process()
        self._side = side_of(agents)
        self._places = {0: places_of(agents)[low:high]}  # by steps of the model
        self._messager: Messager = await messaging.open_messager(name, range(low, high))

    async def used(self) -> float:
        """Return the processor time until now."""
        return time.process_time()

    async def go(self, number: int) -> tuple[NDArray[np.float64], float]:
        """Run a step of the model; return the places after it, and the processor time until now."""
        while True:
            try:
                await self._steps(2 * number + 2)
            except StepAborted:
                continue  # it runs again from its first message
            return self._places[number + 1], time.process_time()

    async def _steps(self, until: int) -> None:
        async for step in self._messager.steps(until=until):
            round_ = step.number // 2
            if step.number % 2 == 0:
                step.broadcast_columns(step.places.ints, "near", columns(at=self._places[round_]))
            else:  # in a thread, so that the messager's loop goes on
                await asyncio.to_thread(self._fly, round_, step.heard("near"))

    def _fly(self, number: int, heard: Heard) -> None:
        places = self._places[number]
        self._places = {number: places, number + 1: moved(places, *_pulled(places, heard), self._side)}


def _pulled(places: NDArray[np.float64], heard: Heard) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return what all neighbours do to each agent, and how many they are."""
    pulled, counts, low = np.zeros_like(places), heard.count(), 0
    for chunk in heard.column("at"):
        high = low + len(chunk.agents)
        told = np.flatnonzero(counts[low:high])
        towards = chunk.values - np.repeat(places[low:high], counts[low:high], axis=0)
        pulled[low + told] = np.add.reduceat(pulls(towards), chunk.offsets[told], axis=0)
        low = high
    return pulled, counts


class Figures(NamedTuple):
    """What one run has shown: seconds, GiB, pairs at the start, and the last places."""

    setup_s: float
    audience_s: float
    rounds: list[Round]
    memory: float
    pairs: int
    places: NDArray[np.float64]


def ours(agents: int, groups: int, steps: int) -> Figures:
    """Run the steps; the audience is changed after each of them."""
    begun = time.perf_counter()
    with Messaging.start("circles", steps=Steps(groups=groups)) as messaging:
        bounds = [agents * each // groups for each in range(groups + 1)]
        actors: list[Any] = [Flyers.remote() for _ in range(groups)]  # type: ignore[attr-defined]
        opening = zip(actors, bounds, bounds[1:], strict=False)
        ray.get([each.open.remote(messaging, f"g{low}", low, high, agents) for each, low, high in opening])
        opened = time.perf_counter()
        near = messaging.create_audience("near", positions=places_of(agents), radius=RADIUS)
        made, pairs, ids = time.perf_counter(), near.pairs, np.arange(agents)
        memory = Memory()
        memory.start()
        rounds = list[Round]()
        used = time.process_time() + sum(ray.get([each.used.remote() for each in actors]))
        for number in range(steps):
            before = time.perf_counter()
            found = ray.get([each.go.remote(number) for each in actors])
            places = np.concatenate([part[0] for part in found])
            gone = time.perf_counter()
            near.move(ids, places)
            now = time.process_time() + sum(part[1] for part in found)
            rounds.append(Round(time.perf_counter() - gone, gone - before, now - used))
            used = now
        most = memory.stop()
        for actor in actors:
            ray.kill(actor)
    return Figures(opened - begun, made - opened, rounds, most, pairs, places)
