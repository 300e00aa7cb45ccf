"""How many Ray tasks drive two groups through their handles."""

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import ray

from benchmarks.axes.society.society import BLACK_LIST, cluster
from benchmarks.figures import OURS, Figure, Plan
from benchmarks.work import payload
from ray_messaging import Messaging
from ray_messaging.cluster.handles.group.group import Group

WORKERS = (1, 2, 4, 8)
QUICK = (1, 4)
AGENTS = 1_000  # of each group
CALL_ROWS = 16_384


class End(NamedTuple):
    """One of two groups, with its agents and its receivers."""

    group: Group
    agents: range
    others: range


def ends_of(messaging: Messaging) -> list[End]:
    """Create two groups; return them with their agents."""
    west, east = range(AGENTS), range(AGENTS, 2 * AGENTS)
    return [
        End(messaging.create_group("west", west), west, east),
        End(messaging.create_group("east", east), east, west),
    ]


def columns_of(end: End, rows: int = CALL_ROWS) -> tuple[Any, Any, list[Any]]:
    """Return the columns of a call: senders, receivers, payloads."""
    rng = np.random.default_rng(7)
    senders, receivers = (rng.choice(np.array(half), rows) for half in (end.agents, end.others))
    return senders, receivers, [payload(number) for number in range(rows)]


def exchange(ends: list[End], rows: list[tuple[Any, Any, list[Any]]], seconds: float) -> tuple[int, int]:
    """Send from each group and fetch its messages, in alternation; return the counts of delivered and fetched."""
    sent = fetched = 0
    over = time.perf_counter() + seconds
    while time.perf_counter() < over:
        for end, columns in zip(ends, rows, strict=True):
            sent += int(end.group.send_columns(*columns).sent.sum())
            fetched += len(end.group.fetch_messages())
    for end in ends:
        end.group.ack()
    return sent, fetched


@ray.remote(num_cpus=0)
def drive(ends: list[End], seconds: float) -> tuple[int, int]:
    """Drive the groups for some seconds, from one task."""
    return exchange(ends, [columns_of(end) for end in ends], seconds)


def measure(plan: Plan) -> Iterator[Figure]:
    """Measure each number of tasks."""
    with cluster(), Messaging.start("workers", rules=[BLACK_LIST]) as messaging:
        ends = ends_of(messaging)
        for workers in QUICK if plan.quick else WORKERS:
            _rate(ends, workers, plan.seconds / 4)  # the tasks' processes start
            rates = [_rate(ends, workers, plan.seconds) for _ in range(plan.repeats)]
            yield Figure("workers", "bulk", OURS, "messages/s", rates, {"workers": workers}, "fetched by the tasks")


def _rate(ends: list[End], workers: int, seconds: float) -> float:
    """Run `workers` tasks, fetch the remaining messages, and return messages per second."""
    begun = time.perf_counter()
    calls: list[Any] = [drive.remote(ends, seconds) for _ in range(workers)]
    sent, fetched = (sum(column) for column in zip(*ray.get(calls), strict=True))
    while fetched < sent:
        fetched += sum(len(end.group.fetch_messages(timeout=0.1)) for end in ends)
    took = time.perf_counter() - begun
    for end in ends:
        end.group.ack()
    if fetched != sent:
        raise RuntimeError(f"{sent:,} messages were delivered, {fetched:,} fetched")
    return fetched / took
