"""Cases in which the interceptor dies in the middle of a batch."""

from support.cluster import control

from faults.case import Case
from faults.ray_support import a_town, arm, wait_dead
from faults.ray_traffic import PAIRS, traffic_in
from ray_messaging import rules

SILENCED = (4, 14)


def _rules():
    # With a rule that counts each message no batch is answered before that is on the server.
    return rules.BlackList([SILENCED]), rules.RateLimit(per_round=10**9)


def dies_judging(folder, points=("answer", "save"), sides=("before", "after")):
    """End the interceptor's process right before and after it answers a batch, or saves its counts."""
    with a_town(*_rules(), log_dir=folder / "log") as town:
        with traffic_in(town, folder, (*PAIRS, SILENCED)) as traffic:
            for point in points:
                for when in sides:
                    wait_dead(arm(town.messaging.interceptor, point, when, nth=3))
                    traffic.goes_on()
        counted = control(town.messaging, "violation_counts")
        account = traffic.account(kills=len(points) * len(sides))
        account.facts["miscounted"] = abs(counted.get(SILENCED[0], 0) - account.blocked)
        return account


CASES = [
    Case(
        "interceptor killed after it has judged a batch", lambda folder: dies_judging(folder, ("answer",), ("after",))
    ),
    Case("interceptor killed at each crash point of a batch", dies_judging, long=True),
]
