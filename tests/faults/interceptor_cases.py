"""Cases in which the interceptor dies in the middle of a batch, or lives on beside its replacement."""

from contextlib import ExitStack
from functools import partial

import ray
from support.cluster import PATIENCE_S, control, kill, wait_for

from faults.case import Case
from faults.ray_support import a_town, arm, deputy_of, stopped_at, wait_dead
from faults.ray_traffic import PAIRS, traffic_in
from ray_messaging import rules

SILENCED = (4, 14)
BANNED = (1, 11)  # while an old interceptor stands still


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


def stands_still(folder):
    """Stop the interceptor in the middle of a batch, replace it, ban a pair, and let the old one go on."""
    with a_town(*_rules(), log_dir=folder / "log", interceptor_timeout_s=2) as town:
        with traffic_in(town, folder, (*PAIRS, SILENCED)) as traffic:
            passed = sum(_outlive(town, traffic, when) for when in ("before", "after"))
        return traffic.account(passed_although_banned=passed)


def _outlive(town, traffic, when):
    """Return how many messages of a pair passed after another interceptor had banned it."""
    messaging, banned = town.messaging, next(s for s in traffic.senders if s.pair == BANNED)
    with ExitStack() as last_first:
        with stopped_at(messaging.interceptor, "answer", when, nth=3) as wait_stopped:
            wait_stopped()
            deputy = last_first.enter_context(deputy_of(messaging))
            ray.get(deputy.ban.remote(BANNED), timeout=PATIENCE_S)
            before = banned.delivered
            refused = len(banned.met)
        # The old one answers, and nothing passes under what it says.
        wait_for(lambda: len(banned.met) > refused, "a send that nobody could judge")
    kill(messaging.interceptor)
    traffic.goes_on()
    passed = banned.delivered - before
    control(messaging, "remove_from_black_set", BANNED)
    traffic.goes_on()
    return passed


CASES = [
    Case(
        "interceptor killed after it has judged a batch",
        partial(dies_judging, points=("answer",), sides=("after",)),
        quick=True,
    ),
    Case("interceptor killed at each crash point of a batch", dies_judging),
    Case("interceptor stopped in a batch, replaced, goes on", stands_still),
]
