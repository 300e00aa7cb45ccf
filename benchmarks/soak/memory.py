"""Memory of each process during the run."""

import os
import threading
from contextlib import suppress
from pathlib import Path
from statistics import median

import redis

from benchmarks.soak.faults import Faults, pid_of
from ray_messaging import Messaging

EVERY_S = 2.0
MIB = 2**20


def resident_mib(pid: int) -> float:
    """Return the memory that a process holds, in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


class Memory(threading.Thread):
    """Look at every process of an experiment every two seconds."""

    def __init__(self, messaging: Messaging, faults: Faults) -> None:
        super().__init__(name="memory")
        self.seen: dict[str, list[float]] = {}
        self._messaging, self._faults = messaging, faults
        self._enough = threading.Event()

    def stop(self) -> None:
        """Look no more."""
        self._enough.set()

    def run(self) -> None:
        """Look until told to stop."""
        while not self._enough.wait(EVERY_S):
            found = {f"group {group.name}": pid_of(group.actor) for group in self._messaging.groups()}
            found["interceptor"] = pid_of(self._messaging.interceptor)
            with suppress(redis.RedisError):
                found["server"] = self._faults.server_pid()
            for name, pid in (found | {"driver": os.getpid()}).items():
                with suppress(OSError):
                    if pid is not None:
                        self.seen.setdefault(name, []).append(resident_mib(pid))

    def figures(self) -> dict[str, dict[str, float]]:
        """Return of each process its median in the second and in the last quarter of the run, and its most, in MiB."""
        figures = {}
        for name, values in self.seen.items():
            quarter = max(1, len(values) // 4)
            figures[name] = {
                "second_quarter": median(values[quarter : 2 * quarter] or values),
                "last_quarter": median(values[-quarter:]),
                "most": max(values),
            }
        return figures
