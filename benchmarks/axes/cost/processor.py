"""Processor time per message in each process, system calls included."""

import os
from collections.abc import Iterator
from pathlib import Path

from benchmarks.axes.cost.processes import pid_of, server_pid
from benchmarks.axes.society.society import cluster, experiment
from benchmarks.figures import OURS, Figure, Plan

AGENTS = 2_000
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def measure(plan: Plan) -> Iterator[Figure]:
    """Measure both ways to send."""
    with cluster(), experiment("processor", AGENTS) as (messaging, society):
        processes = {
            "groups": [pid_of(member) for member in society.members],
            "interceptor": [pid_of(messaging.interceptor)],
            "server": [server_pid(messaging)],
        }
        for kind in ("bulk", "awaited"):
            society.rate(kind, plan.seconds / 2)
            taken: dict[str, list[float]] = {name: [] for name in processes}
            for _ in range(plan.repeats):
                before = _seconds(processes)
                sent, _ = society.begin(kind, plan.seconds)()
                for name, seconds in _seconds(processes).items():
                    taken[name].append(1e6 * (seconds - before[name]) / sent)
            for name, values in taken.items():
                yield Figure("processor", kind, OURS, "us", values, {"process": name})


def _seconds(processes: dict[str, list[int]]) -> dict[str, float]:
    return {name: sum(map(seconds_of, pids)) for name, pids in processes.items()}


def seconds_of(pid: int) -> float:
    """Return the processor time of a process, the system's work for it included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S  # its own, and the system's for it
