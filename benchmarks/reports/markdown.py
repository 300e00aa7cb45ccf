"""A run as Markdown: its targets, its unfinished parts, and one table or more per axis."""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.axes import AXES
from benchmarks.figures import LIMIT, OURS, TURNS, Figure, paired
from benchmarks.machine import BUSY
from benchmarks.reports.targets import Checked, checked
from benchmarks.runs.results import Run

FILE = "benchmarks.md"
PEERS = "peers"
TITLES = {
    PEERS: "The same work for all: two groups, both directions at once, payloads of about 100 bytes",
    TURNS: "Ours and a peer in alternation; a ratio is the median of the rounds' ratios, with lowest and highest",
} | AXES
BESIDE_US = 3  # that many others fit into columns; more are rows
MARKS = {True: "✅", False: "❌", None: "-"}
HOW_TO_READ = (
    "Each figure is a median (lowest to highest) of its repetitions. A ratio is ours divided by theirs: of messages/s "
    "and MB/s more is better, of times and bytes less."
)
Point = tuple[tuple[str, int | float | str], ...]
_SIZES = ("bytes", "KiB", "MiB", "GiB")


def markdown(run: Run, plots: Iterable[Path] = ()) -> str:
    """Draw all of it; `plots` are drawn beside it, named by their axis."""
    by_axis = {plot.stem: plot.name for plot in plots}
    parts = ["# Benchmarks", machine(run), HOW_TO_READ, "## Targets", targets(run), trouble(run)]
    for axis in run.axes():
        parts += [f"## {axis}", TITLES.get(axis, "") + "."]
        parts += [f"![{axis}]({name})" for stem, name in by_axis.items() if stem.partition("-")[0] == axis]
        parts += [axis_tables(list(run.figures(axis))), notes(list(run.figures(axis)))]
    return "\n\n".join(part for part in parts if part) + "\n"


def machine(run: Run) -> str:
    """Describe the machine, versions, commit, date and plan, and warn if the machine was busy."""
    facts = run.machine
    lines = [
        f"- machine: {facts['cores']} cores ({facts['cpu']}), {facts['memory_gib']} GiB, {facts['system']}",
        f"- versions: {', '.join(f'{name} {value}' for name, value in facts['versions'].items())}",
        f"- commit {facts['commit']}, {facts['date']}",
        f"- plan: {run.plan.repeats} x {run.plan.seconds:g} s{', quick: fewer points' if run.plan.quick else ''}",
    ]
    warning = busy_warning(run)
    return "\n".join([*lines, f"- **{warning}**"] if warning else lines)


def busy_warning(run: Run) -> str:
    """Return a warning if the machine was not quiet, else nothing."""
    busy = run.machine.get("busy", 0.0)
    if busy <= BUSY:
        return ""
    return f"The machine was busy when this began: {busy:.0%} of its processors. Rates mean little; ratios, a bit more."


def targets(run: Run) -> str:
    """Draw the targets: ratios and bounds."""
    rows = [[MARKS[each.kept], each.target.text, measured(each), bound(each)] for each in checked(run.figures())]
    return table(["", "target", "measured", "bound"], rows)


def measured(each: Checked) -> str:
    """Show the measured value of a target."""
    if each.value is None:
        return "not measured"
    if not each.target.beside:
        return significant(each.value)
    return times(each.values) if len(each.values) > 1 else f"{significant(each.value)} x"


def bound(each: Checked) -> str:
    """Show the bound of a target."""
    times = " x" if each.target.beside else ""
    return f"at {'least' if each.target.at_least else 'most'} {significant(each.target.bound)}{times}"


def trouble(run: Run) -> str:
    """Draw the parts that failed or were missing, each with its reason."""
    rows = [[each.state, each.name, each.why, f"{each.took_s:.0f} s"] for each in run.trouble()]
    return "## Unfinished parts\n\n" + table(["", "part", "reason", "after"], rows) if rows else ""


