"""How many recipients one payload has; it is encoded once."""

from collections.abc import Iterator

from benchmarks.axes.society.society import cluster, experiment
from benchmarks.figures import OURS, Figure, Plan

RECIPIENTS = (1, 10, 100, 1_000)
QUICK = (1, 100)
AGENTS = 4_000


def measure(plan: Plan) -> Iterator[Figure]:
    """Measure each number of recipients."""
    with cluster(), experiment("fan-out", AGENTS) as (_, society):
        for recipients in QUICK if plan.quick else RECIPIENTS:
            society.rate("fan_out", plan.seconds / 4, recipients)
            rates = [society.rate("fan_out", plan.seconds / 2, recipients) for _ in range(plan.repeats)]
            yield Figure("fan_out", "bulk", OURS, "messages/s", rates, {"recipients": recipients})
