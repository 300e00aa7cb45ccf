"""Measure ours and a peer in alternation; figures as JSON lines on stdout.

    python -m benchmarks.runs.turns < job, as JSON: agents, rounds, tasks, sides: each who, command, and a driver's job

A shared machine can be twice as fast some minutes later. Measurements within seconds meet the same machine, so the
ratio of a round says more than the two rates. Each side has processes and servers of its own; during the turn of one
the other's processes are frozen. The order changes with each round (A B, B A, ...), which cancels drift.
"""

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.figures import TURNS, Figure, Task, emit
from benchmarks.runs.side import Side

FIRST_WARM_S = 1.0  # in the first turn; later a short one fills caches and renews leases


def by_turns(sides: Sequence[Side], task: Task, rounds: int, agents: int) -> Iterator[Figure]:
    """Have both sides do a task in alternation; return the figures of both, a value per round and repetition."""
    told: dict[str, list[list[Figure]]] = {side.who: [] for side in sides}
    for number in range(rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            with side.awake():
                told[side.who].append(side.ask((task if number else replace(task, warm_s=FIRST_WARM_S)).to_json()))
    at: dict[str, int | float | str] = {"agents": agents, "beside": sides[1].who}
    for who, answers in told.items():
        for figures in zip(*answers, strict=True):
            values = [value for each in figures for value in each.values]
            note = "; ".join(
                dict.fromkeys(filter(None, (words for each in figures for words in each.note.split("; "))))
            )
            yield Figure(TURNS, figures[0].case, who, figures[0].unit, values, at, note)


def measure(job: dict[str, Any]) -> Iterator[Figure]:
    """Start both sides, one after the other, and measure task after task."""
    ours, theirs = (Side(side["who"], side["command"], json.dumps(side["job"])) for side in job["sides"])
    with ours, theirs:
        for task in job["tasks"]:
            yield from by_turns((ours, theirs), Task(**task), job["rounds"], job["agents"])


def main() -> None:
    """Do the job on stdin."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that SIGTERM ends both sides
    for figure in measure(json.loads(sys.stdin.read())):
        emit(figure)


if __name__ == "__main__":
    main()
