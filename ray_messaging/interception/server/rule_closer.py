"""Rules that are let go: once nobody waits for them, and whatever they do."""

import asyncio
import logging
from collections.abc import Iterable

from ray_messaging.interception.rules.rule import Rule
from ray_messaging.interception.server.deferred.deferral import Deferrals
from ray_messaging.interception.server.rule_set import RuleSet
from ray_messaging.interception.server.user_calls import UserCalls

logger = logging.getLogger(__name__)

_CLOSE_S = 3.0  # a rule has so long to let go of its connections


class RuleCloser:
    """Close rules that were taken out, and all of them at the end."""

    def __init__(self, rules: RuleSet, deferrals: Deferrals, calls: UserCalls) -> None:
        self._rules = rules
        self._deferrals = deferrals
        self._calls = calls
        self._leaving: set[asyncio.Task[None]] = set()

    def begin(self, before: Iterable[Rule]) -> None:
        """Close those that are in no more, each when the last message that waits for it is through."""
        for rule in before:
            if not self._is_in(rule):
                task = asyncio.create_task(self._leave(rule), name=f"ray_messaging farewell to {rule.name}")
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)

    def _is_in(self, rule: Rule) -> bool:
        return any(other is rule for other in self._rules)

    async def _leave(self, rule: Rule) -> None:
        await self._deferrals.done_with(rule)
        if not self._is_in(rule):  # it may have been put in again
            await self._close(rule)
            rule.context = None

    async def _close(self, rule: Rule) -> None:
        error = await self._calls.run(rule, rule.close, _CLOSE_S, "end of its close()")
        if isinstance(error, BaseException):
            logger.error("rule %r could not be closed, and is let go: %r", rule.name, error, exc_info=error)

    async def close(self) -> None:
        """Close all that are left, each for as long as it may take; nobody may wait any more."""
        await asyncio.gather(*self._leaving, *map(self._close, self._rules))
