"""Six groups in steps with bodies on one server and on three, by turns: a step's time, and what each process works."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import ray

from benchmarks.axes.cost.processes import pid_of
from benchmarks.axes.cost.processor import seconds_of
from benchmarks.reports.lines import Line, ratios
from ray_messaging import Messager, Messaging, Steps
from ray_messaging.cluster.handles.connection import NAMESPACE

GROUPS, AGENTS = 6, 600
SHARDS = 3
ONE, SEVERAL = "1 server", f"{SHARDS} servers"
SIZES = {"large": 300_000, "small": 600}  # messages of a step, each group's to all groups
PAYLOAD = {"mood": 0.5, "text": "x" * 80}
TIME, WORK = "ms of a step", "processor ms a step"
LARGE_MOST, SMALL_MOST = 1.1, 1.15  # times one server: the work is the same, only split


@ray.remote(num_cpus=0)
class Member:
    """One of the groups, in an actor of one's own."""

    async def open(self, messaging: Messaging, number: int, count: int) -> None:
        """Host a part of the agents, with so many messages a step to agents of all groups."""
        mine = np.arange(number * AGENTS, (number + 1) * AGENTS)
        self._messager: Messager = await messaging.open_messager(f"member{number}", mine.tolist())
        to_ids = np.random.default_rng(number).integers(0, GROUPS * AGENTS, count)
        self._columns = mine[np.arange(count) % AGENTS], to_ids, [PAYLOAD] * count

    async def run(self, until: int) -> int:
        """Drive the steps up to one; return how many messages were read."""
        read = 0
        async for step in self._messager.steps(until=until):
            read += len(step.messages.to_ids)
            step.send_columns(*self._columns)
        return read


class Side:
    """Groups in an experiment with so many servers."""

    def __init__(self, size: str, shards: int) -> None:
        self._count = SIZES[size] // GROUPS
        self._messaging = Messaging.start(f"steps-{size}-{shards}", steps=Steps(groups=GROUPS), shards=shards)
        self._members: list[Any] = [Member.remote() for _ in range(GROUPS)]
        opening = [each.open.remote(self._messaging, number, self._count) for number, each in enumerate(self._members)]
        ray.get(opening)
        self._processes = processes_of(self._messaging, self._members, shards)
        self._until = 0

    def turn(self, steps: int) -> dict[str, float]:
        """Run some steps; return the time of one, and the processor time of each kind of process for it."""
        before, first = work_of(self._processes), self._until == 0
        self._until += steps
        begun = time.perf_counter()
        read = sum(ray.get([member.run.remote(self._until) for member in self._members]))
        took = 1e3 * (time.perf_counter() - begun) / steps
        wanted = GROUPS * self._count * (steps - first)
        if read != wanted:
            raise RuntimeError(f"{read:,} of {wanted:,} messages were read")
        work = {name: 1e3 * (seconds - before[name]) / steps for name, seconds in work_of(self._processes).items()}
        return {TIME: took} | work

    def close(self) -> None:
        """End the experiment."""
        for member in self._members:
            ray.kill(member)
        self._messaging.shutdown()


def processes_of(messaging: Messaging, members: Sequence[Any], shards: int) -> dict[str, list[int]]:
    """Return the processes of each kind; `members` are the groups' actors, each server is a kind of its own."""
    found = {"groups": [pid_of(member) for member in members], "interceptor": [pid_of(messaging.interceptor)]}
    for shard in range(shards):
        name = f"{messaging.exp_id}/server-{shard}" if shard else f"{messaging.exp_id}/server"
        stats = ray.get(ray.get_actor(name, namespace=NAMESPACE).stats.remote())
        found[f"server {shard}"] = [stats["pid"]]
    return found


def work_of(processes: dict[str, list[int]]) -> dict[str, float]:
    """Return the processor time of each kind of process so far, in seconds."""
    return {name: sum(map(seconds_of, pids)) for name, pids in processes.items()}


def measure(rounds: int) -> list[Line]:
    """Measure large and small steps, each by turns, after a turn of each side to warm up."""
    lines = []
    for size, steps, most in (("large", 4, LARGE_MOST), ("small", 60, SMALL_MOST)):
        found: dict[str, list[dict[str, float]]] = {ONE: [], SEVERAL: []}
        with ExitStack() as stack:
            sides = {ONE: Side(size, 1), SEVERAL: Side(size, SHARDS)}
            for side in sides.values():
                stack.callback(side.close)
            for number in range(1 + rounds):
                for name in list(sides) if number % 2 == 0 else reversed(list(sides)):
                    found[name].append(sides[name].turn(steps))
        part = f"steps of {SIZES[size]:,} messages"
        lines += [
            Line(f"{part}: {name}", each, "ms" if each == TIME else WORK, [turn[each] for turn in turns[1:]])
            for name, turns in found.items()
            for each in turns[0]
        ]
        times = {name: [turn[TIME] for turn in turns[1:]] for name, turns in found.items()}
        lines.append(Line(part, f"{SEVERAL} / {ONE}", "x", ratios(times[SEVERAL], times[ONE]), most))
    return lines
