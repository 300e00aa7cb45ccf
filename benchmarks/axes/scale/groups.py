"""How many groups write to each other, in a ring, on this machine."""

from collections.abc import Iterator

from benchmarks.axes.society.society import cluster, experiment
from benchmarks.figures import OURS, Figure, Plan

GROUPS = (2, 4, 8, 16, 32)
QUICK = (2, 8)
AGENTS_EACH = 500


def measure(plan: Plan) -> Iterator[Figure]:
    """Let one society grow, and measure at each number of groups."""
    with cluster(), experiment("groups", 2 * AGENTS_EACH) as (_, society):
        for groups in QUICK if plan.quick else GROUPS:
            society.grow(groups)
            rates = society.rates("bulk", plan.seconds / 2, plan.repeats)
            yield Figure(
                "groups", "bulk", OURS, "messages/s", rates, {"groups": groups}, f"{AGENTS_EACH} agents in each group"
            )
