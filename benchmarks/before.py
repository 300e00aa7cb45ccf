"""Two commits of ray_messaging, by turns in one run: has a change made the way of a message slower?

    git worktree add ../before COMMIT     # and an environment with that ray_messaging
    python -m benchmarks.before ../before --python ../before/.venv/bin/python     # about 2 minutes

Each side has processes and servers of its own, which are frozen during the other's turn. A ratio is that of the two
turns of a round: of rates, above 1, and of times, below 1, this checkout is the better one.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.figures import OURS, Figure, Task
from benchmarks.reports.lines import Line, as_json, ratios, show
from benchmarks.runs.parts import TURN_PINGS, WARM_AGAIN_S
from benchmarks.runs.turns import measure


def _side(who: str, checkout: Path, python: Path, agents: int) -> dict[str, object]:
    command = ["env", "-C", str(checkout), str(python.absolute()), "-m", "benchmarks.runs.driver"]
    return {"who": who, "command": command, "job": {"peer": OURS, "agents": agents, "server": None}}


def _lines(now: Figure, before: Figure) -> list[Line]:
    times = ratios(now.values, before.values)
    return [
        Line(now.case, "this checkout", now.unit, now.values),
        Line(now.case, "the other", before.unit, before.values),
        Line(now.case, "ratio", "times", times),
    ]


def main() -> None:
    """Measure, and print the table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="folder of the other commit")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="of the other commit's environment")
    parser.add_argument("--agents", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=10, help="even, so that both begin equally often")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a rate, in a turn")
    parser.add_argument("--json", action="store_true")
    plan = parser.parse_args()
    tasks = [vars(Task((kind,), plan.seconds, 1, TURN_PINGS, WARM_AGAIN_S)) for kind in ("bulk", "awaited", "lone")]
    here = _side("this checkout", Path(__file__).parents[1], Path(sys.executable), plan.agents)
    other = _side("the other", plan.checkout, plan.python, plan.agents)
    job = {"agents": plan.agents, "rounds": plan.rounds, "tasks": tasks, "sides": [here, other]}
    figures: dict[str, list[Figure]] = {}
    for figure in measure(job):
        figures.setdefault(figure.case, []).append(figure)
    lines = [line for now, before in figures.values() for line in _lines(now, before)]
    if plan.json:
        print(as_json(lines))
    else:
        show(lines, "Before and now")


if __name__ == "__main__":
    main()
