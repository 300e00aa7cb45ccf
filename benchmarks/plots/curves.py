"""Curves: the rate along an axis."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.figures import OURS, Figure
from benchmarks.plots.style import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, canvas, save, short
from benchmarks.runs.results import Run

PAINTS = (BLUE, ORANGE, GREEN, PURPLE, SKY, GREY)
MARKERS = ("o", "s", "^", "D", "v", "P")


class Line(NamedTuple):
    """One plot: its axis, the place on it, the cases drawn, and its words."""

    axis: str
    place: str
    cases: tuple[str, ...]
    label: str
    title: str
    unit: str = "messages/s"


LINES = (
    Line("agents", "agents", ("bulk", "awaited"), "agents", "Rate from 200 agents to a million"),
    Line("groups", "groups", ("bulk",), "groups on this machine", "Rate over the number of groups"),
    Line("payload", "bytes", ("bulk", "awaited"), "bytes of a payload", "Rate over the size of a payload"),
    Line("payload", "bytes", ("volume",), "bytes of a payload", "Volume over the size of a payload", "MB/s"),
    Line("fan_out", "recipients", ("bulk",), "recipients of one payload", "Rate over the fan-out"),
    Line("workers", "workers", ("bulk",), "Ray tasks that drive the groups", "Rate over the number of workers"),
)


def draw(run: Run, folder: Path) -> list[Path]:
    """Draw every curve that has two points."""
    folder.mkdir(parents=True, exist_ok=True)
    return [_line(curves, folder, line) for line in LINES if (curves := _curves(run, line))]


def _curves(run: Run, line: Line) -> dict[tuple[str, str], list[Figure]]:
    found: dict[tuple[str, str], list[Figure]] = {}
    for each in run.figures(line.axis):
        if each.case in line.cases and isinstance(each.at.get(line.place), int | float) and each.unit == line.unit:
            found.setdefault((each.who, each.case), []).append(each)
    for points in found.values():
        points.sort(key=lambda each: each.at[line.place])
    return {name: points for name, points in found.items() if len(points) > 1}


def _line(curves: dict[tuple[str, str], list[Figure]], folder: Path, line: Line) -> Path:
    """Draw curves, the spread of each as a band."""
    drawing, axes = canvas(5.0)
    panel = axes[0][0]
    for number, ((who, case), points) in enumerate(curves.items()):
        paint, marker = PAINTS[number % len(PAINTS)], MARKERS[number % len(MARKERS)]
        places = [point.at[line.place] for point in points]
        name = who if len({case for _, case in curves}) == 1 else f"{who}, {case}"
        style = "-" if who == OURS else "--"
        panel.plot(places, [p.median for p in points], style, marker=marker, color=paint, lw=2.5, ms=8, label=name)
        panel.fill_between(places, [p.low for p in points], [p.high for p in points], color=paint, alpha=0.2, lw=0)
        _label(panel, points, line, curves.values())
    _scale(panel, list(curves.values()), line)
    panel.set(xlabel=line.label, ylabel=f"{line.unit} received")
    if len(curves) > 1:
        panel.legend(frameon=False, loc="best")
    scale = "; log scale" if panel.get_yscale() == "log" else ""
    name = line.axis if line.unit == "messages/s" else f"{line.axis}-volume"
    return save(drawing, folder / f"{name}.png", f"{line.title} (higher is better{scale})")


def _label(panel: Any, points: list[Figure], line: Line, curves: Iterable[list[Figure]]) -> None:
    """Write the rates at a curve's points: above the highest curve, below the others."""
    every = [each for curve in curves for each in curve]
    for point in points:
        at = point.at[line.place]
        highest = max(each.median for each in every if each.at[line.place] == at)
        words = {"textcoords": "offset points", "ha": "center", "fontsize": 10}
        panel.annotate(short(point.median), (at, point.median), (0, 10 if point.median == highest else -18), **words)


def _scale(panel: Any, curves: Sequence[list[Figure]], line: Line) -> None:
    """Show the places that were measured; the rates from 0, or by powers of ten where they differ by more than one."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    figures = [point for points in curves for point in points]
    places = sorted({float(point.at[line.place]) for point in figures})
    panel.set_xscale("log")
    panel.set_xticks(places, [short(place) for place in places])
    panel.xaxis.set_minor_locator(NullLocator())
    low, high = min(point.low for point in figures), max(point.high for point in figures)
    if low > 0 and high > 10 * low:
        panel.set_yscale("log")
        panel.set_ylim(low / 4, high * 3)
    else:
        panel.set_ylim(0, high * 1.2)
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    panel.grid(axis="y", alpha=0.3)
