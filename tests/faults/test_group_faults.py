"""A group's process dies, or stands still beside its replacement: each case holds its promise.

A file of its own, as those of the other processes take as long: both run side by side.
"""

import pytest

from faults import group_cases
from faults.ray_promises import assert_held

# In the default suite tests/cluster/test_faults.py asks as much, and quicker.
pytestmark = [pytest.mark.faults, pytest.mark.long]


LONG = [case for case in group_cases.CASES if case.long]


@pytest.mark.parametrize("case", LONG, ids=lambda case: case.name)
def test_the_promise_holds(ray_cluster, tmp_path, case):
    assert_held(case, tmp_path)
