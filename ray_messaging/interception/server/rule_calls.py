"""Calls of rules' coroutines, each with a time limit."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ray_messaging.interception.rules.rule import Rule
from ray_messaging.interception.server.rule_pipeline import FAILURES
from ray_messaging.interception.server.watchdog import Steps, Watch

T = TypeVar("T")

_MAX_ABANDONED = 1_000  # cancelled calls of one rule that still run; above it, further calls fail at once


class RuleCalls:
    """Watched calls of rules' coroutines. A call that ignores its cancellation is abandoned, and delays no other."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._abandoned: dict[asyncio.Task[object], Rule] = {}

    async def run(self, rule: Rule, call: Callable[[], Awaitable[T]], limit_s: float, result: str) -> T | BaseException:
        """Return the result of a call, or its error; after `limit_s` a TimeoutError that names the missing `result`."""
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
        """Wait up to `limit_s` for cancelled calls."""
        if self._abandoned:
            await asyncio.wait(self._abandoned, timeout=limit_s)
