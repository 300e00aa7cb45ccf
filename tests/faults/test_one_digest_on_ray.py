"""One digest on Ray: a rumour gives the digests and states of one loop, whichever process dies; long ones only."""

import pytest
from support.rumour import Rumour, small_world

from faults.rumour_on_ray import FAULTS, run

pytestmark = [pytest.mark.faults, pytest.mark.long, pytest.mark.timeout(240), pytest.mark.usefixtures("ray_cluster")]

RING = Rumour(small_world(120), steps=14, chance=60)
CASES = {
    "group actor killed at random": 2,
    "task killed at each call of the protocol": 2,
    "all of them killed at random": 2,
    "each call of the protocol repeated": 1,
}


@pytest.mark.parametrize("fault", CASES)
def test_a_rumour_on_ray(tmp_path, fault):
    assert set(CASES) <= set(FAULTS)
    outcome = run(RING, tmp_path, fault, groups=2, tasks=CASES[fault])
    assert outcome.differs == []
    assert outcome.faults > 0
