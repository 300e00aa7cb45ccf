"""What is found wrong, or well, and what to do about it."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Level = Literal["ok", "warning", "critical"]
LEVELS: tuple[Level, ...] = ("ok", "warning", "critical")


@dataclass(frozen=True, slots=True)
class Finding:
    """Say of one thing how it is (`value`), whether that is well (`level`), and what to do where it is not."""

    level: Level
    what: str
    value: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.level}: {self.what}: {self.value}" + (f" -> {self.remedy}" if self.remedy else "")


def ok(what: str, value: str) -> Finding:
    """Find that something is well."""
    return Finding("ok", what, value)


def warning(what: str, value: str, remedy: str) -> Finding:
    """Find something that will do harm if it goes on, or if something else fails."""
    return Finding("warning", what, value, remedy)


def critical(what: str, value: str, remedy: str) -> Finding:
    """Find something that does harm now."""
    return Finding("critical", what, value, remedy)


@dataclass(frozen=True)
class Health:
    """Hold what was found; `subject` says of what. It is ok where every finding is."""

    subject: str
    findings: list[Finding] = field(default_factory=list)

    @property
    def level(self) -> Level:
        """Return the level of the worst finding."""
        return max((finding.level for finding in self.findings), key=LEVELS.index, default="ok")

    @property
    def ok(self) -> bool:
        """Tell whether there is nothing to do."""
        return self.level == "ok"

    @property
    def problems(self) -> list[Finding]:
        """Return the findings that are not ok, the worst first."""
        return [finding for level in reversed(LEVELS[1:]) for finding in self.findings if finding.level == level]

    def of(self, what: str) -> list[Finding]:
        """Return the findings about one thing."""
        return [finding for finding in self.findings if finding.what == what]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON takes it."""
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


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings by level, in their order else."""
    return sorted(findings, key=lambda finding: -LEVELS.index(finding.level))
