"""A table of lines: the values of the rounds of each side, and its target."""

import json
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from rich.table import Table

from benchmarks.reports.screen import console


class Line(NamedTuple):
    """One line of the table: the values of the rounds, and the most, or the least, that their median may be."""

    part: str
    side: str
    unit: str
    values: list[float]
    most: float | None = None
    least: float | None = None

    @property
    def median(self) -> float:
        """Return the median of the rounds."""
        return statistics.median(self.values)

    @property
    def verdict(self) -> str:
        """Tell whether the target is met."""
        if self.most is not None:
            return f"{'met' if self.median <= self.most else 'missed'}: {self.most:g} {self.unit}"
        if self.least is not None:
            return f"{'met' if self.median >= self.least else 'missed'}: at least {self.least:g} {self.unit}"
        return ""


def ratios(mine: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return the ratio of each round."""
    return [one / other for one, other in zip(mine, theirs, strict=True)]


def show(lines: Sequence[Line], title: str) -> None:
    """Print the table."""
    table = Table("part", "side", "median", "spread", "target", title=title)
    for line in lines:
        spread = f"{min(line.values):,.2f} to {max(line.values):,.2f}"
        table.add_row(line.part, line.side, f"{line.median:,.2f} {line.unit}", spread, line.verdict)
    console().print(table)


def as_json(lines: Sequence[Line]) -> str:
    """Return the lines as JSON."""
    return json.dumps([{**line._asdict(), "median": line.median} for line in lines])
