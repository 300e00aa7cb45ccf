"""How many groups write to each other, in a ring, on this machine."""

from collections.abc import Iterator

from benchmarks.axes.society import BLACK_LIST, Society, cluster
from benchmarks.figures import OURS, Figure, Plan
from ray_messaging import Messaging

ABOUT = "bulk through 2 to 32 groups in a ring, each group a process; the interceptor on"
GROUPS = (2, 4, 8, 16, 32)
QUICK = (2, 8)
AGENTS_EACH = 500


def measure(plan: Plan) -> Iterator[Figure]:
    """Let one society grow, and measure at each number of groups."""
    with (
        cluster(),
        Messaging.start("groups", rules=[BLACK_LIST]) as messaging,
        Society(messaging, 2 * AGENTS_EACH) as society,
    ):
        for groups in QUICK if plan.quick else GROUPS:
            society.grow(groups)
            rates = society.rates("bulk", plan.seconds / 2, plan.repeats)
            yield Figure(
                "groups", "bulk", OURS, "messages/s", rates, {"groups": groups}, f"{AGENTS_EACH} agents in each group"
            )