def axis_tables(figures: list[Figure]) -> str:
    """Draw one axis: a row per point, or, beside many others, a table per point with a row for each of them."""
    if figures[0].axis == TURNS:
        return by_pair(figures)
    if len([name for name in names(figures) if name != OURS]) <= BESIDE_US:
        return by_point(figures)
    if 2 * len(figures) < 3 * len(groups(figures)):
        return by_figure(figures)
    return "\n\n".join(
        (f"{where(point)}:\n\n" if point else "") + by_name([each for each in figures if point_of(each) == point])
        for point in dict.fromkeys(point_of(each) for each in figures)
    )


def by_point(figures: list[Figure]) -> str:
    """Draw a row per case and point."""
    places = list(dict.fromkeys(place for figure in figures for place in figure.at))
    others = [name for name in names(figures) if name != OURS]
    heads = ["case", *places, "unit", OURS, *(head for name in others for head in (name, "ratio"))]
    rows = []
    for (case, point), group in groups(figures).items():
        places_of = dict(point)
        ours = group.get(OURS)
        cells = [case, *(plain(places_of[place]) if place in places_of else "" for place in places)]
        cells += [next(iter(group.values())).unit, shown(ours)]
        for name in others:
            cells += [shown(group.get(name)), ratio(ours, group.get(name))]
        rows.append(cells)
    return table(heads, rows, right_from=1)


def by_name(figures: list[Figure]) -> str:
    """Draw a row for us and each of the others, at one point: the peers in the order of the first case, best first."""
    cases = list(dict.fromkeys(figure.case for figure in figures))
    found = {(figure.who, figure.case): figure for figure in figures}
    units = {figure.case: figure.unit for figure in figures}
    heads = ["", *(head for case in cases for head in (f"{case}, {units[case]}", "ours is"))]
    rows = []
    for name in ranked(figures, cases[0]):
        cells = [f"**{name}**" if name == OURS else name]
        for case in cases:
            cells += [shown(found.get((name, case))), ratio(found.get((OURS, case)), found.get((name, case)))]
        rows.append(cells)
    return table(heads, rows, right_from=1)


def by_figure(figures: list[Figure]) -> str:
    """Draw a row per figure, where most stand alone."""
    rows = []
    for (case, point), group in groups(figures).items():
        for figure in group.values():
            beside = ratio(group.get(OURS), figure)
            rows.append([case, where(point), figure.who, figure.unit, shown(figure), beside])
    return table(["case", "at", "who", "unit", "", "ours is"], rows, right_from=3)


def by_pair(figures: list[Figure]) -> str:
    """Draw a row per case and pair that took turns."""
    rows = []
    for (case, point), group in groups(figures).items():
        ours = group.pop(OURS, None)
        for name, theirs in group.items():
            agents, ratios = plain(dict(point)["agents"]), paired(ours, theirs) if ours else []
            rows.append([case, agents, name, theirs.unit, shown(ours), shown(theirs), times(ratios) if ratios else ""])
    return table(["case", "agents", "beside", "unit", OURS, "theirs", "ours is"], rows, right_from=4)


def groups(figures: Iterable[Figure]) -> dict[tuple[str, Point], dict[str, Figure]]:
    """Return the figures by name, for each case and point."""
    found: dict[tuple[str, Point], dict[str, Figure]] = {}
    for figure in figures:
        found.setdefault((figure.case, point_of(figure)), {})[figure.who] = figure
    return found


def names(figures: Iterable[Figure]) -> list[str]:
    """Return the names of the figures: ours, the peers, the limits, each in the order of measurement."""
    found = dict.fromkeys(each.who for each in sorted(figures, key=lambda each: (each.who != OURS, each.is_limit)))
    return list(found)


def ranked(figures: Iterable[Figure], case: str) -> list[str]:
    """Return the names of the figures: ours, the peers from the best to the worst at a case, the limits."""
    listed = list(figures)
    best = {each.who: each.median * (-1 if each.higher_is_better else 1) for each in listed if each.case == case}

    def place(name: str) -> tuple[bool, bool, float]:
        return name != OURS, name.startswith(LIMIT), best.get(name, math.inf)

    return sorted(names(listed), key=place)


