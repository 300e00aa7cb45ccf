"""Rules for messages, one per file. To write your own, derive from `Rule`.

`support/` holds helpers that are no rules.
"""

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
