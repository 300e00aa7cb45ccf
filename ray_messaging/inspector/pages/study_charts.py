"""Options of the charts of a study: curves with their intervals, and a heat map."""

from collections.abc import Iterable
from math import isfinite

from ray_messaging.inspector.page_values import cut
from ray_messaging.inspector.pages.charts import FONT, LINE, TOOLTIP, Options, shade
from ray_messaging.inspector.sources.study_facts import Curves, HeatMap

# Successive colours can also be told apart by colour-blind readers.
_COLOURS = "#2f6fde", "#e5484d", "#2f9e5f", "#d99a1c", "#8e6bd1", "#5bb8c4", "#b5598f", "#7a8b3b", "#8b93a1"
_MOST_NAME = 14  # a value beside an axis is cut to this many characters
_MOST_LABEL = 50  # a line's name is cut to this many characters


def curves(found: Curves) -> Options:
    """Return the options of a chart of means as lines. Thin dashed lines are the bounds of the means' intervals."""
    choice = found.choice
    axis = {"name": cut(choice.x, 24), "nameLocation": "middle", "nameGap": 26, "nameTextStyle": FONT}
    axis |= {"axisLabel": FONT, "axisLine": {"lineStyle": {"color": LINE}}, "splitLine": {"show": False}}
    places = {at: place for place, at in enumerate(dict.fromkeys(at for line in found.lines.values() for at in line))}
    labels = _labels((f"{choice.by} = {value}" if choice.by else choice.outcome for value in found.lines), _MOST_LABEL)
    category = {"type": "category", "data": _labels(places, _MOST_NAME)}
    kind = {"type": "value", "scale": True} if found.numeric else category
    series = []
    for number, (label, line) in enumerate(zip(labels, found.lines.values(), strict=True)):
        colour = _COLOURS[number % len(_COLOURS)]
        for bound in ("mean", "low", "high"):
            points = [
                [at if found.numeric else places[at], round(value, 9)]
                for at, interval in line.items()
                if isfinite(value := getattr(interval, bound))
            ]
            is_mean = bound == "mean"
            series.append(
                {
                    "type": "line",
                    "name": label if is_mean else f"{label}, {bound}",
                    "data": points,
                    "symbol": "circle" if is_mean else "none",
                    "symbolSize": 6,
                    "itemStyle": {"color": colour},
                    "lineStyle": {"width": 2 if is_mean else 1, "type": "solid" if is_mean else "dashed",
                                  "opacity": 1 if is_mean else 0.55},
                }
            )  # fmt: skip
    return {
        "animation": False,
        "grid": {"left": 4, "right": 14, "top": 34, "bottom": 26, "containLabel": True},
        "tooltip": TOOLTIP | {"trigger": "axis"},
        "legend": {
            "top": 0, "left": 0, "type": "scroll", "icon": "roundRect", "itemWidth": 10, "itemHeight": 4,
            "textStyle": FONT, "data": [each["name"] for each in series[::3]],
        },
        "xAxis": axis | kind,
        "yAxis": {"type": "value", "scale": True, "axisLabel": FONT, "splitLine": {"lineStyle": {"color": LINE}}},
        "series": series,
    }  # fmt: skip


def _labels(texts: Iterable[object], width: int) -> list[str]:
    """Return the beginnings of texts as labels. Equal beginnings get numbers, so that each label is unique."""
    found: list[str] = []
    for text in texts:
        label, number = cut(str(text), width), 1
        while label in found:
            number += 1
            label = f"{cut(str(text), width - 4)} ({number})"
        found.append(label)
    return found


def heat_map(found: HeatMap) -> Options:
    """Return the options of a heat map: a cell for each pair of values of two parameters, darker for a larger mean."""
    means = [mean for *_, mean in found.means if isfinite(mean)]
    columns, rows = (_labels(some, _MOST_NAME) for some in (found.columns, found.rows))
    low, high = min(means, default=0.0), max(means, default=1.0)
    axis = {"type": "category", "axisLabel": FONT, "nameTextStyle": FONT}
    return {
        "animation": False,
        "grid": {"left": 4, "right": 96, "top": 28, "bottom": 26, "containLabel": True},
        "tooltip": TOOLTIP,
        "xAxis": axis | {"data": columns, "name": cut(found.choice.x, 24), "nameGap": 26, "nameLocation": "middle"},
        "yAxis": axis | {"data": rows, "name": cut(found.choice.by, 24), "nameGap": 12},
        "visualMap": {
            "min": low, "max": high if high > low else low + 1, "precision": 3, "calculable": True, "right": 0,
            "top": "middle", "textStyle": FONT, "inRange": {"color": [shade(each / 4) for each in range(5)]},
        },
        "series": [
            {
                "type": "heatmap",
                "name": cut(found.choice.outcome, 60),
                "data": [[column, row, round(mean, 9)] for column, row, mean in found.means if isfinite(mean)],
            }
        ],
    }  # fmt: skip
