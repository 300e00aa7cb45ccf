"""A sweep of twelve runs beside Mesa's: whole programs in fresh processes, by turns.

    python -m benchmarks.sweeps                # about a minute for each round, on 2 cores
    python -m benchmarks.sweeps --rounds 2 --json

The runs are those of `python -m benchmarks.contagion`, each with another number of agents that begin. Ours is
`batch_run` with two workers, Mesa's its `batch_run` with a pool of two processes, and "pool" is `ray_messaging.run` in
a plain pool of two, which shows what a study costs besides its runs. In all of them agents must become active at the
same steps. "memory" is the peak of each of a program's processes, added up. A ratio is that of two programs in the same
round.
"""

import argparse
import json
import sys
from importlib.util import find_spec
from pathlib import Path

from benchmarks.contagion.__main__ import Measured, measure
from benchmarks.reports.lines import Line, as_json, ratios, show
from benchmarks.setup.environments import FOLDER, python

PROGRAMS = {"Mesa": "mesa_side", "pool": "pool_side", "ours": "ours"}
WALL, MEMORY = 1.0, 1.5


def by_turns(rounds: int, mesa: str | Path) -> list[Line]:
    """Measure all programs in each round, in the order of the round before turned round."""
    found: dict[str, list[Measured]] = {name: [] for name in PROGRAMS}
    for number in range(rounds):
        for name in list(PROGRAMS) if number % 2 == 0 else reversed(list(PROGRAMS)):
            executable = mesa if name == "Mesa" else sys.executable
            found[name].append(measure(f"benchmarks.sweeps.{PROGRAMS[name]}", executable))
    # A pool's runs end in any order.
    if len({repr(sorted(json.loads(each.printed).items())) for values in found.values() for each in values}) > 1:
        raise RuntimeError(f"the programs differ: {found}")
    lines = []
    for part, unit, limit in (("wall", "s", WALL), ("processor", "s", None), ("memory", "MB", MEMORY)):
        taken = {name: [getattr(each, part) for each in values] for name, values in found.items()}
        lines += [Line(part, name, unit, values) for name, values in taken.items()]
        lines.append(Line(part, "ours / Mesa", "x", ratios(taken["ours"], taken["Mesa"]), limit))
        lines.append(Line(part, "ours / pool", "x", ratios(taken["ours"], taken["pool"])))
    return lines


def main() -> None:
    """Measure, and print the table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--envs", type=Path, default=FOLDER)
    parser.add_argument("--json", action="store_true")
    plan = parser.parse_args()
    lines = by_turns(plan.rounds, sys.executable if find_spec("mesa") else python(plan.envs, "mesa"))
    print(as_json(lines)) if plan.json else show(lines, "a sweep of twelve runs, whole programs")


if __name__ == "__main__":
    main()
