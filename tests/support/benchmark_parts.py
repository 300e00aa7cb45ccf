"""Parts, figures and runs for the tests of the benchmarks' frame."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks are no part of the package

from benchmarks.figures import OURS, Figure, Plan
from benchmarks.runs.results import Outcome, Run
from benchmarks.runs.runner import Part

FACTS = {
    "cores": 2, "cpu": "a CPU", "memory_gib": 4.0, "system": "Linux", "versions": {"ray": "2"}, "commit": "abc",
    "date": "today", "load": [0.1, 0.1, 0.1], "busy": 0.02,
}  # fmt: skip
TELL = """
import sys
from benchmarks.figures import Figure, Plan, emit
plan = Plan.from_json(sys.stdin.read())
print("Ray says something")
emit(Figure("groups", "bulk", "ray_messaging", "messages/s", [plan.seconds], {"groups": 2}))
"""


def part(code, name="part", limit_s=30.0, **more):
    return Part(name, "groups", lambda: [sys.executable, "-c", code], lambda _: Plan().to_json(), limit_s, **more)


def figure(who=OURS, values=(100.0,), case="bulk", unit="messages/s", axis="peers", note="", **at):
    return Figure(axis, case, who, unit, list(values), at or {"agents": 2000}, note)


def run_of(*figures, facts=FACTS):
    return Run(facts, Plan(), [Outcome("part", "peers", figures=list(figures))])
