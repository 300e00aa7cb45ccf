"""Number of agents: rates and lone messages from 200 to a million, and the cost of a million on this machine."""

import time
from collections.abc import Iterator

from benchmarks.axes.cost.processes import held_bytes, ray_bytes
from benchmarks.axes.society.member import TALKERS
from benchmarks.axes.society.society import Society, cluster, experiment
from benchmarks.figures import OURS, Figure, Plan
from ray_messaging import Messaging

SIZES = (200, 2_000, 10_000, 100_000, 1_000_000)
QUICK = (200, 10_000, 1_000_000)
MILLION = 1_000_000
SPEAKERS = f"{2 * TALKERS:,} of them await at the same time"


def measure(plan: Plan) -> Iterator[Figure]:
    """Measure each size in an experiment of its own, and of a million its set-up, steps and memory as well."""
    with cluster():
        for agents in QUICK if plan.quick else SIZES:
            begun = time.perf_counter()
            with experiment(f"agents-{agents}", agents) as (messaging, it):
                set_up = time.perf_counter() - begun
                at: dict[str, int | float | str] = {"agents": agents}
                if agents == MILLION:
                    yield Figure("agents", "set up", OURS, "s", [set_up], at, "Ray is up; two groups claim all agents")
                    yield from _steps(plan, it, at)
                    yield from _memory(messaging, it, at)
                yield from _rates(plan, it, at)


def _rates(plan: Plan, society: Society, at: dict[str, int | float | str]) -> Iterator[Figure]:
    for kind in ("bulk", "awaited"):
        values = society.rates(kind, 0.75 * plan.seconds, plan.repeats)
        note = SPEAKERS if kind == "awaited" and int(at["agents"]) > 2 * TALKERS else ""
        yield Figure("agents", kind, OURS, "messages/s", values, at, note)
    yield from society.lone_figures("agents", plan.repeats, at)


def _steps(plan: Plan, society: Society, at: dict[str, int | float | str]) -> Iterator[Figure]:
    """Have each agent write one message per step; a step ends when all have arrived."""
    took = []
    for number in range(plan.repeats + 1):
        begun = time.time()
        sent, end = society.begin("step", number)()
        if sent != MILLION:
            raise RuntimeError(f"step {number} delivered {sent:,} of {MILLION:,} messages")
        took.append(end - begun)
    yield Figure("agents", "step", OURS, "s", took[1:], at, "one message per agent, until the last has arrived")


def _memory(messaging: Messaging, society: Society, at: dict[str, int | float | str]) -> Iterator[Figure]:
    held = held_bytes(messaging, society.members)
    note = ", ".join(f"{name} {nbytes / 2**20:,.0f} MiB" for name, nbytes in held.items())
    yield Figure("agents", "memory", OURS, "bytes", [float(sum(held.values()))], at, note)
    yield Figure("agents", "memory", "Ray's own processes", "bytes", [float(ray_bytes())], at)
