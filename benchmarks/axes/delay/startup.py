"""Time from nothing to a usable experiment."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import ray

from benchmarks.axes.society.society import BLACK_LIST, cluster
from benchmarks.figures import LIMIT, OURS, Figure, Plan
from benchmarks.work import payload
from ray_messaging import Messaging

AGENTS = 1_000
IMPORTS = {OURS: "ray_messaging", f"{LIMIT}import ray": "ray"}
IMPORT = "with a warm disk cache"


@ray.remote(num_cpus=0)
class Bare:
    """An actor that does nothing."""

    def ready(self) -> int:
        """Answer."""
        return os.getpid()


def measure(plan: Plan) -> Iterator[Figure]:
    """Measure each beginning, Ray's own next to it."""
    for who, module in IMPORTS.items():
        took = [_took(lambda module=module: _import(module)) for _ in range(plan.repeats)]  # type: ignore[misc]
        yield Figure("startup", "import", who, "s", took, note=IMPORT)
    with_ray, only_ray = zip(*(_from_nothing() for _ in range(min(2, plan.repeats))), strict=True)
    yield Figure("startup", "start, with Ray", OURS, "s", list(with_ray), note="ray.init, Messaging.start")
    yield Figure("startup", "start, with Ray", f"{LIMIT}ray.init", "s", list(only_ray))
    with cluster():
        took = [_took(lambda: ray.get(Bare.remote().ready.remote())) for _ in range(plan.repeats)]
        yield Figure("startup", "create_group", f"{LIMIT}Ray actor", "s", took, note="a bare actor's first answer")
        starts, groups, firsts = zip(*(_beginning(number) for number in range(plan.repeats)), strict=True)
    yield Figure("startup", "start, Ray is up", OURS, "s", list(starts), note="server and interceptor")
    yield Figure("startup", "create_group", OURS, "s", list(groups), note=f"of {AGENTS:,} agents")
    note = "from Messaging.start, through two groups, to the fetched message; Ray is up"
    yield Figure("startup", "first message", OURS, "s", list(firsts), note=note)


def _took(call: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def _import(module: str) -> None:
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True)


def _from_nothing() -> tuple[float, float]:
    """Start Ray and an experiment; return how long both took, and how long Ray did."""
    begun = time.perf_counter()
    with cluster():
        up = time.perf_counter()
        with Messaging.start("startup-with-ray", rules=[BLACK_LIST]):
            return time.perf_counter() - begun, up - begun


def _beginning(number: int) -> tuple[float, float, float]:
    """Start an experiment and use it; return how long start, one group, and all up to the first message took."""
    begun = time.perf_counter()
    with Messaging.start(f"startup-{number}", rules=[BLACK_LIST]) as messaging:
        started = time.perf_counter()
        west = messaging.create_group("west", range(AGENTS))
        made = time.perf_counter()
        east = messaging.create_group("east", range(AGENTS, 2 * AGENTS))
        west.send(0, AGENTS, payload(0))
        if len(east.fetch_messages(timeout=10)) != 1:
            raise RuntimeError("the first message did not arrive within 10 s")
        return started - begun, made - started, time.perf_counter() - begun
