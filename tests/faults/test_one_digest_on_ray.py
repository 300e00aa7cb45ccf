"""One digest on Ray: a rumour gives the digests and states of one loop, whichever process dies; long ones only."""

import pytest
from support.rumour import Rumour, small_world

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
