"""Six groups in a ring on one server and on three, by turns: the rate, and the work of each process for a message."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import ray

from benchmarks.axes.cost.processes import pid_of
from benchmarks.axes.cost.processor import seconds_of
from benchmarks.axes.society.society import BLACK_LIST, Society
from benchmarks.reports.lines import Line, ratios
from ray_messaging import Messaging
from ray_messaging.cluster.handles.actor_calls import NAMESPACE

GROUPS, AGENTS = 6, 3_000
SHARDS = 3
LEAST = 0.9  # times one server: the work is the same, only split
ONE, SEVERAL = "1 shard", f"{SHARDS} shards"
RATE, WORK = "in bulk", "us a message"


def measure(seconds: float, rounds: int) -> list[Line]:
    """Measure both sides by turns, after a turn of each to warm up."""
    found: dict[str, list[dict[str, float]]] = {ONE: [], SEVERAL: []}
    with ExitStack() as stack:
        rings = {}
        for name, shards in ((ONE, 1), (SEVERAL, SHARDS)):
            messaging = stack.enter_context(Messaging.start(f"scale-{shards}", rules=[BLACK_LIST], shards=shards))
            ring = stack.enter_context(Society(messaging, AGENTS, GROUPS))
            rings[name] = ring, processes_of(messaging, ring.members, shards)
        for number in range(1 + rounds):
            for name in list(rings) if number % 2 == 0 else reversed(list(rings)):
                found[name].append(_turn(*rings[name], seconds))
    lines = [
        Line(f"shards: {name}", part, "million/s" if part == RATE else WORK, [turn[part] for turn in turns[1:]])
        for name, turns in found.items()
        for part in turns[0]
    ]
    rates = {name: [turn[RATE] for turn in turns[1:]] for name, turns in found.items()}
    return [*lines, Line("shards", f"{SEVERAL} / {ONE}", "x", ratios(rates[SEVERAL], rates[ONE]), least=LEAST)]


def processes_of(messaging: Messaging, members: Sequence[Any], shards: int) -> dict[str, list[int]]:
    """Return the processes of each kind; `members` are the groups' actors, each server is a kind of its own."""
    found = {"groups": [pid_of(member) for member in members], "interceptor": [pid_of(messaging.interceptor)]}
    for shard in range(shards):
        name = f"{messaging.exp_id}/server-{shard}" if shard else f"{messaging.exp_id}/server"
        stats = ray.get(ray.get_actor(name, namespace=NAMESPACE).stats.remote())
        found[f"server {shard}"] = [stats["pid"]]
    return found


def _turn(ring: Society, processes: dict[str, list[int]], seconds: float) -> dict[str, float]:
    """Send in bulk; return the rate, and the processor time of each kind of process for a message."""
    before = work_of(processes)
    rate = ring.rate("bulk", seconds)
    took = {name: seconds - before[name] for name, seconds in work_of(processes).items()}
    return {RATE: rate / 1e6} | {f"{name}: processor": 1e6 * spent / (rate * seconds) for name, spent in took.items()}


def work_of(processes: dict[str, list[int]]) -> dict[str, float]:
    """Return the processor time of each kind of process so far, in seconds."""
    return {name: sum(map(seconds_of, pids)) for name, pids in processes.items()}
