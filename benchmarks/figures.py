"""Plans and tasks of a measurement, and its figures: one JSON line each.

Standard library only: the peers import it in environments that hold nothing of ours.
"""

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

OURS = "ray_messaging"
LIMIT = "limit: "  # how the name of a limit begins
TURNS = "turns"  # the axis on which ours and a peer take turns: value by value they belong together
NOT_HERE = 77  # exit code of a measurement that lacks an optional program, which its last line names
DONE = "done"  # the line with which a driver ends an answer
HIGHER_IS_BETTER = {"messages/s": True, "MB/s": True} | dict.fromkeys(
    ("ms", "us", "s", "bytes", "bytes/agent", "bytes/message", "messages"), False
)


@dataclass(frozen=True)
class Figure:
    """One measured figure: axis, case, system (`who`) and repetitions; `at` is the point on the axis.

    Figures of the same axis, case and point are shown together, with ratios to ours.
    """

    axis: str
    case: str
    who: str
    unit: str
    values: list[float]
    at: dict[str, int | float | str] = field(default_factory=dict)
    note: str = ""

    def __post_init__(self) -> None:
        """Refuse an unknown unit, and values that are not finite. Raises ValueError."""
        if self.unit not in HIGHER_IS_BETTER:
            raise ValueError(f"{self.case}: unit {self.unit!r} is none of {', '.join(HIGHER_IS_BETTER)}")
        if not self.values or not all(math.isfinite(value) for value in self.values):
            raise ValueError(f"{self.axis} / {self.case} / {self.who}: values {self.values!r} are no finite numbers")

    @property
    def median(self) -> float:
        """Return the median of the repetitions."""
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        """Return the lowest repetition."""
        return min(self.values)

    @property
    def high(self) -> float:
        """Return the highest repetition."""
        return max(self.values)

    @property
    def higher_is_better(self) -> bool:
        """Return whether more of the unit is better."""
        return HIGHER_IS_BETTER[self.unit]

    @property
    def is_limit(self) -> bool:
        """Return whether this is a limit of the machine rather than the rate of a system."""
        return self.who.startswith(LIMIT)

    def to_json(self) -> str:
        """Return the figure as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> "Figure":
        """Read a line; raises ValueError where it is no figure."""
        return cls(**_fields(line, "axis"))


@dataclass(frozen=True)
class Plan:
    """How long and how often to measure; `quick` takes fewer points, too."""

    quick: bool = False
    seconds: float = 2.0
    repeats: int = 3

    @classmethod
    def of(cls, quick: bool) -> "Plan":  # noqa: FBT001 - one word says it
        """Make the usual plan."""
        return cls(quick=True, seconds=0.7, repeats=1) if quick else cls()

    def to_json(self) -> str:
        """Return the plan as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> "Plan":
        """Read a line; raises ValueError where it is no plan."""
        return cls(**_fields(line, "quick"))


@dataclass(frozen=True)
class Task:
    """One task of a driver: some kinds of measurement, each `repeats` times.

    A repetition is `seconds` of a rate, or `pings` lone messages; before the first, `warm_s` of a rate are not counted.
    """

    kinds: Sequence[str]
    seconds: float
    repeats: int
    pings: int
    warm_s: float

    def to_json(self) -> str:
        """Return the task as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> "Task":
        """Read a line; raises ValueError where it is no task."""
        return cls(**_fields(line, "kinds"))


def paired(ours: Figure, theirs: Figure) -> list[float]:
    """Divide each repetition of ours by theirs of the same round; nothing where they took no turns, or one is 0."""
    if not ours.axis == theirs.axis == TURNS or 0 in theirs.values:
        return []
    return [mine / other for mine, other in zip(ours.values, theirs.values, strict=True)]


def _fields(line: str, needed: str) -> dict[str, Any]:
    found = json.loads(line)
    if not isinstance(found, dict) or needed not in found:
        raise ValueError(f"expected a JSON object with {needed!r}, not {line[:100]!r}")
    return found


def emit(figure: Figure) -> None:
    """Print the figure for the runner, which reads our stdout line by line."""
    print(figure.to_json(), flush=True)


def percentile_figures(
    axis: str, took: dict[str, list[list[float]]], at: dict[str, int | float | str], prefix: str = "", *wanted: str
) -> Iterator[Figure]:
    """Yield percentiles of samples in ms: of each system, over its repetitions."""
    for case in wanted or ("p50", "p99", "p99.9"):
        for who, repeats in took.items():
            values = [percentiles(sample, float(case[1:]))[0] for sample in repeats]
            yield Figure(axis, prefix + case, who, "ms", values, at)


def percentiles(values: Sequence[float], *wanted: float) -> list[float]:
    """Return percentiles (0 to 100) of a sample, by the nearest rank above."""
    ordered = sorted(values)
    return [ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] for percent in wanted]
