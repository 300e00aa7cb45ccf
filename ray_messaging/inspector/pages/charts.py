"""Options of the pages' charts, for ECharts.

Names of agents and groups are only used as values, and never as keys, because NiceGUI runs the value of a key that
begins with ":" as code. Tooltips are drawn as text (`richText`), not as HTML.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import isfinite, sqrt
from typing import Any

from ray_messaging.inspector.page_values import (
    BusiestAgents,
    Cause,
    Series,
    SocietyInStep,
    TrafficBins,
    cut,
    spoken,
)
from ray_messaging.inspector.pages.layout import GREY
from ray_messaging.model.fates import STORED, facts_of

Options = dict[str, Any]

PALETTE = ("#e5484d", "#f08c5a", "#b5598f", "#8e6bd1", "#d99a1c", "#7a8b3b", "#5f7fbf", "#9a6b4f", "#8b93a1")
_LIGHT, _DARK = (169, 200, 245), (30, 58, 138)
_LONGEST = 40
_MOST_LABEL = 14  # a label beside a map has at most this many characters
_POINT = 7  # the diameter, in pixels, of the dot that shows an agent at its position
FONT = {"fontFamily": "inherit", "fontSize": 11, "color": GREY}
TOOLTIP = {"renderMode": "richText", "confine": True, "textStyle": {"fontSize": 12}}
LINE = "rgba(139,147,161,0.22)"


def rates(traffic: TrafficBins) -> Options:
    """Return the options of a chart of the number of messages per step or second, by fate."""
    shown = {fate: counts for fate, counts in traffic.fates.items() if any(counts) or fate in STORED}
    return _over_time(traffic, shown, [facts_of(fate).colour for fate in shown])


def blocked(traffic: TrafficBins) -> Options:
    """Return the options of a chart of the number of blocked messages per step or second, by rule."""
    return _over_time(traffic, traffic.blocked, PALETTE)


def collected(found: Series) -> Options:
    """Return the options of a chart of the values that a run has recorded with `collect`, by step."""
    lines = [
        {"type": "line", "name": name, "data": values, "showSymbol": len(values) == 1, "sampling": "lttb"}
        for name, values in found.lines.items()
    ]
    return _over([f"step {step:,}" for step in found.steps], lines)


def bars(found: Series) -> Options:
    """Return the options of a chart that draws sums by step as bars."""
    series = [
        {"type": "bar", "name": name, "data": values, "barCategoryGap": "12%", "itemStyle": {"color": "#2f6fde"}}
        for name, values in found.lines.items()
    ]
    return _over([f"step {step:,}" for step in found.steps], series)


def _over_time(traffic: TrafficBins, lines: dict[str, list[int]], colours: Any) -> Options:  # noqa: ANN401
    bins = len(next(iter(traffic.fates.values())))
    series = [
        {
            "type": "bar",
            "name": name,
            "data": [round(count / traffic.width, 2) for count in counts],
            "stack": "all",
            "barCategoryGap": "12%",
            "itemStyle": {"color": colour},
        }
        for (name, counts), colour in zip(lines.items(), colours, strict=False)
    ]
    places = [_place(traffic, traffic.start + place * traffic.width) for place in range(bins)]
    return _over(places, series, 1 if traffic.width == 1 else 0)


def _over(places: list[str], series: list[Options], least_interval: int = 0) -> Options:
    return {
        "animation": False,
        "grid": {"left": 4, "right": 10, "top": 26, "bottom": 6, "containLabel": True},
        "tooltip": TOOLTIP | {"trigger": "axis"},
        "legend": {"top": 0, "right": 0, "icon": "roundRect", "itemWidth": 10, "itemHeight": 4, "textStyle": FONT},
        "xAxis": {
            "type": "category",
            "data": places,
            "axisLabel": FONT,
            "axisLine": {"lineStyle": {"color": LINE}},
            "axisTick": {"show": False},
        },
        "yAxis": {
            "type": "value",
            "minInterval": least_interval,
            "axisLabel": FONT,
            "splitLine": {"lineStyle": {"color": LINE}},
        },
        "series": series,
    }


def _place(traffic: TrafficBins, at: float) -> str:
    if not traffic.in_steps:
        return f"{datetime.fromtimestamp(at, UTC):{'%H:%M:%S' if traffic.width < 60 else '%d %b %H:%M'}}"
    return f"step {at:,}" if traffic.width == 1 else f"steps {at:,} to {at + traffic.width - 1:,}"


def network(society: BusiestAgents) -> Options:
    """Return the options of a chart of the network of who sends messages to whom.

    The colour of an agent shows the last value that `collect` recorded of it. If `collect` recorded nothing of any of
    the agents, the colour shows how many messages the agent sent.
    """
    most = max((sent for _, sent in society.agents), default=1)
    heaviest = max((count for *_, count in society.edges), default=1)
    colours = _colours(society.values or dict(society.agents))
    return {
        "animation": False,
        "tooltip": TOOLTIP | {"formatter": "{b}"},
        "series": [
            {
                "type": "graph",
                "layout": "circular",
                "circular": {"rotateLabel": True},
                "left": 50,
                "right": 50,
                "top": 50,
                "bottom": 50,
                "data": [
                    {
                        "id": agent,
                        "name": f"{agent}: sent {sent:,}{_measured(society, agent)}",
                        "itemStyle": {"color": colours.get(agent, GREY)},
                        "symbolSize": round(6 + 16 * sqrt(sent / most), 1),
                        "label": {"formatter": _plain(agent)},
                    }
                    for agent, sent in sorted(society.agents, key=lambda found: (len(found[0]), found))
                ],
                "links": [
                    {
                        "source": one,
                        "target": other,
                        "tooltip": {"formatter": _plain(f"{one} to {other}: {count:,}")},
                        "lineStyle": {"width": 0.5 + 3 * count / heaviest, "opacity": 0.1 + 0.6 * count / heaviest},
                    }
                    for one, other, count in society.edges
                ],
                "lineStyle": {"color": GREY, "curveness": 0.3},
                "label": {"show": True, "position": "right", "fontSize": 11, "color": GREY},
                "emphasis": {"focus": "adjacency"},
            }
        ],
    }


def over_steps(runs: Sequence[Series], kinds: Sequence[str], step: int) -> Options:
    """Return the options of a chart of the values of one or two runs by step, with a line at `step`.

    The second run has dashed lines.

    Args:
        runs: The values of each run.
        kinds: The names of the lines that have the same colours as on the map of the agents (`society_map`).
        step: The step that this map shows.
    """
    steps = sorted({each for run in runs for each in run.steps})
    options = _over([f"step {each:,}" for each in steps], [])
    colours = dict(zip(kinds, PALETTE, strict=False))
    for run, dash in zip(runs, ("solid", "dashed"), strict=False):
        for place, (line, values) in enumerate(run.lines.items()):
            known = dict(zip(run.steps, values, strict=True))
            colour = colours.get(line) or (shade(0.7) if len(run.lines) == 1 else PALETTE[place % len(PALETTE)])
            options["series"].append(
                {
                    "type": "line",
                    "name": line if dash == "solid" else f"{line} (the other run)",
                    "data": [known.get(each) for each in steps],
                    "showSymbol": len(steps) == 1,
                    "itemStyle": {"color": colour},
                    "lineStyle": {"type": dash},
                }
            )
    if options["series"]:
        here = {"xAxis": f"step {step:,}", "lineStyle": {"color": GREY, "type": "solid"}}
        options["series"][0]["markLine"] = {"symbol": "none", "silent": True, "label": {"show": False}, "data": [here]}
    return options


def society_map(found: SocietyInStep, size: int) -> Options:
    """Return the options of a map of the agents of a step at their positions, `size` pixels wide and high.

    The colours of the agents show their values.
    """
    left, right, low, high = found.bounds
    # The margin is half a cell around a lattice. Around positions, it is 3% of their range.
    aside, above = (0.5, 0.5) if found.lattice else (0.03 * (right - left) or 1, 0.03 * (high - low) or 1)
    cell = size / (1 + max(right - left, high - low))
    axis = {"type": "value", "show": False}
    return {
        "animation": False,
        "tooltip": TOOLTIP | {"formatter": "{b}"},
        "visualMap": _value_colours(found, size),
        "grid": {"left": 0, "top": 0, "width": size, "height": size},
        "xAxis": axis | {"min": left - aside, "max": right + aside},
        # The first row of a lattice is at the top. For positions, y grows upwards.
        "yAxis": axis | {"min": low - above, "max": high + above, "inverse": found.lattice},
        "series": [
            {
                "type": "scatter",
                "symbol": "rect" if found.lattice else "circle",
                "symbolSize": round(max(2.0, 0.9 * cell), 1) if found.lattice else _POINT,
                "itemStyle": {"opacity": 1},
                "data": [
                    {"name": _told(agent, found, value), "value": [*place, _drawn(value, found)]}
                    for agent, place, value in zip(found.agents, found.places, found.values, strict=True)
                ],
            }
        ],
    }


def society_network(found: SocietyInStep, size: int) -> Options:
    """Return the options of a chart that draws the agents of a step in a circle, and the messages of the step.

    The colours of the agents show their values.
    """
    heaviest = max((count for *_, count in found.edges), default=1)
    return {
        "animation": False,
        "tooltip": TOOLTIP | {"formatter": "{b}"},
        "visualMap": _value_colours(found, size),
        "series": [
            {
                "type": "graph",
                "layout": "circular",
                "left": 20,
                "top": 20,
                "width": size - 40,
                "height": size - 40,
                "symbolSize": 12,
                "itemStyle": {"opacity": 1},
                "data": [
                    {"id": str(place), "name": _told(agent, found, value), "value": _drawn(value, found)}
                    for place, (agent, value) in enumerate(zip(found.agents, found.values, strict=True))
                ],
                "links": [
                    {
                        "source": str(one),
                        "target": str(other),
                        "tooltip": {"formatter": _plain(f"{found.agents[one]} to {found.agents[other]}: {count:,}")},
                        "lineStyle": {"width": 0.5 + 2 * count / heaviest},
                    }
                    for one, other, count in found.edges
                ],
                "lineStyle": {"color": GREY, "curveness": 0.25, "opacity": 0.5},
                "emphasis": {"focus": "adjacency"},
            }
        ],
    }


def _value_colours(found: SocietyInStep, size: int) -> Options:
    shown = {"left": size + 10, "top": "middle", "textStyle": FONT}
    if isinstance(found.scale, list):
        kinds = found.scale[: len(PALETTE)]
        pieces = [
            {"value": place, "label": cut(kind, _MOST_LABEL), "color": colour}
            for place, (kind, colour) in enumerate(zip(kinds, PALETTE, strict=False))
        ]
        return shown | {"type": "piecewise", "pieces": pieces, "outOfRange": {"color": GREY}}
    low, high = found.scale
    colours = [shade(share) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    reach = {"min": low, "max": high if high > low else low + 1, "precision": 3}
    return shown | reach | {"type": "continuous", "calculable": True, "inRange": {"color": colours}}


def _drawn(value: float | str, found: SocietyInStep) -> float:
    """Return the number that decides the colour of a value.

    A text that is not in `found.scale` gets -1, which is drawn grey. A number that is not finite gets the least value.
    """
    if isinstance(found.scale, list):
        return found.scale.index(str(value)) if value in found.scale else -1
    return float(value) if isfinite(value) else found.scale[0]  # type: ignore[arg-type]


def _told(agent: str, found: SocietyInStep, value: float | str) -> str:
    return f"{agent}: {found.measure} {cut(value, _LONGEST)}"


def tree(found: Cause) -> Options:
    """Return the options of a chart that draws a message, and to the right of each message its causes."""
    return {
        "animation": False,
        "tooltip": TOOLTIP | {"formatter": "{b}"},
        "series": [
            {
                "type": "tree",
                "data": [_node(found)],
                "initialTreeDepth": -1,
                "symbolSize": 9,
                "left": 20,
                "right": 260,
                "top": 30,
                "bottom": 10,
                "edgeShape": "polyline",
                "edgeForkPosition": "85%",
                "label": FONT | {"position": [0, -28], "align": "left", "lineHeight": 13},
                "leaves": {"label": {"position": "right", "verticalAlign": "middle"}},
                "lineStyle": {"color": GREY, "width": 1},
                "emphasis": {"focus": "ancestor"},
            }
        ],
    }


def _node(found: Cause) -> Options:
    row = found.row
    words = spoken(row.text)[0]
    head = f"{row.message_id}  {row.from_id} to {row.to_id}"
    marks = ["" if row.fate in STORED else row.fate, row.rule, row.labels]
    facts = [f"answered: {words}" if found.answered else words, *filter(None, marks)]
    below = [_node(each) for each in found.causes]
    aside = [f"and {found.more:,} more"] if found.more else [found.note] if found.note else []
    return {
        "name": "\n".join([head, *facts, row.reason, *(f"called {call}" for call in found.calls)]).strip(),
        "label": {"formatter": _plain(f"{head}\n{cut('; '.join(facts), _LONGEST)}")},
        "itemStyle": {"color": facts_of(row.fate).colour},
        "children": [*below, *({"name": text, "itemStyle": {"color": GREY}, "symbolSize": 4} for text in aside)],
    }


def leaves(found: Cause) -> int:
    """Return how many ends a tree has, as `tree` draws it: messages without causes, and notes about missing causes."""
    return max(1, sum(map(leaves, found.causes)) + bool(found.more or found.note))


def _measured(society: BusiestAgents, agent: str) -> str:
    return f", {society.measure} {cut(society.values[agent], _LONGEST)}" if agent in society.values else ""


def _colours(values: Mapping[str, float | str]) -> dict[str, str]:
    """Return a colour for each agent: darker for larger numbers, or one colour for each text or bool."""
    numbers = [value for value in values.values() if not isinstance(value, str | bool) and isfinite(value)]
    if len(numbers) == len(values):
        low, high = min(numbers, default=0), max(numbers, default=0)
        shades = {agent: (value - low) / ((high - low) or 1) for agent, value in zip(values, numbers, strict=True)}
        return {agent: shade(share) for agent, share in shades.items()}
    kinds = {kind: PALETTE[place % len(PALETTE)] for place, kind in enumerate(sorted({*map(str, values.values())}))}
    return {agent: kinds[str(value)] for agent, value in values.items()}


def shade(share: float) -> str:
    """Return a colour between light blue (0) and dark blue (1)."""
    mixed = (round(light + share * (dark - light)) for light, dark in zip(_LIGHT, _DARK, strict=True))
    return f"rgb({', '.join(map(str, mixed))})"


def _plain(text: str) -> str:
    """Return a text with ( and ) in place of braces, which a formatter of the charts would read as variables."""
    return text.replace("{", "(").replace("}", ")")
