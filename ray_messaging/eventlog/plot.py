"""Plot of a log: the number of messages over time by fate, and the deliveries between groups."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ray_messaging.errors import InvalidQuery, LogError
from ray_messaging.model.fates import FATES, facts_of

_MAP = "Blues"  # matplotlib's colour map from pale to dark blue
_SUFFIXES = (".png", ".pdf", ".svg")
_DPI = 150
_LONGEST = 18  # at most this many characters of a name are drawn
# Units of time, with their lengths in seconds.
_UNITS = (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1))
_MOST_NUMBERS = 12  # with more rows or columns than this, the map's cells show no numbers


def plot(stats: dict[str, Any], path: str | Path, *, title: str = "") -> None:
    """Draw the result of `EventLog.stats` into a .png, .pdf or .svg file.

    Raises: ImportError, which says how to install matplotlib, if it is not installed; InvalidQuery for another suffix;
    LogError if the file cannot be written.
    """
    path = Path(path)
    check_picture(path)
    figure = figure_of(stats)
    if title:
        figure.suptitle(title, fontsize=13, fontweight="bold")
    try:
        figure.savefig(path, dpi=_DPI)
    except OSError as error:
        raise LogError(f"cannot write {str(path)!r}: {error}; name another file", path=str(path)) from error


def figure_of(stats: dict[str, Any]) -> Any:  # noqa: ANN401 - matplotlib's Figure
    """Return a figure that shows the result of `EventLog.stats`.

    Raises: ImportError, which says how to install matplotlib, if it is not installed.
    """
    groups = stats["groups"]
    height = max(2.6, 0.38 * len(groups["from"]) + 1.3)
    figure, (above, below) = new_figure(10, 3.6, height)
    _draw_traffic(above, stats)
    _draw_groups(figure, below, groups)
    return figure


def new_figure(width: float, *heights: float) -> tuple[Any, Any]:
    """Return a figure and its axes, which are one below the other. Width and heights are in inches.

    Raises: ImportError, which says how to install matplotlib, if it is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an optional dependency
        from matplotlib.figure import Figure  # noqa: PLC0415 - likewise
    except ImportError as error:
        raise ImportError("drawing needs matplotlib: pip install 'ray-messaging[plot]'") from error
    figure = Figure(figsize=(width, sum(heights)), layout="constrained")
    FigureCanvasAgg(figure)  # this canvas needs no display, and has no state between pictures
    return figure, figure.subplots(len(heights), 1, height_ratios=heights)


def check_picture(path: Path) -> None:
    """Raise InvalidQuery if the file name does not end in .png, .pdf or .svg."""
    if path.suffix.lower() not in _SUFFIXES:
        raise InvalidQuery(
            f"cannot draw into {str(path)!r}: name a file that ends in {' or '.join(_SUFFIXES)}",
            field="path",
            value=path,
        )


def _draw_traffic(axes: Any, stats: dict[str, Any]) -> None:  # noqa: ANN401 - matplotlib's Axes
    traffic = stats["traffic"]
    width, fates = traffic["width_s"], traffic["fates"]
    drawn = [fate for fate in (*FATES, *fates) if any(fates.get(fate, ()))]
    axes.set_title(f"Traffic by fate: {stats['rows']:,} rows", loc="left", fontsize=11)
    axes.set_ylabel(f"rows per {span_in_words(width)}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value == int(value) else "")
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if not drawn:
        _draw_empty(axes)
        return
    span = width * len(fates[drawn[0]])
    unit, seconds = next((found for found in _UNITS if span >= 2 * found[1]), _UNITS[-1])
    edges = [bin_ * width / seconds for bin_ in range(len(fates[drawn[0]]) + 1)]
    floor = [0] * (len(edges) - 1)
    for fate in dict.fromkeys(drawn):
        top = [low + rows for low, rows in zip(floor, fates[fate], strict=True)]
        label = f"{fate} ({stats['fates'].get(fate, 0):,})"
        axes.stairs(top, edges, baseline=floor, fill=True, color=facts_of(fate).colour, label=label)
        floor = top
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(bottom=0)
    start = datetime.fromtimestamp(traffic["start"], UTC)
    axes.set_xlabel(f"{unit}s since {start:%Y-%m-%d %H:%M:%S} UTC")
    axes.legend(ncols=len(FATES), frameon=False, loc="lower left", bbox_to_anchor=(0, 1.09), borderaxespad=0)


def span_in_words(seconds: float) -> str:
    """Return a round span of time in words, such as "100 ms", "minute" or "6 hours"."""
    if seconds < 1:
        return f"{seconds * 1000:g} ms"
    unit, length = next(found for found in _UNITS if seconds % found[1] == 0)
    return unit if seconds == length else f"{seconds / length:g} {unit}s"


def _draw_groups(figure: Any, axes: Any, groups: dict[str, Any]) -> None:  # noqa: ANN401 - matplotlib's
    senders, mailboxes, delivered = groups["from"], groups["to"], groups["delivered"]
    axes.set_title("Delivered from messager (row) to mailbox (column)", loc="left", fontsize=11)
    if not delivered:
        _draw_empty(axes)
        return
    most = max(max(row) for row in delivered)
    image = axes.imshow(delivered, cmap=_MAP, vmin=0, vmax=max(1, most), aspect="auto")
    ends = mailboxes, senders
    names = [[name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…" for name in end] for end in ends]
    slanted = sum(map(len, names[0])) > 90
    axes.set_xticks(range(len(mailboxes)), names[0], rotation=35 if slanted else 0, ha="right" if slanted else "center")
    axes.set_yticks(range(len(senders)), names[1])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("to")
    axes.set_ylabel("from")
    bar = figure.colorbar(image, ax=axes, pad=0.01, format=lambda value, _: f"{value:,.0f}")
    bar.set_label("messages")
    bar.outline.set_visible(False)
    if max(len(senders), len(mailboxes)) > _MOST_NUMBERS:
        return
    for y, row in enumerate(delivered):
        for x, count in enumerate(row):
            ink = "white" if count > 0.55 * most else "black"
            axes.text(x, y, f"{count:,}", ha="center", va="center", fontsize=8, color=ink)


def _draw_empty(axes: Any) -> None:  # noqa: ANN401 - matplotlib's Axes
    axes.text(0.5, 0.5, "nothing", ha="center", va="center", transform=axes.transAxes, color="#777777")
    axes.set_xticks([])
    axes.set_yticks([])
