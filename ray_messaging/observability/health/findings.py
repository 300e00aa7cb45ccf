"""Findings of a health check with levels and remedies, and the reports of actors from which findings are made."""

import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ray_messaging.common.notebook import html_table
from ray_messaging.common.task_health import TaskHealth
from ray_messaging.observability.metrics.families import Family

Level = Literal["ok", "warning", "critical"]
LEVELS: tuple[Level, ...] = ("ok", "warning", "critical")
SHOWN = 20  # how many findings of one kind are shown at most


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a health check.

    `what` names the thing that was checked, and `value` says how it is. `level` is "ok", "warning" or "critical". If it
    is not "ok", `remedy` says what to do.
    """

    level: Level
    what: str
    value: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.level}: {self.what}: {self.value}" + (f" -> {self.remedy}" if self.remedy else "")


ok = partial(Finding, "ok")  # nothing needs to be done
warning = partial(Finding, "warning")  # there will be harm if the state continues, or if something else fails, too
critical = partial(Finding, "critical")  # harm is being done now


@dataclass(frozen=True)
class Health:
    """The results of a health check of an experiment or a server.

    `subject` is a text that names the experiment or server, and `findings` is a list with a Finding for each thing that
    was checked.
    """

    subject: str
    findings: list[Finding] = field(default_factory=list)

    @property
    def level(self) -> Level:
        """Return the level of the worst finding: "ok", "warning" or "critical"."""
        return max((finding.level for finding in self.findings), key=LEVELS.index, default="ok")

    @property
    def ok(self) -> bool:
        """Return whether every finding is ok."""
        return self.level == "ok"

    @property
    def problems(self) -> list[Finding]:
        """Return the findings that are not ok, worst first."""
        return [finding for finding in worst_first(self.findings) if finding.level != "ok"]

    def of(self, what: str) -> list[Finding]:
        """Return the findings whose `what` is the given text."""
        return [finding for finding in self.findings if finding.what == what]

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON's types with the keys subject, level, ok and findings."""
        return {
            "subject": self.subject,
            "level": self.level,
            "ok": self.ok,
            "findings": [asdict(finding) for finding in self.findings],
        }

    def __repr__(self) -> str:
        if self.ok:
            return f"Health of {self.subject}: ok, {len(self.findings)} checks"
        problems = self.problems
        return "\n".join([f"Health of {self.subject}: {self.level}", *(f"  {problem}" for problem in problems)])

    def _repr_html_(self) -> str:
        findings = worst_first(self.findings)
        columns = {
            name: [getattr(finding, name) for finding in findings] for name in ("level", "what", "value", "remedy")
        }
        return html_table(f"Health of {self.subject}: {self.level}", columns, len(findings), whole=True)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings sorted by level, the worst first. Findings of the same level keep their order."""
    return sorted(findings, key=lambda finding: -LEVELS.index(finding.level))


def first_of(problems: Iterable[Finding], what: str) -> list[Finding]:
    """Return the worst problems, at most SHOWN. If others are left out, a last finding named `what` counts them."""
    found = worst_first(problems)
    if len(found) > SHOWN:
        others = f"{len(found) - SHOWN} more such findings"
        found[SHOWN:] = [warning(what, others, "fix the findings above, then check again")]
    return found


WARNING_SHARE, CRITICAL_SHARE = 0.80, 0.95


def usage_of_limit(what: str, used: int, limit: int, shown: Callable[[int], str], remedy: str) -> Finding:
    """Build a finding about how much of a limit is used.

    From 80% on the finding is a warning, and from 95% on it is critical.

    Args: `shown` is a function that formats an amount for people.
    """
    share = used / max(1, limit)
    text = f"{shown(used)} of {shown(limit)} ({share:.0%})"
    if share >= CRITICAL_SHARE:
        return critical(what, text, remedy)
    return warning(what, text, remedy) if share >= WARNING_SHARE else ok(what, text)


def in_bytes(count: int) -> str:
    """Format a number of bytes with a suitable unit."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


SERVER_ACTOR = "server's actor"  # the name of the embedded server's actor in findings


@dataclass(slots=True)
class Disk:
    """The free and the total space of a folder's disk, in bytes."""

    path: str
    free: int
    total: int

    @classmethod
    def of(cls, path: str) -> "Disk | None":
        """Return the free and the total space of a path's disk; None if the path is a URI.

        The path need not exist yet.
        """
        if "://" in path:
            return None
        folder = Path(path)
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        usage = shutil.disk_usage(folder)
        return cls(path, usage.free, usage.total)


@dataclass(slots=True)
class Report:
    """An actor's report: the time by its clock (unix seconds), its background loops, and its counters.

    `error` is the reason why the actor does not work ("": it works). `remedy` says what to do about the error; if it is
    "", the actor retries by itself. `late` lists the groups for which a step waits, and `held` the handles that commit
    too late, each with a remedy. `metrics` are counts since the actor's process began.
    """

    now: float
    error: str = ""
    remedy: str = ""
    loops: list[TaskHealth] = field(default_factory=list)
    stats: dict[str, Any] = field(default_factory=dict)
    disk: Disk | None = None
    late: list[tuple[str, str]] = field(default_factory=list)
    held: list[tuple[str, str]] = field(default_factory=list)
    metrics: list[Family] = field(default_factory=list)


@dataclass(slots=True)
class ActorFacts:
    """Facts about one actor.

    `name` is "interceptor", "log", "group 'x'" or SERVER_ACTOR. `state` is what Ray reports, such as ALIVE, RESTARTING
    or DEAD. `why` says why there is no report. `skew_s` is the actor's clock minus this process's clock, exact to
    within `margin_s`. If an actor has no report, `where` is the host of its node, and `cut_off_from` names the hosts
    that cannot connect to that host ("": all hosts can).
    """

    name: str
    report: Report | None = None
    why: str = ""
    state: str = ""
    node: str = ""
    restarts: int = 0
    skew_s: float = 0.0
    margin_s: float = 0.0
    where: str = ""
    cut_off_from: str = ""
