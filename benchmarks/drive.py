"""Measure one peer, in the environment that has it: a job as JSON on stdin, figures as JSON lines on stdout.

    PYTHON -m benchmarks.drive <<< '{"peer": "pyzmq asyncio", "agents": 2000, "plan": {"quick": true, "seconds": 0.7,
        "repeats": 1}, "kinds": ["bulk", "awaited", "lone"], "server": null}'

Rates are counted where messages arrive. Imports nothing of ours: peers' environments do not have it.
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

from benchmarks.figures import Figure, Plan, emit, percentiles
from benchmarks.peers import Peer, named

AXIS = "peers"
PERCENTILES = (50, 99, 99.9)
WARM_S, WARM_PINGS = 1.0, 20
QUICK_PINGS = 200


class Rate(NamedTuple):
    """Messages per second that arrived, and how many were sent and never did."""

    per_s: float
    sent: int
    lost: int


def rate(halves: Sequence[Any], kind: str, seconds: float, before: list[int]) -> Rate:
    """Have both halves send for some time; `before`: what each has received so far, which is brought up to date."""
    start = time.time()
    sent = ray.get([getattr(half, kind).remote(seconds) for half in halves])
    expected = [had + came for had, came in zip(before, reversed(sent), strict=True)]
    settled = ray.get([half.settled.remote(count) for half, count in zip(halves, expected, strict=True)])
    arrived = sum(count for count, _ in settled) - sum(before)
    before[:] = [count for count, _ in settled]
    return Rate(arrived / (max(at for _, at in settled) - start), sum(sent), sum(sent) - arrived)


def lone(halves: Sequence[Any], pings: int, before: list[int]) -> list[float]:
    """Send lone messages from the first half to the second; return what each took from send to inbox, in ms."""
    west, east = halves
    before[1] += ray.get(west.ping.remote(pings))
    before[1], _ = ray.get(east.settled.remote(before[1]))
    return [1000 * each for each in ray.get(east.latencies.remote())]


class Run:
    """One peer, started, at one size."""

    def __init__(self, peer: Peer, agents: int, plan: Plan, server: dict[str, Any] | None) -> None:
        module, name = peer.start.split(":")
        began = time.perf_counter()
        self.started = getattr(importlib.import_module(module), name)(agents, server)
        ray.get([half.ready.remote() for half in self.started.halves])
        self.notes = [f"set up in {time.perf_counter() - began:.1f} s", *getattr(self.started, "notes", ())]
        self.peer, self.agents, self.plan = peer, agents, plan
        self.before = [0, 0]

    def figures(self, kinds: Sequence[str]) -> Iterator[Figure]:
        """Measure one kind after the other."""
        halves = self.started.halves
        has_bulk = hasattr(halves[0], "bulk")
        for kind in kinds:
            if kind == "lone":
                yield from self._lone()
            elif kind == "awaited" or has_bulk:
                figure = self._rate(kind)
                yield figure
                if not has_bulk and "bulk" in kinds:
                    yield self._figure("bulk", figure.unit, figure.values, "no bulk path: the same calls")

    def _rate(self, kind: str) -> Figure:
        halves, plan = self.started.halves, self.plan
        rate(halves, kind, min(WARM_S, plan.seconds), self.before)
        found = [rate(halves, kind, plan.seconds, self.before) for _ in range(plan.repeats)]
        sent, lost = sum(each.sent for each in found), sum(each.lost for each in found)
        told = [f"{lost:,} of {sent:,} lost"] if lost else []
        return self._figure(kind, "messages/s", [each.per_s for each in found], *told)

    def _lone(self) -> Iterator[Figure]:
        halves, pings = self.started.halves, min(self.peer.pings, QUICK_PINGS if self.plan.quick else self.peer.pings)
        lone(halves, WARM_PINGS, self.before)
        runs = [lone(halves, pings, self.before) for _ in range(self.plan.repeats)]
        found = [percentiles(run, *PERCENTILES) for run in runs if run]
        if not found:
            raise RuntimeError(f"{self.peer.name}: none of {pings} lone messages arrived")
        short = "" if min(map(len, runs)) == pings else f"{min(map(len, runs))} of {pings} timed"
        for place, percent in enumerate(PERCENTILES):
            yield self._figure(f"lone p{percent}", "ms", [each[place] for each in found], short)

    def _figure(self, case: str, unit: str, values: list[float], *notes: str) -> Figure:
        note = "; ".join(filter(None, (*notes, *self.notes)))
        return Figure(AXIS, case, self.peer.name, unit, values, {"agents": self.agents}, note)


def main() -> None:
    """Do the job on stdin."""
    job = json.loads(sys.stdin.read())
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or Ray warns that it will change
    ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    run = Run(named(job["peer"]), job["agents"], Plan(**job["plan"]), job.get("server"))
    try:
        for figure in run.figures(job["kinds"]):
            emit(figure)
    finally:
        run.started.close()
        ray.shutdown()


if __name__ == "__main__":
    main()
