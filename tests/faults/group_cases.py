"""Cases in which the process of a group dies at a call of its own."""

from faults.case import Case
from faults.ray_support import a_town, arm, wait_dead
from faults.ray_traffic import traffic_in

SENDING = ("relay", "judge", "send")
FETCHING = ("fetch", "read")
COMMITTING = ("commit", "renew")


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


CASES = [
    Case(
        "group actor killed after a send, after a commit",
        lambda folder: dies_at(folder, ("send", "commit"), ("after",)),
    ),
    Case("group actor killed at each crash point of a send", lambda folder: dies_at(folder, SENDING), long=True),
    Case("group actor killed at each crash point of a fetch", lambda folder: dies_at(folder, FETCHING), long=True),
    Case("group actor killed at each crash point of a commit", lambda folder: dies_at(folder, COMMITTING), long=True),
]
