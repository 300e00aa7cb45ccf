"""Pictures of a run as HTML images: messages by step, and the network of agents."""

from base64 import b64encode
from collections import Counter
from io import BytesIO
from itertools import product
from typing import Any

from ray_messaging.common.texts import printable, shortened
from ray_messaging.eventlog.event_log import EventLog
from ray_messaging.eventlog.plot import new_figure
from ray_messaging.model.fates import FATES, STORED, facts_of

# At most this many pairs of agents are drawn: those with the most messages. More pairs would make the picture black.
_PAIRS = 2_000
_NAMED = 20  # the picture has the names of this many agents: those that got the most messages
_SEED = 7
_CHANGED = "#CC79A7"  # the colour of messages that a rule has rewritten


def step_chart(log: EventLog) -> str:
    """Return a chart of each step's messages by fate, with lines where rules changed; "" if no message has a step."""
    counts: Counter[tuple[int, str, bool]] = Counter()
    for row in log.count(by=("step", "fate", "rule")).to_pylist():
        if row["step"] is not None:
            counts[row["step"], row["fate"], row["rule"] is not None] += row["count"]
    steps = sorted({step for step, _, _ in counts})
    if not steps:
        return ""
    figure, axes = new_figure(10, 3.4)
    floor = [0] * len(steps)
    for fate, ruled in product(FATES, (False, True)):
        heights = [counts[step, fate, ruled] for step in steps]
        if any(heights):
            changed = ruled and fate in STORED
            colour, label = (_CHANGED, "changed by a rule") if changed else (facts_of(fate).colour, fate)
            axes.bar(steps, heights, width=0.9, bottom=floor, color=colour, label=label)
            floor = [low + height for low, height in zip(floor, heights, strict=True)]
    changes = [] if log.run is None else log.run["rule_changes"]
    for number, step in enumerate(sorted({change["step"] for change in changes if change["step"] is not None})):
        axes.axvline(
            step - 0.5, color="black", linestyle="--", linewidth=1, label="_" if number else "intervention"
        )  # matplotlib's legend leaves out labels that begin with "_"
    axes.set_xlabel("step")
    axes.set_ylabel("messages")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value == int(value) else "")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(ncols=5, frameon=False, loc="lower left", bbox_to_anchor=(0, 1.02), borderaxespad=0)
    return svg(figure)


def network_chart(log: EventLog) -> str:
    """Return a chart of the network of agents, or "" if no message of one agent to another was delivered.

    The chart shows the pairs of agents between which the most messages were delivered.
    """
    import networkx as nx  # noqa: PLC0415 - an optional package; if it is missing, the command says so

    found = log.count(by=("from_id", "to_id"), fate=STORED)
    rows = found.slice(0, _PAIRS).to_pylist()
    pairs = [row for row in rows if row["from_id"] is not None and row["to_id"] is not None]
    if not pairs:
        return ""
    graph, sizes = nx.Graph(), Counter[object]()
    for row in pairs:
        graph.add_edge(row["from_id"], row["to_id"])
        sizes[row["to_id"]] += row["count"]
    most = max(sizes.values())
    figure, axes = new_figure(10, 7)
    which = "All" if len(found) <= _PAIRS else "The busiest"
    axes.set_title(
        f"{which} {len(pairs):,} pairs of sender and recipient; a larger circle got more messages",
        loc="left",
        fontsize=11,
    )
    places = nx.spring_layout(graph, seed=_SEED, k=1.5 / len(graph) ** 0.5)
    largest = 300 if len(graph) <= _NAMED else 60
    nx.draw_networkx_edges(graph, places, ax=axes, width=0.4, edge_color="#9ecae1", arrows=False)
    dots = [4 + largest * sizes[node] / most for node in graph]
    nx.draw_networkx_nodes(graph, places, ax=axes, node_size=dots, node_color="#0072B2", linewidths=0)
    named = {node for node, _ in sizes.most_common(_NAMED)}
    # matplotlib would draw text between dollar signs as formulas.
    names = {node: shortened(printable(str(node))).replace("$", r"\$") for node in named}
    halo = {"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.5}
    nx.draw_networkx_labels(graph, places, names, ax=axes, font_size=8, verticalalignment="bottom", bbox=halo)
    axes.set_axis_off()
    return svg(figure)


def svg(figure: Any) -> str:  # noqa: ANN401 - matplotlib's Figure
    """Return a figure as an `<img>` element that contains it as SVG."""
    out = BytesIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    # The figure is embedded as an image, because several SVGs in one document would have equal ids.
    return f'<img alt="" src="data:image/svg+xml;base64,{b64encode(out.getvalue()).decode()}">'
