"""Figures of means with their intervals, for a study.

The means are drawn as lines if the x values are numbers, and as points if they are strs.
"""

from collections.abc import Mapping
from typing import Any

from ray_messaging.eventlog.plot import new_figure
from ray_messaging.studies.bootstrap import Interval

_WIDTH, _HEIGHT = 8, 4.5  # the size of a figure in inches
_SHADE = 0.2
_APART = 0.08  # if the x values are strs: the distance between points of different lines at the same x value


def draw(lines: Mapping[Any, Mapping[Any, Interval]], x: str, y: str, by: str | None, note: str) -> Any:  # noqa: ANN401 - matplotlib's Figure
    """Return a figure with a line for each value of `by`; raise ImportError if matplotlib is not installed."""
    figure, axes = new_figure(_WIDTH, _HEIGHT)
    places = [at for line in lines.values() for at in line]
    numeric = all(isinstance(at, int | float) and not isinstance(at, bool) for at in places)
    texts = {at: number for number, at in enumerate(dict.fromkeys(places))}
    for number, (name, line) in enumerate(lines.items()):
        label = None if by is None else f"{by} = {name}"
        if numeric:
            at = sorted(line)
            means, low, high = zip(*(line[each] for each in at), strict=True)
            (drawn,) = axes.plot(at, means, marker="o" if len(at) < 50 else None, markersize=4, label=label)
            axes.fill_between(at, low, high, color=drawn.get_color(), alpha=_SHADE, linewidth=0)
        else:
            shift = _APART * (number - (len(lines) - 1) / 2)
            means, low, high = zip(*line.values(), strict=True)
            reach = [
                [mean - end for mean, end in zip(means, low, strict=True)],
                [end - mean for mean, end in zip(means, high, strict=True)],
            ]
            axes.errorbar([texts[each] + shift for each in line], means, yerr=reach, fmt="o", capsize=3, label=label)
    if not numeric:
        axes.set_xticks([*texts.values()], [str(each) for each in texts])
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(note, loc="left", fontsize=10)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if by is not None and lines:
        axes.legend(frameon=False)
    return figure
