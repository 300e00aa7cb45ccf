"""The settings of rules: those that cannot be are refused, people are told of them, and steps wait for some."""

import pytest
import regex

from ray_messaging.errors import RuleError
from ray_messaging.interception.rules import (
    ALLOW,
    AllowGraph,
    BlackList,
    EdgeBan,
    MaxLength,
    Pattern,
    RateLimit,
    RoundQuota,
    Rule,
    Sample,
)
from ray_messaging.interception.rules.rule import StepRule, forces_all

REFUSED = [
    (RateLimit, {}, "needs per_second"),
    (RateLimit, {"per_second": 0}, "per_second=0"),
    (RateLimit, {"per_second": float("nan")}, "per_second=nan"),
    (RateLimit, {"per_second": float("inf")}, "per_second=inf"),
    (RateLimit, {"per_second": "5"}, "per_second='5'"),
    (RateLimit, {"per_round": 0}, "per_round=0"),
    (RateLimit, {"per_round": 1.5}, r"per_round=1\.5"),
    (RateLimit, {"per_round": True}, "per_round=True"),
    (RoundQuota, {}, "needs contacts"),
    (RoundQuota, {"contacts": -1}, "contacts=-1"),
    (RoundQuota, {"contacts": 1.5}, r"contacts=1\.5"),
    (RoundQuota, {"blocked": 0}, "blocked=0"),
    (RoundQuota, {"blocked": True}, "blocked=True"),
    (Sample, {"share": 1.5}, r"share=1\.5"),
    (Sample, {"share": float("nan")}, "share=nan"),
    (Sample, {"share": "0.1"}, r"share='0\.1'"),
    (Sample, {"share": 0.1, "seed": 1.5}, r"seed=1\.5"),
    (Sample, {"share": 0.1, "action": "drop"}, "action='drop'"),
    *((MaxLength, {"limit_bytes": limit}, "limit") for limit in (1, -5, True, 2.5, "9")),
    (Pattern, {}, "nothing to look for"),
    (Pattern, {"words": "bad"}, r"words='bad' is not a list: write \['bad'\]"),
    (Pattern, {"words": [""]}, "'' is not a word"),
    (Pattern, {"words": ["\u200b "]}, "is not a word"),
    (Pattern, {"words": [7]}, "7 is not a word"),
    (Pattern, {"regexes": "a"}, "regexes='a' is not a list"),
    (Pattern, {"regexes": ["ok", "(a"]}, r"regex '\(a' does not compile: missing \)"),
    (Pattern, {"regexes": [regex.compile("a")]}, "must be a str"),
    (Pattern, {"words": ["a"], "action": "drop"}, "action='drop'"),
    (Pattern, {"words": ["a"], "field": 7}, "field=7"),
    (Pattern, {"words": ["a"], "time_limit_s": 0}, "time_limit_s=0"),
    (Pattern, {"words": ["a"], "time_limit_s": "1"}, "time_limit_s='1'"),
]


@pytest.mark.parametrize(("rule", "settings", "words"), REFUSED)
def test_invalid_settings_are_refused(rule, settings, words):
    with pytest.raises(RuleError, match=words) as caught:
        rule(**settings)
    assert caught.value.rule == rule.name


@pytest.mark.parametrize(
    ("rule", "settings"),
    [
        (
            AllowGraph([(1, 2)], networks={"team": [3, 4], "square": [(5, 6)]}, public=["square"]),
            {"edges": 2, "networks": ["team", "square"], "public": ["square"], "user": True, "channels": True},
        ),
        (BlackList([(1, 2)]), {"pairs": 1}),
        (
            EdgeBan(MaxLength(5), 1),
            {"check": {"name": "max_length", "kind": "MaxLength", "limit_bytes": 5}, "after": 1, "banned": 0},
        ),
        (MaxLength(9), {"limit_bytes": 9}),
        (
            Pattern(["bad"], ["x+"], field="content", action="mask"),
            {
                "words": ["bad"], "regexes": ["x+"], "field": "content", "ignore_case": True, "time_limit_s": 0.05,
                "action": "mask",
            },
        ),
        (RateLimit(2), {"per_second": 2, "per_round": None}),
        (RoundQuota(3, 4), {"contacts": 3, "blocked": 4}),
        (Sample(0.1, 3), {"share": 0.1, "seed": 3, "action": "block"}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)  # fmt: skip
def test_people_are_told_name_kind_and_settings(rule, settings):
    assert rule.describe() == {"name": type(rule).name, "kind": type(rule).__name__} | settings


class Rounds(Rule):
    def check(self, message):
        return ALLOW

    def new_round(self):
        self.round = 1


@pytest.mark.parametrize("rule", [StepRule(), RoundQuota(contacts=3), RateLimit(per_round=2), Rounds()])
def test_a_rule_that_acts_between_steps_forces_all_groups_to_wait(rule):
    others = [BlackList(), RateLimit(per_second=2)]
    assert not forces_all(others)
    assert forces_all([*others, rule])
