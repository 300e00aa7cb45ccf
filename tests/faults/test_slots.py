"""A cluster's primary that is lost, and a slot that moves; `python tests/faults --only slot` has the long ones."""

import pytest

from faults.slots_cases import SHORT, SHORT_RESHARDED

pytestmark = [pytest.mark.faults, pytest.mark.long]


CASES = {
    "lost": SHORT,
    "moved": SHORT_RESHARDED,
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_nothing_acknowledged_is_lost_with_a_primary_or_on_the_way_to_another(case, tmp_path):
    account = case.run(tmp_path)
    assert case.promise.broken(account) == {}, account
    assert account.acknowledged
