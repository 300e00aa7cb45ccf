"""Closing of removed rules."""

import asyncio
import logging
from collections.abc import Iterable

from ray_messaging.interception.rules.rule import Rule
from ray_messaging.interception.server.rule_calls import RuleCalls
from ray_messaging.interception.server.rule_set import RuleSet
from ray_messaging.interception.server.slow_rule_runner import SlowRuleRunner
from ray_messaging.interception.server.steps.batches import StepBatches

logger = logging.getLogger(__name__)

_CLOSE_S = 3.0  # time limit for a rule's close()


class RuleCloser:
    """Close removed rules after their pending messages finish, and all rules at the end."""

    def __init__(self, rules: RuleSet, slow_rules: SlowRuleRunner, in_steps: StepBatches, calls: RuleCalls) -> None:
        self._rules = rules
        self._slow_rules = slow_rules
        self._in_steps = in_steps
        self._calls = calls
        self._closing: set[asyncio.Task[None]] = set()

    def begin(self, before: Iterable[Rule]) -> None:
        """Close each rule of an earlier set that is no longer in the current one, once no message needs it."""
        for rule in before:
            if not self._is_in(rule):
                task = asyncio.create_task(self._close_unused(rule), name=f"ray_messaging close of rule {rule.name}")
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)

    def _is_in(self, rule: Rule) -> bool:
        return any(other is rule for other in self._rules)

    async def _close_unused(self, rule: Rule) -> None:
        await self._in_steps.done_with(rule)
        await self._slow_rules.done_with(rule)
        if not self._is_in(rule):  # it may have been inserted again
            await self._close(rule)
            rule.context = None

    async def _close(self, rule: Rule) -> None:
        error = await self._calls.run(rule, rule.close, _CLOSE_S, "end of its close()")
        if isinstance(error, BaseException):
            logger.error("rule %r could not be closed, and is dropped: %r", rule.name, error, exc_info=error)

    async def close(self) -> None:
        """Close all remaining rules, each within the time limit. No message may be pending any more."""
        await asyncio.gather(*self._closing, *map(self._close, self._rules))
