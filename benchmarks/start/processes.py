"""Processor time of all processes that a program starts."""

import os
import threading
from pathlib import Path
from typing import Self

from benchmarks.axes.cost.processor import TICKS_PER_S

LOOK_S = 0.1


class Processes:
    """The processes below this one, and their processor time, by looks at /proc.

    Ray's daemons do not wait for their workers, so that no parent is told what these took.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[int, int], float] = {}  # by process id and time of the start: ids are used again
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def seconds(self) -> float:
        """Return the processor time of all of them until the last look at each."""
        return sum(self._found.values())

    @property
    def count(self) -> int:
        """Return how many there were, but for those that lived for less than a look."""
        return len(self._found)

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_S):
            self._look()

    def _look(self) -> None:
        stats = {int(entry.name): _stat(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
        ours = {os.getpid()}
        while more := {pid for pid, fields in stats.items() if fields and int(fields[1]) in ours} - ours:
            ours |= more
        for pid in ours - {os.getpid()}:
            fields = stats[pid]
            self._found[pid, int(fields[19])] = (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def _stat(entry: Path) -> list[str]:
    """Return the fields of a process behind its name, as in proc(5); none for one that has just ended."""
    try:
        return (entry / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
