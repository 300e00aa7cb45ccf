"""A primary that is lost while Sentinels watch; `python tests/faults --only failover` has the long ones."""

import pytest

from faults.failover_cases import SHORT

pytestmark = [pytest.mark.faults, pytest.mark.long]


def test_nothing_acknowledged_is_lost_with_the_primary(tmp_path):
    account = SHORT.run(tmp_path)
    assert SHORT.promise.broken(account) == {}, account
    assert account.acknowledged
