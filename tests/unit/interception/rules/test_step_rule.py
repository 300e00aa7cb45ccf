"""Rules that act at the end of each step."""

import pytest

from ray_messaging.interception.rules import ALLOW, BlackList, RateLimit, RoundQuota, Rule
from ray_messaging.interception.rules.rule import StepRule, forces_all


class Rounds(Rule):
    def check(self, message):
        return ALLOW

    def new_round(self):
        self.round = 1


@pytest.mark.parametrize("rule", [StepRule(), RoundQuota(contacts=3), RateLimit(per_round=2), Rounds()])
def test_a_rule_that_acts_between_steps_forces_all_groups_to_wait(rule):
    assert forces_all([BlackList(), rule])


def test_other_rules_do_not():
    assert not forces_all([BlackList(), RateLimit(per_second=2)])
