"""Calls of what users wrote that may never end: awaited for so long, then left behind."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ray_messaging.interception.rules.rule import Rule
from ray_messaging.interception.server.rule_pipeline import FAILURES
from ray_messaging.interception.server.watchdog import Steps, Watch

T = TypeVar("T")

# So many calls of one rule may go on after they were cancelled; then it fails at once.
_LEFT_BEHIND = 1_000


class UserCalls:
    """Call coroutines of rules, watched; one that swallows its cancellation holds nobody up."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._left: dict[asyncio.Task[object], Rule] = {}

    async def run(self, rule: Rule, call: Callable[[], Awaitable[T]], limit_s: float, what: str) -> T | BaseException:
        """Return what a call returns or raises; after `limit_s` a TimeoutError that says `what` did not come."""
        if self._left and sum(other is rule for other in self._left.values()) >= _LEFT_BEHIND:
            return TimeoutError(f"{_LEFT_BEHIND} earlier calls go on although they were cancelled: let them end")
        task = asyncio.create_task(self._call(rule, call), name=f"ray_messaging rule {rule.name}")
        try:
            await asyncio.wait((task,), timeout=limit_s)
        finally:
            if not task.done():
                task.cancel()
                self._left[task] = rule
                task.add_done_callback(self._left.pop)
        return task.result() if task.done() else TimeoutError(f"no {what} within {limit_s:g} s")

    async def _call(self, rule: Rule, call: Callable[[], Awaitable[T]]) -> T | BaseException:
        try:
            found: T = await Steps(self._watch, rule, call)
        except FAILURES as error:  # as a result: SystemExit, raised in a task, would end the loop
            return error
        return found

    async def close(self, limit_s: float) -> None:
        """Wait a moment for calls that were cancelled."""
        if self._left:
            await asyncio.wait(self._left, timeout=limit_s)
