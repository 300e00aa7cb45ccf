"""Health reports of actors, and Ray's facts about them."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ray_messaging.common.task_health import TaskHealth
from ray_messaging.observability.metrics.families import Family

SERVER_ACTOR = "server's actor"  # its name in findings


@dataclass(slots=True)
class Disk:
    """Disk space of a folder, in bytes."""

    path: str
    free: int
    total: int

    @classmethod
    def of(cls, path: str) -> "Disk | None":
        """Return the disk space of a folder, which need not exist yet; None for a URI."""
        if "://" in path:
            return None
        folder = Path(path)
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        usage = shutil.disk_usage(folder)
        return cls(path, usage.free, usage.total)


@dataclass(slots=True)
class Report:
    """An actor's report of its clock (unix s), loops and counters.

    `error` is the reason why it does not work. `remedy` is the action to take; without one the actor retries itself.
    `late` are groups that hold up a step, each with a remedy. `metrics` are counts since the actor's process began.
    """

    now: float
    error: str = ""
    remedy: str = ""
    loops: list[TaskHealth] = field(default_factory=list)
    stats: dict[str, Any] = field(default_factory=dict)
    disk: Disk | None = None
    late: list[tuple[str, str]] = field(default_factory=list)
    metrics: list[Family] = field(default_factory=list)


@dataclass(slots=True)
class ActorFacts:
    """Facts about one actor.

    `name` is interceptor, log, group 'x', or SERVER_ACTOR. `state` is Ray's (ALIVE, RESTARTING, DEAD ...). `why` is the
    reason of a missing report. `skew_s` is its clock minus ours, plus or minus `margin_s`.
    """

    name: str
    report: Report | None = None
    why: str = ""
    state: str = ""
    node: str = ""
    restarts: int = 0
    skew_s: float = 0.0
    margin_s: float = 0.0
