"""Serving with 1,000 handlers at once, over kill -9 of its actor: each message is handled, few of them twice."""

import pytest

from faults import serving_cases
from faults.ray_promises import assert_held

pytestmark = [pytest.mark.faults, pytest.mark.long]


def test_each_message_is_handled_over_ten_kills_and_at_most_those_in_hand_twice(ray_cluster, tmp_path):
    [case] = serving_cases.CASES
    account = assert_held(case, tmp_path)
    assert account.facts["kills"] == serving_cases.KILLS
    assert account.facts["most_of_a_kill"] <= serving_cases.CONCURRENCY
    assert account.facts["came_again"] >= account.facts["cut_off"] > serving_cases.KILLS * 100  # each kill met many
