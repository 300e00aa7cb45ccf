"""Calls of rules' coroutines, each with a time limit, and the closing of removed rules."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from ray_messaging.interception.rules.rule import Rule
from ray_messaging.interception.server.rule_pipeline import FAILURES
from ray_messaging.interception.server.watchdog import Steps, Watch

if TYPE_CHECKING:
    from ray_messaging.interception.server.rule_set import RuleSet
    from ray_messaging.interception.server.slow_rule_runner import SlowRuleRunner
    from ray_messaging.interception.server.step_batches import StepBatches

logger = logging.getLogger(__name__)

T = TypeVar("T")

_MAX_ABANDONED = 1_000  # cancelled calls of one rule that still run; above it, further calls fail at once
_CLOSE_S = 3.0  # time limit for a rule's close()


class RuleCalls:
    """Calls of rules' coroutines under the watchdog.

    A call that ignores its cancellation is abandoned, and delays no other.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._abandoned: dict[asyncio.Task[object], Rule] = {}

    async def run(self, rule: Rule, call: Callable[[], Awaitable[T]], limit_s: float, result: str) -> T | BaseException:
        """Return the result of a call, or its error.

        After `limit_s` the error is a TimeoutError that names what is missing, the `result`.
        """
        if self._abandoned and sum(other is rule for other in self._abandoned.values()) >= _MAX_ABANDONED:
            return TimeoutError(f"{_MAX_ABANDONED} earlier calls go on although they were cancelled: let them end")
        task = asyncio.create_task(self._call(rule, call), name=f"ray_messaging rule {rule.name}")
        try:
            await asyncio.wait((task,), timeout=limit_s)
        finally:
            if not task.done():
                task.cancel()
                self._abandoned[task] = rule
                task.add_done_callback(self._abandoned.pop)
        return task.result() if task.done() else TimeoutError(f"no {result} within {limit_s:g} s")

    async def _call(self, rule: Rule, call: Callable[[], Awaitable[T]]) -> T | BaseException:
        try:
            found: T = await Steps(self._watch, rule, call)
        except FAILURES as error:  # returned: a SystemExit raised in a task would end the loop
            return error
        return found

    async def close(self, limit_s: float) -> None:
        """Wait up to `limit_s` for cancelled calls to end."""
        if self._abandoned:
            await asyncio.wait(self._abandoned, timeout=limit_s)


class RuleCloser:
    """Closer of rules: it closes a removed rule once no message needs it, and all other rules at the end."""

    def __init__(
        self, rules: "RuleSet", slow_rules: "SlowRuleRunner", in_steps: "StepBatches", calls: RuleCalls
    ) -> None:
        self._rules = rules
        self._slow_rules = slow_rules
        self._in_steps = in_steps
        self._calls = calls
        self._closing: set[asyncio.Task[None]] = set()

    def begin(self, before: Iterable[Rule]) -> None:
        """Close each rule of an earlier set that is not in the current set any more, once no message needs it."""
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
