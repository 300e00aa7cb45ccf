"""Rules for messages. To write your own, derive from `Rule`.

The module of a rule is imported when the rule's name is first used, because most processes use few rules.
"""

from typing import TYPE_CHECKING

from ray_messaging.common.lazy_names import resolve

if TYPE_CHECKING:
    from ray_messaging.interception.interceptor.rule_tables import Table
    from ray_messaging.interception.rules.agentsociety_rules import Block, Supervisor
    from ray_messaging.interception.rules.allow_graph import AllowGraph
    from ray_messaging.interception.rules.bans import EdgeBan, SenderBan
    from ray_messaging.interception.rules.black_list import BlackList
    from ray_messaging.interception.rules.limits import MaxLength, RateLimit, RoundQuota
    from ray_messaging.interception.rules.moderator import Moderator
    from ray_messaging.interception.rules.openai_moderator import OpenAIModerator
    from ray_messaging.interception.rules.pattern import Pattern
    from ray_messaging.interception.rules.random_sample import Sample
    from ray_messaging.interception.rules.rule import (
        ALLOW,
        Added,
        PairCheck,
        Rule,
        SlowRule,
        StepRule,
        StepVerdicts,
        Verdict,
        block,
        label,
        rewrite,
    )

_HOMES = {
    name: f"ray_messaging.interception.{home}"
    for home, names in {
        "rules.agentsociety_rules": ("Block", "Supervisor"),
        "rules.allow_graph": ("AllowGraph",),
        "rules.bans": ("EdgeBan", "SenderBan"),
        "rules.black_list": ("BlackList",),
        "rules.limits": ("MaxLength", "RateLimit", "RoundQuota"),
        "rules.moderator": ("Moderator",),
        "rules.openai_moderator": ("OpenAIModerator",),
        "rules.pattern": ("Pattern",),
        "rules.rule": (
            "ALLOW", "Added", "PairCheck", "Rule", "SlowRule", "StepRule", "StepVerdicts", "Verdict", "block", "label",
            "rewrite",
        ),
        "rules.random_sample": ("Sample",),
        "interceptor.rule_tables": ("Table",),
    }.items()
    for name in names
}  # fmt: skip

__all__ = [
    "ALLOW",
    "Added",
    "AllowGraph",
    "BlackList",
    "Block",
    "EdgeBan",
    "MaxLength",
    "Moderator",
    "OpenAIModerator",
    "PairCheck",
    "Pattern",
    "RateLimit",
    "RoundQuota",
    "Rule",
    "Sample",
    "SenderBan",
    "SlowRule",
    "StepRule",
    "StepVerdicts",
    "Supervisor",
    "Table",
    "Verdict",
    "block",
    "label",
    "rewrite",
]

if not TYPE_CHECKING:  # if type checkers saw __getattr__, they would accept any name

    def __getattr__(name: str) -> object:
        return resolve(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
