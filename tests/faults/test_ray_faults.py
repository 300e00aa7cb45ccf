"""Ray's processes die, or stand still beside their replacements: each case of the harness holds its promise."""

import pytest

from faults import cluster_cases, interceptor_cases
from faults.ray_promises import assert_held

# In the default suite tests/cluster/test_faults.py asks as much, and quicker.
pytestmark = [pytest.mark.faults, pytest.mark.long]


# The other one of the interceptor has one of their crash points; it asks three shards.
CASES = (*interceptor_cases.CASES, *cluster_cases.CASES)
LONG = [more for case in CASES for more in ([case] if case.long else case.on_shards())]


@pytest.mark.parametrize("case", LONG, ids=lambda case: case.name)
def test_the_promise_holds(ray_cluster, tmp_path, case):
    assert_held(case, tmp_path)
