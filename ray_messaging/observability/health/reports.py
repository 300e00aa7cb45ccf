"""What an actor says of itself, and what Ray says of it."""

from dataclasses import dataclass, field
from typing import Any

from ray_messaging.common.task_health import TaskHealth

SERVER_ACTOR = "server's actor"  # its name in findings


@dataclass(slots=True)
class Disk:
    """Say how much room a folder has, in bytes."""

    path: str
    free: int
    total: int


@dataclass(slots=True)
class Report:
    """Be an actor's answer: its clock (unix s), its loops and counters; `error` says why it does not work.

    `remedy` is what to do about that, where it is not that it tries again by itself.
    """

    now: float
    error: str = ""
    remedy: str = ""
    loops: list[TaskHealth] = field(default_factory=list)
    stats: dict[str, Any] = field(default_factory=dict)
    disk: Disk | None = None


@dataclass(slots=True)
class ActorFacts:
    """What was learned of one actor.

    `name`: interceptor, log, group 'x', or SERVER_ACTOR. `state` is Ray's word (ALIVE, RESTARTING, DEAD ...), `why`
    says what happened to one that did not answer. `skew_s`: its clock minus ours, give or take `margin_s`.
    """

    name: str
    report: Report | None = None
    why: str = ""
    state: str = ""
    node: str = ""
    restarts: int = 0
    skew_s: float = 0.0
    margin_s: float = 0.0
