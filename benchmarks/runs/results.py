"""Results of one run: the machine, the plan, and the outcome of each part. Kept as JSON, drawn by reports and plots."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.figures import Figure, Plan

VERSION = 1
FILE = "benchmarks.json"


@dataclass
class Outcome:
    """Outcome of one part: its figures, and the reason if it did not finish.

    `failed` is our fault or the peer's and makes the exit code 1; `missing` is a server that this machine has not got.
    """

    name: str
    axis: str
    state: Literal["measured", "failed", "missing"] = "measured"
    why: str = ""
    took_s: float = 0.0
    figures: list[Figure] = field(default_factory=list)


@dataclass
class Run:
    """One run on one machine."""

    machine: dict[str, Any]
    plan: Plan
    outcomes: list[Outcome] = field(default_factory=list)

    def figures(self, axis: str | None = None) -> Iterator[Figure]:
        """Return all figures, or those of an axis."""
        for outcome in self.outcomes:
            yield from (figure for figure in outcome.figures if axis in (None, figure.axis))

    def axes(self) -> list[str]:
        """Return the axes that have figures, as they were measured."""
        return list(dict.fromkeys(figure.axis for figure in self.figures()))

    def trouble(self) -> list[Outcome]:
        """Return the parts that did not finish."""
        return [outcome for outcome in self.outcomes if outcome.state != "measured"]

    @property
    def failed(self) -> bool:
        """Tell whether a part failed."""
        return any(outcome.state == "failed" for outcome in self.outcomes)

    def to_json(self) -> str:
        """Return all of it."""
        return json.dumps({"version": VERSION} | asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Run":
        """Read the output of `to_json`. Raises ValueError for anything else."""
        found = json.loads(text)
        if not isinstance(found, dict) or found.get("version") != VERSION:
            raise ValueError(f"no benchmark results of version {VERSION}")
        outcomes = [
            Outcome(**part | {"figures": [Figure(**each) for each in part["figures"]]}) for part in found["outcomes"]
        ]
        return cls(found["machine"], Plan(**found["plan"]), outcomes)

    def write(self, folder: Path) -> None:
        """Write the JSON atomically: an interrupted write leaves the old file."""
        folder.mkdir(parents=True, exist_ok=True)
        fresh = folder / f".{FILE}.new"
        fresh.write_text(self.to_json())
        fresh.replace(folder / FILE)
