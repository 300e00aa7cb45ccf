"""A contagion by thresholds beside Mesa: whole programs in fresh processes, by turns.

    python -m benchmarks.contagion                # about ten seconds for each round, on 2 cores
    python -m benchmarks.contagion --rounds 3 --json

20,000 agents tell eight friends each once they are active, which are 160,000 messages in 40 steps. Both programs must
come to the same agents at the same steps. "memory" is the peak of each of a program's processes, added up. A ratio is
that of the two programs in the same round. Mesa is in the environment of `python -m benchmarks peers`, or in this one.
"""

import argparse
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from benchmarks.reports.lines import Line, as_json, ratios, show
from benchmarks.setup.environments import FOLDER, python

PROGRAMS = {"Mesa": "mesa_side", "ours": "ours"}
LOOK_S = 0.02
WALL, MEMORY = 1.5, 1.5


class Measured(NamedTuple):
    """What a program printed, its seconds, those of its processors, and its megabytes at the peak."""

    printed: str
    wall: float
    processor: float
    memory: float


def measure(program: str, executable: str | Path) -> Measured:
    """Run a module in a fresh process. Raises CalledProcessError."""
    command = [str(executable), "-m", program]
    began, peaks = time.perf_counter(), dict[int, int]()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        while not (ended := os.wait4(running.pid, os.WNOHANG))[0]:
            peaks |= _peaks(running.pid)
            time.sleep(LOOK_S)
        seconds = time.perf_counter() - began
        running.returncode = os.waitstatus_to_exitcode(ended[1])
        printed = running.stdout.read()
    if running.returncode:
        raise subprocess.CalledProcessError(running.returncode, command)
    return Measured(printed, seconds, ended[2].ru_utime + ended[2].ru_stime, sum(peaks.values()) / 1024)


def _peaks(program: int) -> dict[int, int]:
    """Return the peak of the memory of a process and of each process below it, in KB."""
    parents, found = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                status = dict(line.split(":\t", 1) for line in (folder / "status").read_text().splitlines())
                parents[int(folder.name)] = int(status["PPid"])
                found[int(folder.name)] = int(status["VmHWM"].split()[0])
            except (OSError, KeyError):  # it has just ended, or is a thread of the kernel
                continue
    return {process: peak for process, peak in found.items() if program in _line(process, parents)}


def _line(process: int, parents: dict[int, int]) -> list[int]:
    """Return a process, its parent, the parent of that, and so on."""
    found = [process]
    while found[-1] in parents:
        found.append(parents[found[-1]])
    return found


def by_turns(rounds: int, mesa: str | Path) -> list[Line]:
    """Measure both programs in each round; the first one of a round is the second one of the next."""
    found: dict[str, list[Measured]] = {name: [] for name in PROGRAMS}
    for number in range(rounds):
        for name in list(PROGRAMS) if number % 2 == 0 else reversed(list(PROGRAMS)):
            found[name].append(
                measure(f"benchmarks.contagion.{PROGRAMS[name]}", mesa if name == "Mesa" else sys.executable)
            )
    if len({each.printed for values in found.values() for each in values}) > 1:
        raise RuntimeError(f"the programs differ: {found}")
    lines = []
    for part, unit, limit in (("wall", "s", WALL), ("processor", "s", None), ("memory", "MB", MEMORY)):
        taken = {name: [getattr(each, part) for each in values] for name, values in found.items()}
        lines += [Line(part, name, unit, values) for name, values in taken.items()]
        lines.append(Line(part, "ours / Mesa", "x", ratios(taken["ours"], taken["Mesa"]), limit))
    return lines


def main() -> None:
    """Measure, and print the table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--envs", type=Path, default=FOLDER)
    parser.add_argument("--json", action="store_true")
    plan = parser.parse_args()
    lines = by_turns(plan.rounds, sys.executable if find_spec("mesa") else python(plan.envs, "mesa"))
    print(as_json(lines)) if plan.json else show(lines, "a contagion, whole programs")


if __name__ == "__main__":
    main()
