"""Rules for messages, one per file. To write your own, derive from `Rule`.

`support/` holds helpers that are no rules. A rule is imported when its name is first used: senders know few of them.
"""

from typing import TYPE_CHECKING

from ray_messaging.common.lazy_names import resolve

if TYPE_CHECKING:
    from ray_messaging.interception.rules.agentsociety_block import Block
    from ray_messaging.interception.rules.agentsociety_supervisor import Supervisor
    from ray_messaging.interception.rules.allow_graph import AllowGraph
    from ray_messaging.interception.rules.black_list import BlackList
    from ray_messaging.interception.rules.edge_ban import EdgeBan
    from ray_messaging.interception.rules.max_length import MaxLength
    from ray_messaging.interception.rules.moderator import Moderator
    from ray_messaging.interception.rules.openai_moderator import OpenAIModerator
    from ray_messaging.interception.rules.pattern import Pattern
    from ray_messaging.interception.rules.rate_limit import RateLimit
    from ray_messaging.interception.rules.round_quota import RoundQuota
    from ray_messaging.interception.rules.rule import ALLOW, PairCheck, Rule, SlowRule, Verdict, block, label, rewrite
    from ray_messaging.interception.rules.sample import Sample
    from ray_messaging.interception.rules.sender_ban import SenderBan
    from ray_messaging.interception.rules.step_rule import Added, StepRule, StepVerdicts
    from ray_messaging.interception.server.state.table import Table

_RULES = "ray_messaging.interception.rules"
_HOMES = {
    "ALLOW": f"{_RULES}.rule",
    "Added": f"{_RULES}.step_rule",
    "AllowGraph": f"{_RULES}.allow_graph",
    "BlackList": f"{_RULES}.black_list",
    "Block": f"{_RULES}.agentsociety_block",
    "EdgeBan": f"{_RULES}.edge_ban",
    "MaxLength": f"{_RULES}.max_length",
    "Moderator": f"{_RULES}.moderator",
    "OpenAIModerator": f"{_RULES}.openai_moderator",
    "PairCheck": f"{_RULES}.rule",
    "Pattern": f"{_RULES}.pattern",
    "RateLimit": f"{_RULES}.rate_limit",
    "RoundQuota": f"{_RULES}.round_quota",
    "Rule": f"{_RULES}.rule",
    "Sample": f"{_RULES}.sample",
    "SenderBan": f"{_RULES}.sender_ban",
    "SlowRule": f"{_RULES}.rule",
    "StepRule": f"{_RULES}.step_rule",
    "StepVerdicts": f"{_RULES}.step_rule",
    "Supervisor": f"{_RULES}.agentsociety_supervisor",
    "Table": "ray_messaging.interception.server.state.table",
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