def notes(figures: Iterable[Figure]) -> str:
    """List the notes of figures, once if a note holds for all of a name's figures or all cases at a point."""
    by_name: dict[str, list[Figure]] = {}
    for each in figures:
        by_name.setdefault(each.who, []).append(each)
    return "\n".join(line for who, theirs in by_name.items() for line in _notes(who, theirs))


def _notes(who: str, figures: list[Figure]) -> Iterator[str]:
    everywhere = set.intersection(*(set(_sentences(each)) for each in figures))
    if everywhere:
        yield f"- {who}: {'; '.join(words for words in _sentences(figures[0]) if words in everywhere)}"
    for point in dict.fromkeys(point_of(each) for each in figures):
        here = [each for each in figures if point_of(each) == point]
        cases: dict[str, list[str]] = {}
        for each in here:
            for words in _sentences(each):
                if words not in everywhere:
                    cases.setdefault(words, []).append(each.case)
        told = [words if len(of) == len(here) else f"{', '.join(of)}: {words}" for words, of in cases.items()]
        if told:
            yield f"- {', '.join(filter(None, (who, where(point))))}: {'; '.join(told)}"


def _sentences(figure: Figure) -> list[str]:
    return [words for words in figure.note.split("; ") if words]


def ratio(ours: Figure | None, theirs: Figure | None) -> str:
    """Show ours divided by theirs, where both are there and it is not ours itself."""
    value = quotient(ours, theirs)
    return "" if value is None else f"{significant(value)} x"


def quotient(ours: Figure | None, theirs: Figure | None) -> float | None:
    """Return ours divided by theirs, or None where there is none."""
    if ours is None or theirs is None or ours.who == theirs.who or not theirs.median:
        return None
    if ratios := paired(ours, theirs):
        return statistics.median(ratios)
    return ours.median / theirs.median


def times(ratios: Sequence[float]) -> str:
    """Show ratios of rounds: their median, and their spread."""
    low, high = significant(min(ratios)), significant(max(ratios))
    return f"{significant(statistics.median(ratios))} x ({low} to {high})"


def shown(figure: Figure | None) -> str:
    """Show a median and its spread."""
    if figure is None:
        return ""
    written: Callable[[float], str] = size if figure.unit == "bytes" else significant
    if len(figure.values) == 1:
        return written(figure.median)
    return f"{written(figure.median)} ({written(figure.low)} to {written(figure.high)})"


def significant(value: float, digits: int = 3) -> str:
    """Write a number with so many digits that mean something, and commas."""
    if not value:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    rounded = round(value, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{rounded:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def size(value: float) -> str:
    """Write bytes in the unit that fits."""
    steps = min(len(_SIZES) - 1, int(math.log(value, 1024))) if value >= 1 else 0
    return f"{significant(value / 1024**steps)} {_SIZES[steps]}"


def plain(value: float | str) -> str:
    """Write a place on an axis."""
    return value if isinstance(value, str) else f"{value:,}"


def table(heads: list[str], rows: list[list[str]], right_from: int | None = None) -> str:
    """Draw a Markdown table; columns from `right_from` on are aligned to the right."""
    aligned = ["---:" if right_from is not None and at >= right_from else "---" for at in range(len(heads))]
    lines = [heads, aligned, *([_escaped(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def point_of(figure: Figure) -> Point:
    """Return where on its axis a figure is."""
    return tuple(sorted(figure.at.items()))


def where(point: Point) -> str:
    """Write a point of an axis."""
    return ", ".join(f"{place} {plain(value)}" for place, value in point)


def unit(figure: Figure) -> str:
    """Return the unit to write after `shown`, which includes the unit of bytes."""
    return "" if figure.unit == "bytes" else figure.unit
