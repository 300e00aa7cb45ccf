"""Bars: systems side by side, and the cost of one choice."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import OURS, Figure
from benchmarks.plots.style import BLUE, HIGHER, LOWER, ORANGE, PURPLE, canvas, colour, save, short
from benchmarks.reports.markdown import plain, quotient, significant
from benchmarks.runs.results import Run

PERCENTILES = {"p50": BLUE, "p99": ORANGE, "p99.9": PURPLE}
Panel = tuple[str, list[Figure]]


def draw(run: Run, folder: Path) -> list[Path]:
    """Draw every plot of bars that there are figures for."""
    folder.mkdir(parents=True, exist_ok=True)
    found = [
        _peers(run, folder / "peers.png", ("bulk", "awaited")),
        _peers(run, folder / "peers-lone.png", ("lone p50", "lone p99")),
        _percentiles(run, folder / "latency.png", "load", "One message alone, send to inbox: idle and at half load"),
        _percentiles(run, folder / "tail.png", "beside", "What others see of trouble: a lone message beside it"),
        _choices(run, folder / "interceptor.png", "rules", "What the interceptor and its rules cost"),
        _choices(run, folder / "log.png", "log", "What the event log costs"),
    ]
    return [path for path in found if path]


def _peers(run: Run, path: Path, cases: Sequence[str]) -> Path | None:
    """Draw everybody's bars at the size that most were run at, a panel per case."""
    figures = [each for each in run.figures("peers") if each.case in cases]
    if not figures:
        return None
    ((agents, _),) = Counter(each.at.get("agents", 0) for each in figures).most_common(1)
    here = [each for each in figures if each.at.get("agents", 0) == agents]
    titles = {"bulk": "in bulk", "awaited": "one awaited call per message", "lone p50": "p50", "lone p99": "p99"}
    panels = [(titles[case], mine) for case in cases if (mine := [each for each in here if each.case == case])]
    rates = here[0].higher_is_better
    what = "Messages received per second" if rates else "One message alone, send to inbox, in ms"
    title = f"{what}: {plain(agents)} agents in two groups ({HIGHER if rates else LOWER}; log scale)"
    return _panels(path, panels, title, lambda each: each.who.removesuffix(", no log"))


def _choices(run: Run, path: Path, place: str, title: str) -> Path | None:
    """Draw our rates under each choice, bulk beside awaited."""
    mine = [each for each in run.figures(path.stem) if place in each.at and each.unit == "messages/s"]
    panels = [(case, here) for case in ("bulk", "awaited") if (here := [each for each in mine if each.case == case])]
    if not panels:
        return None

    def label(each: Figure) -> str:
        choice = f"{place}: {plain(each.at[place])}"
        return choice if each.who == OURS else f"{choice} ({each.who})"

    return _panels(path, panels, f"{title}: messages/s received ({HIGHER})", label, log=False)


def _panels(
    path: Path, panels: Sequence[Panel], title: str, label: Callable[[Figure], str], *, log: bool = True
) -> Path:
    """Draw panels of horizontal bars side by side, the best on top where the scale is logarithmic."""
    rows = max(len(figures) for _, figures in panels)
    drawing, axes = canvas(1.6 + 0.42 * rows, len(panels))
    for panel, (name, figures) in zip(axes[0], panels, strict=True):
        ordered = sorted(figures, key=lambda each: each.median, reverse=figures[0].higher_is_better) if log else figures
        _bars(panel, ordered, label, log=log)
        panel.set_ylim(len(ordered) - rows + 0.4, len(ordered) + 0.6)  # bars of one height in all panels
        panel.set_title(name, loc="left")
    return save(drawing, path, title)


def _bars(panel: Any, figures: Sequence[Figure], label: Callable[[Figure], str], *, log: bool) -> None:
    """Draw one panel, the first figure on top; peers say how many times as much ours is."""
    ours = next((each for each in figures if each.who == OURS), None)
    places = range(len(figures), 0, -1)
    medians = [each.median for each in figures]
    drawn = panel.barh(places, medians, height=0.7, color=[colour(each.who) for each in figures])
    for bar, each in zip(drawn, figures, strict=True):
        bar.set_hatch("//" if each.is_limit else "")
        bar.set_edgecolor("white")
    spread = [[each.median - each.low for each in figures], [each.high - each.median for each in figures]]
    panel.errorbar(medians, places, xerr=spread, fmt="none", ecolor="#333333", elinewidth=1.2, capsize=2)
    for place, each in zip(places, figures, strict=True):
        times = quotient(ours, each) if log else None
        words = short(each.median) + (f"  (ours {significant(times)} x)" if times else "")
        panel.annotate(words, (each.high, place), (6, 0), textcoords="offset points", va="center", fontsize=10)
    panel.set_yticks(list(places), [label(each) for each in figures])
    for tick, each in zip(panel.get_yticklabels(), figures, strict=True):
        tick.set_fontweight("bold" if each.who == OURS and log else "normal")
    panel.tick_params(axis="y", length=0)
    _scale(panel, figures, log=log)


def _scale(panel: Any, figures: Sequence[Figure], *, log: bool) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    high = max((each.high for each in figures), default=1.0)
    if log:
        panel.set_xscale("log")
        low = min((each.low for each in figures if each.low > 0), default=1.0)
        panel.set_xlim(low / 2, high * max(2, 4 * (high / low) ** 0.5))  # room for the words beside the longest bar
        panel.xaxis.set_minor_formatter(NullFormatter())
    else:
        panel.set_xlim(0, high * 1.25)
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    panel.grid(axis="x", alpha=0.3)


def _percentiles(run: Run, path: Path, place: str, title: str) -> Path | None:
    """Draw p50, p99 and p99.9 as three bars per name and point."""
    figures = [each for each in run.figures(path.stem) if each.case in PERCENTILES and place in each.at]
    if not figures:
        return None
    rows = list(dict.fromkeys((each.who, each.at[place]) for each in figures))
    found = {(each.who, each.at[place], each.case): each for each in figures}
    drawing, axes = canvas(1.8 + 0.75 * len(rows))
    panel = axes[0][0]
    for number, (case, paint) in enumerate(PERCENTILES.items()):
        here = [(row, found[(*row, case)]) for row in rows if (*row, case) in found]
        places = [len(rows) - rows.index(row) - 0.27 * (number - 1) for row, _ in here]
        panel.barh(places, [each.median for _, each in here], height=0.25, color=paint, label=case)
        for spot, (_, each) in zip(places, here, strict=True):
            words = f"{short(each.median)} ms"
            panel.annotate(words, (each.median, spot), (5, 0), textcoords="offset points", va="center", fontsize=10)
    several = len({who for who, _ in rows}) > 1
    labels = [f"{who}, {plain(where)}" if several else plain(where) for who, where in rows]
    panel.set_yticks(range(len(rows), 0, -1), labels)
    panel.tick_params(axis="y", length=0)
    _scale(panel, figures, log=True)
    panel.legend(frameon=False, loc="best")
    return save(drawing, path, f"{title}, in ms ({LOWER}; log scale)")
