"""Rules for messages. To write your own, derive from `Rule`.

A rule is imported when its name is first used: senders know few of them.
"""

from typing import TYPE_CHECKING

from ray_messaging.common.lazy_names import resolve

if TYPE_CHECKING:
    from ray_messaging.interception.rules.agentsociety import Block, Supervisor
    from ray_messaging.interception.rules.allow_graph import AllowGraph
    from ray_messaging.interception.rules.bans import EdgeBan, SenderBan
    from ray_messaging.interception.rules.black_list import BlackList
    from ray_messaging.interception.rules.limits import MaxLength, RateLimit, RoundQuota
    from ray_messaging.interception.rules.moderator import Moderator
    from ray_messaging.interception.rules.openai_moderator import OpenAIModerator
    from ray_messaging.interception.rules.pattern import Pattern
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
    from ray_messaging.interception.rules.sample import Sample
    from ray_messaging.interception.server.table import Table

_RULES = "ray_messaging.interception.rules"
_HOMES = {
    "ALLOW": f"{_RULES}.rule",
    "Added": f"{_RULES}.rule",
    "AllowGraph": f"{_RULES}.allow_graph",
    "BlackList": f"{_RULES}.black_list",
    "Block": f"{_RULES}.agentsociety",
    "EdgeBan": f"{_RULES}.bans",
    "MaxLength": f"{_RULES}.limits",
    "Moderator": f"{_RULES}.moderator",
    "OpenAIModerator": f"{_RULES}.openai_moderator",
    "PairCheck": f"{_RULES}.rule",
    "Pattern": f"{_RULES}.pattern",
    "RateLimit": f"{_RULES}.limits",
    "RoundQuota": f"{_RULES}.limits",
    "Rule": f"{_RULES}.rule",
    "Sample": f"{_RULES}.sample",
    "SenderBan": f"{_RULES}.bans",
    "SlowRule": f"{_RULES}.rule",
    "StepRule": f"{_RULES}.rule",
    "StepVerdicts": f"{_RULES}.rule",
    "Supervisor": f"{_RULES}.agentsociety",
    "Table": "ray_messaging.interception.server.table",
    "Verdict": f"{_RULES}.rule",
    "block": f"{_RULES}.rule",
    "label": f"{_RULES}.rule",
    "rewrite": f"{_RULES}.rule",
}

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

if not TYPE_CHECKING:  # with __getattr__ in sight, checkers would accept any name

    def __getattr__(name: str) -> object:
        return resolve(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
