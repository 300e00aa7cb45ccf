"""One digest on Ray: a rumour gives the digests and states of one loop, whichever process dies; long ones only."""

import itertools

import pytest
from support.rumour import Rumour, college_edges, small_world

from faults.rumour_on_ray import FAULTS, run

pytestmark = [pytest.mark.faults, pytest.mark.long, pytest.mark.usefixtures("ray_cluster")]

RING = Rumour(small_world(120), steps=14, chance=60)
MODES = (False, True)  # whether groups wait for their senders alone
ASKED = ("all of them killed at random", 1, True)  # by CI; the others soak
NOT_THERE = [("another server killed at random", 1), ("30% of the replies cut", 3)]
CASES = [each for each in itertools.product(FAULTS, (1, 3), MODES) if each[:2] not in NOT_THERE]


@pytest.fixture
def wide(request):
    """Give a rumour with frames that go to all servers: that of CollegeMsg, where its data are here."""
    college = request.config.rootpath.parent / "shared" / "data" / "collegemsg" / "CollegeMsg.txt.gz"
    if college.exists():
        return Rumour(college_edges(college), steps=8, chance=40, first=50, pad=200)
    return Rumour(small_world(640), steps=8, chance=60, first=50, pad=200)


@pytest.mark.parametrize(
    ("fault", "shards", "senders"),
    [
        pytest.param(
            *each, id="{}, shards={}, senders={}".format(*each), marks=() if each == ASKED else pytest.mark.soak
        )
        for each in CASES
    ],
)
def test_a_rumour_on_ray(tmp_path, wide, fault, shards, senders):
    groups = 2 if shards == 1 else 4
    outcome = run(RING if shards == 1 else wide, tmp_path, fault, groups, tasks=2, senders=senders, shards=shards)
    assert outcome.differs == []
    assert (outcome.faults > 0) == (fault != "no fault")
    assert all(count > 0 for count in outcome.bodies[1:])


@pytest.mark.soak
@pytest.mark.parametrize("senders", MODES)
@pytest.mark.parametrize(("groups", "tasks"), [(1, 1), (2, 1), (8, 1), (8, 8), (64, 1), (64, 8)])
def test_a_rumour_on_any_number_of_actors(tmp_path, wide, groups, tasks, senders):
    assert run(wide, tmp_path, "no fault", groups, tasks, senders=senders).differs == []
