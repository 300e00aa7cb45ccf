"""The rules that say who may say what to whom; derive from `Rule` to write one."""

from ray_messaging.interception.rules.black_list import BlackList
from ray_messaging.interception.rules.max_length import MaxLength
from ray_messaging.interception.rules.rule import ALLOW, Rule, Verdict, block

__all__ = ["ALLOW", "BlackList", "MaxLength", "Rule", "Verdict", "block"]
