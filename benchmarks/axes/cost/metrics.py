"""Cost of metrics and tracing: a society without them, one with metrics, and two with traces, by turns."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from benchmarks.axes.cost.processes import pid_of, server_pid
from benchmarks.axes.cost.processor import seconds_of
from benchmarks.axes.society.society import cluster, experiment
from benchmarks.figures import OURS, Figure, Plan
from benchmarks.setup.span_sink import span_sink
from ray_messaging import Tracing

AGENTS = 2_000
KINDS: dict[str, dict[str, Any]] = {
    "off": {},
    "on": {"metrics": True},
    "traced 0.001": {"tracing": Tracing(sample=0.001)},
    "traced 1.0": {"tracing": Tracing(sample=1.0)},
}


def measure(plan: Plan) -> Iterator[Figure]:
    """Measure all in turn, so that the rates of a turn have the same load of the machine."""
    with ExitStack() as stack:
        stack.enter_context(span_sink())
        stack.enter_context(cluster())
        societies, pids = {}, {}
        for number, (name, start) in enumerate(KINDS.items()):
            messaging, society = stack.enter_context(experiment(f"metrics-{number}", AGENTS, **start))
            societies[name] = society
            pids[name] = [*map(pid_of, society.members), pid_of(messaging.interceptor), server_pid(messaging)]
        for kind in ("bulk", "awaited"):
            rates: dict[str, list[float]] = {name: [] for name in KINDS}
            times: dict[str, list[float]] = {name: [] for name in KINDS}
            for society in societies.values():
                society.rate(kind, plan.seconds / 2)
            for turn in range(2 * plan.repeats):
                for name, society in [*societies.items()][:: 1 if turn % 2 else -1]:
                    before, start = sum(map(seconds_of, pids[name])), time.time()
                    sent, end = society.begin(kind, plan.seconds)()
                    rates[name].append(sent / (end - start))
                    times[name].append(1e6 * (sum(map(seconds_of, pids[name])) - before) / sent)
            for name in KINDS:
                yield Figure("metrics", kind, OURS, "messages/s", rates[name], {"metrics": name})
                yield Figure("metrics", f"{kind}, processor", OURS, "us", times[name], {"metrics": name})
