"""Versions of audiences by step: one that was removed, and made again from a later step on."""

import pytest

from ray_messaging.audiences.audience_kinds import Audiences, StoredVersion
from ray_messaging.errors import UnknownName


@pytest.mark.parametrize(
    ("step", "told"),
    [(0, "does not exist in step 0, but from step 2 on"), (5, "does not exist in step 5, but from step 8 on")],
)
def test_a_step_in_which_an_audience_does_not_exist_names_the_next_one_in_which_it_does(step, told):
    audiences = Audiences()
    audiences.update(
        {"friends": tuple(StoredVersion(n, at, facts) for n, at, facts in [(1, 2, "{"), (2, 4, ""), (3, 8, "{")])}
    )
    with pytest.raises(UnknownName, match=told):
        audiences.of("friends", step)
