"""Cases in which the process of a group dies, or is stopped beside its replacement."""

from contextlib import ExitStack
from functools import partial

from support.cluster import kill, wait_for

from faults.case import Case, weaker
from faults.ray_support import a_town, arm, stopped_at, twin_of, wait_dead
from faults.ray_traffic import traffic_in

SENDING = ("relay", "judge", "send")
FETCHING = ("fetch", "read")
COMMITTING = ("commit", "renew")
TAKING_OVER = ("load_directory", "listen", "take_sender_epoch")


def dies_at(folder, points, sides=("before", "after")):
    """End a group's process right before, and after, calls of its own, while both groups send and fetch."""
    # A lease is renewed so often that this crash point is met soon.
    with a_town(lease_s=1.5) as town:
        with traffic_in(town, folder) as traffic:
            for point in points:
                group = town.west if point in SENDING else town.east
                for when in sides:
                    wait_dead(arm(group.actor, point, when, nth=3))
                    traffic.goes_on()
        return traffic.account(kills=len(points) * len(sides))


def dies_taking_over(folder):
    """A group's process dies, and those that take its place die at each call by which they do, but the last."""
    with a_town() as town:
        with traffic_in(town, folder) as traffic:
            for point in TAKING_OVER:
                for when in ("before", "after"):
                    with twin_of(town.east, resume=False) as twin:
                        pid = arm(twin.actor, point, when)
                        twin.actor.resume.remote()
                        wait_dead(pid)
                    kill(town.east.actor)
                    traffic.goes_on()
        return traffic.account(kills=4 * len(TAKING_OVER))


def dies_again_and_again(folder, times=5):
    """A group's process dies at any moment, while others send to it, and fetch from it."""
    with a_town() as town:
        with traffic_in(town, folder) as traffic:
            for _ in range(times):
                for group in (town.east, town.west):
                    kill(group.actor)
                    traffic.goes_on()
        return traffic.account(kills=2 * times)


def outlives(folder, points):
    """Stop a group's process at a call, replace it, and let it go on beside its replacement."""
    with a_town(lease_s=3) as town:
        with traffic_in(town, folder) as traffic:
            for point in points:
                for when in ("before", "after"):
                    _outlive(town, traffic, town.west if point in SENDING else town.east, point, when)
        return traffic.account(fenced=traffic.refusals)


def _outlive(town, traffic, group, point, when):
    """Stop a group's process, have a twin take over and work, let the old one go on, and end both."""
    with ExitStack() as last_first:
        with stopped_at(group.actor, point, when, nth=3) as wait_stopped:
            wait_stopped()
            handle = last_first.enter_context(twin_of(group))
            twins = traffic.on_twin(handle)
            for twin in twins:
                last_first.callback(twin.enough.set)
            sender, receiver = twins
            wait_for(lambda: sender.delivered > 100, "receipts of the twin")
            wait_for(lambda: group is town.west or receiver.count > 100, "messages for the twin")
            before = traffic.refusals
        # The one that was left behind sends and fetches for its callers, until it learns that it has a successor.
        wait_for(lambda: traffic.refusals > before, "a refusal")
        for twin in twins:
            twin.stop()
    kill(group.actor)
    traffic.goes_on()


LATE = weaker(
    "nothing lost, nothing handled twice; a batch on its way when the old process stood still reaches its caller late, "
    "and cannot be committed",
    "duplicates",
)
CASES = [
    Case(
        "group actor killed after a send, after a commit",
        partial(dies_at, points=("send", "commit"), sides=("after",)),
        quick=True,
    ),
    Case("group actor killed at each crash point of a send", partial(dies_at, points=SENDING)),
    Case("group actor killed at each crash point of a fetch", partial(dies_at, points=FETCHING)),
    Case("group actor killed at each crash point of a commit", partial(dies_at, points=COMMITTING)),
    Case("group actor killed while it takes over", dies_taking_over),
    Case("group actor restarted by Ray again and again", dies_again_and_again),
    Case("group actor stopped in a send, replaced, goes on", partial(outlives, points=SENDING), LATE),
    Case("group actor stopped in a fetch, replaced, goes on", partial(outlives, points=FETCHING), LATE),
    Case("group actor stopped in a commit, replaced, goes on", partial(outlives, points=["commit"]), LATE),
]
