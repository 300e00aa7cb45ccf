"""Measure one peer, in the environment that has it: tasks as JSON lines on stdin, figures as JSON lines on stdout.

    PYTHON -m benchmarks.runs.driver <<< '{"peer": "pyzmq asyncio", "agents": 2000, "server": null}
        {"kinds": ["bulk", "awaited", "lone"], "seconds": 0.7, "repeats": 1, "pings": 200, "warm_s": 0.7}'

The first line names the peer to start. Each further line is a task, which runs when it is read, so that the caller
chooses the time. The answer to a line is its figures and a line "done". The end of stdin ends the driver. Rates are
counted at the receiver. The driver does not import ray_messaging, which peers' environments do not have.
"""

import importlib
import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import ray

from benchmarks.figures import DONE, Figure, Task, emit, percentiles
from benchmarks.peers import Peer, named

AXIS = "peers"
PERCENTILES = (50, 99, 99.9)
WARM_PINGS = 20


class Rate(NamedTuple):
    """Messages per second that arrived, and how many were sent and never did."""

    per_s: float
    sent: int
    lost: int


def rate(halves: Sequence[Any], kind: str, seconds: float, before: list[int]) -> Rate:
    """Have both halves send for some time; `before` has the messages that each has received so far, and is updated."""
    start = time.time()
    sent = ray.get([getattr(half, kind).remote(seconds) for half in halves])
    expected = [had + came for had, came in zip(before, reversed(sent), strict=True)]
    settled = ray.get([half.settled.remote(count) for half, count in zip(halves, expected, strict=True)])
    arrived = sum(count for count, _ in settled) - sum(before)
    before[:] = [count for count, _ in settled]
    return Rate(arrived / (max(at for _, at in settled) - start), sum(sent), sum(sent) - arrived)


def lone(halves: Sequence[Any], pings: int, before: list[int]) -> list[float]:
    """Send lone messages from the first half to the second; return the time of each from send to inbox, in ms."""
    west, east = halves
    before[1] += ray.get(west.ping.remote(pings))
    before[1], _ = ray.get(east.settled.remote(before[1]))
    return [1000 * each for each in ray.get(east.latencies.remote())]


class Run:
    """One peer, started, at one size."""

    def __init__(self, peer: Peer, agents: int, server: dict[str, Any] | None) -> None:
        module, name = peer.start.split(":")
        began = time.perf_counter()
        self.started = getattr(importlib.import_module(module), name)(agents, server)
        ray.get([half.ready.remote() for half in self.started.halves])
        self.notes = [f"set up in {time.perf_counter() - began:.1f} s", *getattr(self.started, "notes", ())]
        self.peer, self.agents = peer, agents
        self.before = [0, 0]

    def figures(self, task: Task) -> Iterator[Figure]:
        """Measure one kind after the other; a peer without bulk calls is measured at "awaited", once for both."""
        found: dict[str, list[Rate]] = {}
        for kind in task.kinds:
            if kind == "lone":
                yield from self._lone(task)
                continue
            calls = kind if hasattr(self.started.halves[0], kind) else "awaited"
            if calls not in found:
                found[calls] = self._rates(calls, task)
            sent, lost = sum(each.sent for each in found[calls]), sum(each.lost for each in found[calls])
            told = [f"no {kind} path: measured with the same calls"] if calls != kind else []
            told += [f"{lost:,} of {sent:,} lost"] if lost else []
            yield self._figure(kind, "messages/s", [each.per_s for each in found[calls]], *told)

    def _rates(self, calls: str, task: Task) -> list[Rate]:
        rate(self.started.halves, calls, task.warm_s, self.before)
        return [rate(self.started.halves, calls, task.seconds, self.before) for _ in range(task.repeats)]

    def _lone(self, task: Task) -> Iterator[Figure]:
        lone(self.started.halves, WARM_PINGS, self.before)
        runs = [lone(self.started.halves, task.pings, self.before) for _ in range(task.repeats)]
        found = [percentiles(run, *PERCENTILES) for run in runs if run]
        if not found:
            raise RuntimeError(f"{self.peer.name}: none of {task.pings} lone messages arrived")
        short = "" if min(map(len, runs)) == task.pings else f"{min(map(len, runs))} of {task.pings} timed"
        for place, percent in enumerate(PERCENTILES):
            yield self._figure(f"lone p{percent}", "ms", [each[place] for each in found], short)

    def _figure(self, case: str, unit: str, values: list[float], *notes: str) -> Figure:
        note = "; ".join(filter(None, (*notes, *self.notes)))
        return Figure(AXIS, case, self.peer.name, unit, values, {"agents": self.agents}, note)


def main() -> None:
    """Do the tasks on stdin."""
    job = json.loads(sys.stdin.readline())
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or Ray warns that it will change
    ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    run = Run(named(job["peer"]), job["agents"], job["server"])
    try:
        print(DONE, flush=True)
        for line in sys.stdin:
            for figure in run.figures(Task.from_json(line)):
                emit(figure)
            print(DONE, flush=True)
    finally:
        run.started.close()
        ray.shutdown()


if __name__ == "__main__":
    main()
