"""Findings of a health check: each with a level, and a remedy where one is needed."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ray_messaging.common.notebook import html_table

Level = Literal["ok", "warning", "critical"]
LEVELS: tuple[Level, ...] = ("ok", "warning", "critical")


@dataclass(frozen=True, slots=True)
class Finding:
    """The state (`value`) of one subject, its level, and a remedy where it is not ok."""

    level: Level
    what: str
    value: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.level}: {self.what}: {self.value}" + (f" -> {self.remedy}" if self.remedy else "")


def ok(what: str, value: str) -> Finding:
    """Build a finding with nothing to do."""
    return Finding("ok", what, value)


def warning(what: str, value: str, remedy: str) -> Finding:
    """Build a finding about future harm: if it continues, or if something else fails."""
    return Finding("warning", what, value, remedy)


def critical(what: str, value: str, remedy: str) -> Finding:
    """Build a finding about present harm."""
    return Finding("critical", what, value, remedy)


@dataclass(frozen=True)
class Health:
    """All findings about a subject; ok where every finding is ok."""

    subject: str
    findings: list[Finding] = field(default_factory=list)

    @property
    def level(self) -> Level:
        """Return the level of the worst finding."""
        return max((finding.level for finding in self.findings), key=LEVELS.index, default="ok")

    @property
    def ok(self) -> bool:
        """Return whether every finding is ok."""
        return self.level == "ok"

    @property
    def problems(self) -> list[Finding]:
        """Return the findings that are not ok, worst first."""
        return [finding for level in reversed(LEVELS[1:]) for finding in self.findings if finding.level == level]

    def of(self, what: str) -> list[Finding]:
        """Return the findings about one subject."""
        return [finding for finding in self.findings if finding.what == what]

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for JSON."""
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
    """Sort findings by level, stably."""
    return sorted(findings, key=lambda finding: -LEVELS.index(finding.level))
