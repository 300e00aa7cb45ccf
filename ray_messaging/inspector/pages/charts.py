"""Options of the charts.

Names of agents and groups are only ever used as values, because NiceGUI runs the text under a key that begins with ":"
as code. Tooltips are drawn as text (`richText`), not as HTML.
"""

from datetime import UTC, datetime
from math import cos, pi, sin, sqrt
from typing import Any

from ray_messaging.inspector.pages.layout import COLOURS, GREY
from ray_messaging.inspector.values import Traffic, number

Options = dict[str, Any]

_PALETTE = ("#e5484d", "#f08c5a", "#b5598f", "#8e6bd1", "#d99a1c", "#7a8b3b", "#5f7fbf", "#9a6b4f", "#8b93a1")
_FONT = {"fontFamily": "inherit", "fontSize": 11, "color": GREY}
_TOOLTIP = {"renderMode": "richText", "confine": True, "textStyle": {"fontSize": 12}}
_LINE = "rgba(139,147,161,0.22)"


def rates(traffic: Traffic) -> Options:
    """Draw the number of messages per second by fate."""
    shown = {fate: counts for fate, counts in traffic.fates.items() if any(counts) or fate == "delivered"}
    return _over_time(traffic, shown, [COLOURS[fate] for fate in shown])


def blocked(traffic: Traffic) -> Options:
    """Draw the number of blocked messages per second by rule."""
    return _over_time(traffic, traffic.blocked, _PALETTE)


def _over_time(traffic: Traffic, lines: dict[str, list[int]], colours: Any) -> Options:  # noqa: ANN401
    pattern = "%H:%M:%S" if traffic.width_s < 60 else "%d %b %H:%M"
    times = [
        f"{datetime.fromtimestamp(traffic.start + place * traffic.width_s, UTC):{pattern}}"
        for place in range(traffic.bins)
    ]
    series = [
        {
            "type": "line",
            "name": name,
            "data": [round(count / traffic.width_s, 2) for count in counts],
            "stack": "all",
            "areaStyle": {"opacity": 0.25},
            "lineStyle": {"width": 1.5},
            "itemStyle": {"color": colour},
            "showSymbol": traffic.bins == 1,
        }
        for (name, counts), colour in zip(lines.items(), colours, strict=False)
    ]
    return {
        "animation": False,
        "grid": {"left": 4, "right": 10, "top": 26, "bottom": 2, "containLabel": True},
        "tooltip": _TOOLTIP | {"trigger": "axis"},
        "legend": {"top": 0, "right": 0, "icon": "roundRect", "itemWidth": 10, "itemHeight": 4, "textStyle": _FONT},
        "xAxis": {
            "type": "category",
            "data": times,
            "boundaryGap": False,
            "axisLabel": _FONT,
            "axisLine": {"lineStyle": {"color": _LINE}},
            "axisTick": {"show": False},
        },
        "yAxis": {
            "type": "value",
            "minInterval": 1 if traffic.width_s == 1 else 0,
            "axisLabel": _FONT,
            "splitLine": {"lineStyle": {"color": _LINE}},
        },
        "series": series,
    }


def flows(traffic: Traffic, depths: dict[str, int]) -> Options:
    """Draw the groups on a ring, with dots that move along the flows between them.

    A red ring around a group means blocks.
    """
    names = _ring(traffic, depths)
    places = _places(len(names))
    at = dict(zip(names, places, strict=True))
    inside = {flow.sender: flow.messages for flow in traffic.flows if flow.sender == flow.mailbox}
    between = [flow for flow in traffic.flows if flow.sender != flow.mailbox]
    most = max((flow.messages for flow in between), default=1)
    lines = [
        {
            "coords": [at[flow.sender], at[flow.mailbox]],
            "name": f"{flow.sender} to {flow.mailbox}: {_rate(flow.messages, traffic)}",
            "lineStyle": {"width": round(0.7 + 5 * flow.messages / most, 2), "opacity": 0.3, "curveness": 0.16},
        }
        for flow in between
    ]
    return {
        "animation": False,
        "grid": {"left": 0, "right": 0, "top": 0, "bottom": 0},
        "tooltip": _TOOLTIP | {"formatter": "{b}"},
        "xAxis": {"show": False, "min": -1.75, "max": 1.75, "type": "value"},
        "yAxis": {"show": False, "min": -1.3, "max": 1.3, "type": "value"},
        "series": [
            {
                "type": "lines",
                "coordinateSystem": "cartesian2d",
                "data": lines,
                "lineStyle": {"color": COLOURS["delivered"]},
                "z": 2,
            },
            # In a separate layer, which is not cleared between two pictures, so that dots have tails.
            {
                "type": "lines",
                "coordinateSystem": "cartesian2d",
                "zlevel": 1,
                "data": [{"coords": line["coords"]} for line in lines],
                "lineStyle": {"width": 0, "curveness": 0.16},
                "effect": {
                    "show": traffic.messages > 0,
                    "period": 3.2,
                    "trailLength": 0.25,
                    "symbol": "circle",
                    "symbolSize": 4,
                    "color": COLOURS["delivered"],
                },
                "silent": True,
            },
            {"type": "scatter", "zlevel": 2, "data": [_node(n, at, traffic, depths, inside) for n in names]},
        ],
    }


def _ring(traffic: Traffic, depths: dict[str, int]) -> list[str]:
    """Return the names of the groups on the ring.

    Those are the groups with traffic, or if there are none, the first ones with a mailbox.
    """
    names = {end for flow in traffic.flows for end in flow[:2]} | set(traffic.blocked_from)
    return sorted(names or set(list(depths)[:12]))


def _places(count: int) -> list[list[float]]:
    if count == 1:
        return [[0.0, 0.0]]
    turns = (2 * pi * place / count for place in range(count))
    return [[round(1.28 * sin(turn), 4), round(cos(turn), 4)] for turn in turns]


def _node(
    name: str, at: dict[str, list[float]], traffic: Traffic, depths: dict[str, int], inside: dict[str, int]
) -> Options:
    sent = sum(flow.messages for flow in traffic.flows if flow.sender == name)
    got = sum(flow.messages for flow in traffic.flows if flow.mailbox == name)
    stopped = traffic.blocked_from.get(name, 0)
    waits = depths.get(name)
    share = sqrt((sent + got) / max(1, 2 * traffic.total("delivered")))
    said = [f"{name}: sent {_rate(sent, traffic)}, got {_rate(got, traffic)}"]
    said += [f"within: {_rate(inside[name], traffic)}"] if name in inside else []
    said += [f"blocked: {_rate(stopped, traffic)}"] if stopped else []
    said += [f"waiting: {number(waits)}"] if waits is not None else []
    x, y = at[name]
    side = "right" if x > 0.2 else "left" if x < -0.2 else "top" if y >= 0 else "bottom"
    return {
        "name": "\n".join(said),
        "value": at[name],
        "symbolSize": round(14 + 34 * share, 1),
        "itemStyle": {
            "color": COLOURS["delivered"],
            "borderColor": COLOURS["blocked"],
            "borderWidth": round(min(6.0, 1 + 12 * stopped / (sent + stopped)), 1) if stopped else 0,
        },
        "label": {
            "show": True,
            "position": side,
            "distance": 8,
            "formatter": name.replace("{", "(").replace("}", ")"),
            "color": GREY,
            "fontSize": 12,
        },
    }


def _rate(messages: int, traffic: Traffic) -> str:
    return f"{number(messages)} ({number(messages / traffic.seconds)}/s)"
