"""Resources of an experiment over time: memory and descriptors of each process, and keys on the server by kind."""

import os
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from statistics import linear_regression
from typing import Any

import redis
from rich.console import Console

from benchmarks.soak.faults import pid_of
from benchmarks.soak.memory import MIB, resident_mib
from ray_messaging import Messaging
from ray_messaging.interception.interceptor.interceptor import ANSWERS

LOOKS = 60  # of a run
SHOWN = 8  # columns of the table
# Keys that each named messager leaves behind by design, shown by health().
MEANT = {"keys sender": 1, "keys state": 1, "keys mailbox": 1, "keys all": 3}
# Growth in an hour of steady traffic below these is noise: a share of the value at half time, and a minimum.
SHARE = 0.1
LEAST = {"keys": 50.0, "files": 10.0, "": 32.0}


class Held(threading.Thread):
    """A thread that samples all processes and keys of an experiment."""

    def __init__(self, messaging: Messaging, done: Counter[str], seconds: float, console: Console) -> None:
        super().__init__(name="held")
        self._messaging, self._done, self._console = messaging, done, console
        self._every_s = seconds / LOOKS
        self._enough = threading.Event()
        self._times: list[float] = []
        self._seen: dict[str, list[float]] = {}
        config = messaging.redis
        self._client = redis.Redis(host=config.server, port=config.port, password=config.password)
        self._prefix = f"rm:{{{messaging.exp_id}}}:"

    def stop(self) -> None:
        """Look once more, then end."""
        self._enough.set()

    def run(self) -> None:
        """Look until told to stop."""
        began = time.monotonic()
        pids = self._pids()
        while True:
            enough = self._enough.wait(self._every_s if self._times else 1.0)
            self._look(pids, time.monotonic() - began)
            if enough:
                return

    def _pids(self) -> dict[str, int | None]:
        messaging = self._messaging
        pids = {f"group {group.name}": pid_of(group.actor) for group in messaging.groups()}
        pids |= {"interceptor": pid_of(messaging.interceptor), "log": pid_of(messaging.log_actor)}
        pids["server"] = int(self._client.info("server")["process_id"])
        return pids | {"driver": os.getpid()}

    def _look(self, pids: dict[str, int | None], at_s: float) -> None:
        seen: dict[str, float] = {}
        for name, pid in pids.items():
            with suppress(OSError):
                if pid is not None:
                    seen[name] = resident_mib(pid)
                    seen[f"files {name}"] = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        kinds = self._kinds()
        seen["server's data"] = int(self._client.info("memory")["used_memory"]) / MIB
        kept = self._messaging.stats()["kept"]
        seen["answers"] = kept.pop(ANSWERS) / MIB
        seen["kept entries"] = sum(kept.values())
        seen |= {f"keys {kind}": count for kind, count in kinds.items()} | {"keys all": kinds.total()}
        for name in seen.keys() | self._seen.keys():
            self._seen.setdefault(name, [0.0] * len(self._times)).append(seen.get(name, 0.0))
        self._times.append(at_s)
        resident = ", ".join(f"{name} {seen[name]:.0f}" for name in pids if name in seen)
        self._console.print(
            f"{at_s / 60:5.1f} min: {resident} MiB; {kinds.total():,} keys; {sum(self._done.values()):,} operations",
            highlight=False,
        )

    def _kinds(self) -> Counter[str]:
        keys = self._client.scan_iter(count=1000)
        return Counter(key.decode().removeprefix(self._prefix).partition(":")[0] for key in keys)

    def count(self) -> int:
        """Return how many keys there are."""
        return self._kinds().total()

    def report(self) -> dict[str, Any]:
        """Return the values of each resource over time, its growth in the second half, and the unexpected growth."""
        picked = sorted({round(at * (len(self._times) - 1) / (SHOWN - 1)) for at in range(SHOWN)})
        rows = {
            name: {"values": [values[at] for at in picked], "per_hour": _per_hour(self._times, values)}
            for name, values in sorted(self._seen.items(), key=lambda item: _order(item[0]))
        }
        names = 3600 * self._done["named messagers"] / max(1.0, self._times[-1])
        growing = [
            name
            for name, row in rows.items()
            if row["per_hour"] > _noise(name, row) + 1.1 * names * MEANT.get(name, 0) and name != "kept entries"
        ]
        return {"columns": [f"{self._times[at] / 60:.0f}" for at in picked], "rows": rows, "growing": growing}


def _per_hour(times: list[float], values: list[float]) -> float:
    """Return how much would come in an hour, as the second half goes."""
    half = len(times) // 2
    if len(times) - half < 2:
        return 0.0
    return 3600 * linear_regression(times[half:], values[half:]).slope


def _noise(name: str, row: dict[str, Any]) -> float:
    kind = name.split(" ", maxsplit=1)[0]
    return max(LEAST.get(kind, LEAST[""]), SHARE * float(row["values"][len(row["values"]) // 2]))


def _order(name: str) -> tuple[int, str]:
    return (name.startswith("files"), name) if not name.startswith("keys") else (2, name)
