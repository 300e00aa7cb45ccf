"""A run on a terminal: its progress, and at the end its tables."""

import sys
from math import inf

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from benchmarks.figures import OURS, Figure
from benchmarks.reports.markdown import (
    PEERS,
    TITLES,
    bound,
    groups,
    measured,
    plain,
    quotient,
    ranked,
    shown,
    significant,
    unit,
    where,
)
from benchmarks.reports.targets import checked
from benchmarks.runs.results import Outcome, Run
from benchmarks.runs.runner import Watcher

PIPE_WIDTH = 160  # a file or a pipe has no width of its own
STATES = {"measured": "green", "failed": "bold red", "missing": "yellow"}
# How many times better ours is, from which on a cell has this colour.
HEAT = (
    (100.0, "black on green3"),
    (10.0, "black on dark_sea_green2"),
    (1.0, "black on light_yellow3"),
    (0.5, "black on light_salmon1"),
)
COLDEST = "white on red3"


def console(*, stderr: bool = False) -> Console:
    """Make a console: stdout for results, stderr for progress."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else PIPE_WIDTH, highlight=False)


class Showing(Watcher):
    """Progress of a run: a line for each finished part, and on a terminal the current part."""

    def __init__(self, parts: int) -> None:
        self._console, self._parts, self._done, self._figures = console(stderr=True), parts, 0, 0
        self._bar = Progress(
            SpinnerColumn(),
            MofNCompleteColumn(),
            BarColumn(bar_width=20),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=parts)

    def __enter__(self) -> "Showing":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, name: str) -> None:
        """Show the name of the part."""
        self._name, self._figures = name, 0
        self._bar.update(self._task, description=name)

    def seen(self, figure: Figure) -> None:
        """Show the last figure beside the part's name."""
        self._figures += 1
        self._bar.update(self._task, description=f"{self._name}: {figure.case} {shown(figure)} {figure.unit}")

    def end(self, outcome: Outcome) -> None:
        """Leave a line of it on the screen."""
        self._done += 1
        self._bar.update(self._task, completed=self._done)
        line = Text(f"{self._done}/{self._parts} {outcome.name}: ")
        line.append(outcome.state, STATES[outcome.state])
        line.append(f", {len(outcome.figures)} figures, {outcome.took_s:.0f} s{why(outcome)}")
        self._console.print(line)


def why(outcome: Outcome) -> str:
    """Return the reason, with a colon before it."""
    return f": {outcome.why}" if outcome.why else ""


def show(run: Run) -> None:
    """Show each axis, the peers as a heat map, the targets, and the unfinished parts."""
    screen = console()
    for axis in run.axes():
        found = list(run.figures(axis))
        screen.print(heat_map(found) if axis == PEERS else axis_table(axis, found))
    if (targets := targets_table(run)).row_count:
        screen.print(targets)
    for outcome in run.trouble():
        screen.print(Text(f"{outcome.state}: {outcome.name}{why(outcome)}", STATES[outcome.state]))


def axis_table(axis: str, figures: list[Figure]) -> Table:
    """Draw an axis, a row per figure."""
    table = Table(title=f"{axis}: {TITLES.get(axis, '')}")
    for head, side in (
        ("case", "left"),
        ("at", "left"),
        ("", "left"),
        ("median (spread)", "right"),
        ("ours is", "right"),
    ):
        table.add_column(head, justify=side)  # type: ignore[arg-type]
    for (case, point), group in groups(figures).items():
        for who, each in group.items():
            times = quotient(group.get(OURS), each)
            cell = Text("") if times is None else _times(times, each)
            table.add_row(case, where(point), Text(who), f"{shown(each)} {unit(each)}", cell)
    return table


def heat_map(figures: list[Figure]) -> Table:
    """Draw a row per name and size, and a column per case: ours divided by theirs, the better the greener."""
    found = {(each.who, each.at.get("agents", 0), each.case): each for each in figures}
    cases = list(dict.fromkeys(each.case for each in figures))
    table = Table(title="Ours divided by theirs: of messages/s more is better, of ms less")
    table.add_column("agents", justify="right")
    table.add_column("", no_wrap=True)
    for case in cases:
        table.add_column(case, justify="right", no_wrap=True)
    for agents in dict.fromkeys(each.at.get("agents", 0) for each in figures):
        for name in ranked((each for each in figures if each.at.get("agents", 0) == agents), cases[0]):
            cells = [_cell(found.get((name, agents, case)), found.get((OURS, agents, case))) for case in cases]
            table.add_row(plain(agents), Text(name, "bold" if name == OURS else ""), *cells)
        table.add_section()
    return table


def _cell(each: Figure | None, ours: Figure | None) -> Text:
    if each is None:
        return Text("")
    times = quotient(ours, each)
    if times is None:
        return Text(f"{significant(each.median)}{' ms' if each.unit == 'ms' else '/s'}", "bold" if each is ours else "")
    return _times(times, each)


def _times(times: float, each: Figure) -> Text:
    better = times if each.higher_is_better else 1 / times if times else inf
    return Text(f"{significant(times)} x", _heat(better))


def _heat(better: float) -> str:
    return next((style for least, style in HEAT if better >= least), COLDEST)


def targets_table(run: Run) -> Table:
    """Draw the targets that the run measured."""
    every = checked(run.figures())
    found = [each for each in every if each.kept is not None]
    left = f"; {len(every) - len(found)} not measured" if len(found) < len(every) else ""
    table = Table(title=f"Targets{left}")
    for head, side in (("", "left"), ("target", "left"), ("measured", "right"), ("bound", "right")):
        table.add_column(head, justify=side)  # type: ignore[arg-type]
    for each in found:
        mark = Text("yes", "green") if each.kept else Text("NO", "bold red")
        table.add_row(mark, each.target.text, measured(each), bound(each))
    return table
