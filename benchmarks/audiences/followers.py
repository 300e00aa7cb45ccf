"""One broadcast of each agent in each step, and the mean of what each agent hears."""

import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import ray
from numpy.typing import NDArray

from ray_messaging import Messager, Messaging, Steps, columns
from ray_messaging.common.process_tuning import tune_process

_CHUNK = 20_000  # senders whose hearers are drawn together
_CHECKED = 1_000  # agents whose mean is computed by numpy, too
_WARM = 2


def hearers_of(low: int, high: int, agents: int, hearers: int) -> NDArray[np.int32]:
    """Return pairs (m, 2) of some senders, each with so many hearers by chance; a few come twice."""
    rng = np.random.default_rng(low)
    pairs = np.empty(((high - low) * hearers, 2), np.int32)
    pairs[:, 0] = np.repeat(np.arange(low, high, dtype=np.int32), hearers)
    pairs[:, 1] = rng.integers(0, agents, len(pairs), dtype=np.int32)
    return pairs


def graph(agents: int, hearers: int) -> Iterator[NDArray[np.int32]]:
    """Yield the pairs of all senders, some senders at a time."""
    for low in range(0, agents, _CHUNK):
        yield hearers_of(low, min(agents, low + _CHUNK), agents, hearers)


def opinions(ids: NDArray[np.int64], step: int) -> NDArray[np.float64]:
    """Return the number that each agent broadcasts in a step: of as many digits as a float has."""
    return np.sqrt(ids + 1.0) * (step + 1)


def means_by_numpy(agents: int, hearers: int, step: int) -> NDArray[np.float64]:
    """Return the mean that the first agents hear of a step, sender by sender in their order."""
    found = []
    for pairs in graph(agents, hearers):
        some = pairs[pairs[:, 1] < _CHECKED]
        found.append(some)
    pairs = np.unique(np.concatenate(found), axis=0)
    pairs = pairs[np.lexsort((pairs[:, 0], pairs[:, 1]))]
    begins = np.flatnonzero(np.diff(pairs[:, 1], prepend=-1))
    values = opinions(pairs[:, 0].astype(np.int64), step)
    means = np.full(_CHECKED, np.nan)
    means[pairs[begins, 1]] = np.add.reduceat(values, begins) / np.diff(begins, append=len(pairs))
    return means


@ray.remote(num_cpus=0)
class Listeners:
    """A group of agents, in an actor of one's own."""

    async def open(self, messaging: Messaging, name: str, low: int, high: int) -> None:
        """Host agents."""
        tune_process()
        self._messager: Messager = await messaging.open_messager(name, range(low, high))

    async def steps(self, until: int) -> tuple[list[float], list[float], NDArray[np.float64]]:
        """Broadcast and hear in each step; return when each began, the CPU time until then, and the last means."""
        stamps, used, means = list[float](), list[float](), np.zeros(0)
        async for step in self._messager.steps(until=until):
            stamps.append(time.perf_counter())
            used.append(time.process_time())
            if step.number:
                means = step.heard("followers").mean("x")
            ids = step.places.ints
            step.broadcast_columns(ids, "followers", columns(x=opinions(ids, step.number)))
        return stamps, used, means


class Figures(NamedTuple):
    """What one run has shown: seconds and GiB."""

    setup_s: float
    pairs: int
    steps_s: list[float]
    cpu_s: list[float]
    memory: float


class Memory(threading.Thread):
    """The most memory that a process and its descendants have at once, by their proportional shares."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = 0
        self._over = threading.Event()

    def run(self) -> None:
        """Look at it until `stop`, a twentieth of the time: a look passes over all pages of all processes."""
        pause = 0.3
        while not self._over.wait(pause):
            begun = time.perf_counter()
            self.most = max(self.most, self.now())
            pause = max(0.3, 19 * (time.perf_counter() - begun))

    @staticmethod
    def now() -> int:
        """Return the bytes of now."""
        mine = psutil.Process()
        return sum(map(_share, [mine, *mine.children(recursive=True)]))

    def stop(self) -> float:
        """Return the most so far, in GiB."""
        self._over.set()
        self.join()
        return self.most / 2**30


def _share(process: psutil.Process) -> int:
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def measure(agents: int, hearers: int, groups: int, steps: int) -> Figures:
    """Run so many steps after some to warm up; raise ValueError where a mean differs from numpy's."""
    with Messaging.start("followers", steps=Steps(groups=groups)) as messaging:
        began = time.perf_counter()
        audience = messaging.create_audience("followers", graph=graph(agents, hearers))
        bounds = [agents * each // groups for each in range(groups + 1)]
        actors: list[Any] = [Listeners.remote() for _ in range(groups)]  # type: ignore[attr-defined]
        opening = zip(actors, bounds, bounds[1:], strict=False)
        ray.get([each.open.remote(messaging, f"g{low}", low, high) for each, low, high in opening])
        setup_s, pairs = time.perf_counter() - began, audience.pairs
        memory = Memory()
        memory.start()
        until = steps + _WARM + 1
        found = ray.get([each.steps.remote(until) for each in actors])
        most = memory.stop()
        for actor in actors:
            ray.kill(actor)
    if not np.array_equal(found[0][2][:_CHECKED], means_by_numpy(agents, hearers, until - 2)):
        raise ValueError("the means differ from numpy's")
    each, used = np.diff(found[0][0])[_WARM:], sum(np.diff(part[1])[_WARM:] for part in found)
    return Figures(setup_s, pairs, each.tolist(), used.tolist(), most)


def show(figures: Figures) -> None:
    """Print what one run has shown."""
    each, used = figures.steps_s, figures.cpu_s
    print(f"{figures.pairs:,} pairs, set up in {figures.setup_s:.1f} s")
    print(f"a step: {statistics.median(each):.2f} s ({min(each):.2f} to {max(each):.2f}), {len(each)} steps")
    print(f"CPU time of all groups in a step: {statistics.median(used):.2f} s ({min(used):.2f} to {max(used):.2f})")
    print(f"memory of all processes: {figures.memory:.2f} GiB at most")
