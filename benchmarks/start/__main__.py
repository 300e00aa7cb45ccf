"""Whole programs in fresh processes: plain Ray and ours, by turns in one run.

    python -m benchmarks.start                # about a minute for each round, on 2 cores
    python -m benchmarks.start --rounds 3 --steps 20 --json

Each program starts Ray, runs 20 steps of 1,000 agents in 4 groups, then 20 more, and ends Ray. "processor" is the user
and system time of all of its processes, to a tenth of a second for each. A ratio is that of the two programs in the
same round.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import time

from benchmarks.reports.lines import Line, as_json, ratios, show
from benchmarks.start.processes import Processes

PROGRAMS = {"plain Ray": "plain", "ours": "ours"}
PARTS = ("imports", "ray.init", "Messaging.start", "first run", "second run", "end", "the whole", "processor")
COUNT = "processes"
BEYOND = "second run, beyond its steps"
WHOLE, BEYOND_S = 1.4, 0.3
PR_SET_CHILD_SUBREAPER = 36  # of linux/prctl.h


def measure(program: str, steps: int) -> dict[str, float]:
    """Run a program in a fresh process; return the seconds of its parts. Raises CalledProcessError."""
    began = time.perf_counter()
    command = [sys.executable, "-m", f"benchmarks.start.{program}", str(began), str(steps)]
    with Processes() as processes:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        ended = time.perf_counter()
        _reap()
    parts = json.loads(done.stdout.splitlines()[-1])
    parts["end"] += ended - parts.pop("ended")
    return parts | {"the whole": ended - began, "processor": processes.seconds, "processes": processes.count}


def _reap() -> None:
    """Wait for what the program has left: the next one must not meet it."""
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


def by_turns(steps: int, rounds: int) -> list[Line]:
    """Measure both programs in each round; the first one of a round is the second one of the next."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in PROGRAMS}
    for number in range(rounds):
        for name in list(PROGRAMS) if number % 2 == 0 else reversed(list(PROGRAMS)):
            found[name].append(measure(PROGRAMS[name], steps))
    lines = []
    for part in PARTS:
        for name, values in found.items():
            if part in values[0]:
                lines.append(Line(part, name, "s", [each[part] for each in values]))
    lines += [Line(COUNT, name, "", [each[COUNT] for each in values]) for name, values in found.items()]
    lines.append(Line(BEYOND, "ours", "s", [each[BEYOND] for each in found["ours"]], BEYOND_S))
    for part, most in (("the whole", WHOLE), ("processor", None)):
        mine, theirs = ([each[part] for each in found[name]] for name in ("ours", "plain Ray"))
        lines.append(Line(part, "ours / plain Ray", "x", ratios(mine, theirs), most))
    return lines


def main() -> None:
    """Measure, and print the table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    plan = parser.parse_args()
    # Processes that lose their parent become ours, so that their processor time is counted.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    lines = by_turns(plan.steps, plan.rounds)
    print(as_json(lines)) if plan.json else show(lines, "whole programs, in seconds")


if __name__ == "__main__":
    main()
