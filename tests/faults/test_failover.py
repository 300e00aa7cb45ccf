"""A primary that is lost while Sentinels watch; `python tests/faults --only failover` has the long ones."""

import pytest

from faults.failover_cases import EMBEDDED, SHORT

pytestmark = [pytest.mark.faults, pytest.mark.long]


@pytest.mark.parametrize("case", [SHORT, *EMBEDDED], ids=lambda case: case.name)
def test_nothing_acknowledged_is_lost_with_the_primary(case, tmp_path):
    account = case.run(tmp_path)
    assert case.promise.broken(account) == {}, account
    assert account.acknowledged
