"""One digest on Ray: a rumour gives the digests and states of one loop, whichever process dies; long ones only."""

import pytest
from support.rumour import Rumour, college_edges, small_world

from faults.rumour_on_ray import FAULTS, run

pytestmark = [pytest.mark.faults, pytest.mark.long, pytest.mark.usefixtures("ray_cluster")]

RING = Rumour(small_world(120), steps=14, chance=60)
CASES = {  # tasks, and whether groups wait for their senders alone
    "group actor killed at random": (2, False),
    "task killed at each call of the protocol": (2, True),
    "all of them killed at random": (2, True),
    "each call of the protocol repeated": (1, False),
}


@pytest.mark.parametrize("fault", CASES)
def test_a_rumour_on_ray(tmp_path, fault):
    assert set(CASES) <= set(FAULTS)
    tasks, senders = CASES[fault]
    outcome = run(RING, tmp_path, fault, groups=2, tasks=tasks, senders=senders)
    assert outcome.differs == []
    assert outcome.faults > 0


@pytest.fixture
def wide(request):
    """Give a rumour with frames that go to all servers: that of CollegeMsg, where its data are here."""
    college = request.config.rootpath.parent / "shared" / "data" / "collegemsg" / "CollegeMsg.txt.gz"
    if college.exists():
        return Rumour(college_edges(college), steps=8, chance=40, first=50, pad=200)
    return Rumour(small_world(640), steps=8, chance=60, first=50, pad=200)


@pytest.mark.parametrize(
    ("fault", "senders"),
    [
        ("embedded server killed at random", False),
        ("another server killed at random", True),
        ("all of them killed at random", True),
    ],
    ids=["the primary", "another server", "all of them"],
)
def test_a_rumour_with_bodies_on_three_servers(tmp_path, wide, fault, senders):
    outcome = run(wide, tmp_path, fault, groups=4, tasks=2, senders=senders, shards=3)
    assert outcome.differs == []
    assert outcome.faults > 0
    assert min(outcome.bodies[1:]) > 0
