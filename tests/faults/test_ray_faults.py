"""Ray's processes die, or stand still beside their replacements: each case of the harness holds its promise."""

import pytest

from faults import cluster_cases, interceptor_cases
from faults.ray_promises import assert_held

# In the default suite tests/cluster/test_faults.py asks as much, and quicker.
pytestmark = [pytest.mark.faults, pytest.mark.long]


LONG = [case for case in (*interceptor_cases.CASES, *cluster_cases.CASES) if case.long]


@pytest.mark.parametrize("case", LONG, ids=lambda case: case.name)
def test_the_promise_holds(ray_cluster, tmp_path, case):
    assert_held(case, tmp_path)
