"""Calls of a user's coroutines, limited in number and time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ray_messaging.interception.rules.rule import Rule
from ray_messaging.interception.server.watchdog import Steps, Stuck

T = TypeVar("T")

# Time for a cancelled call to clean up; after it, the call counts as one that will not end.
_GRACE_S = 1.0


class Calls:
    """At most `concurrency` calls at a time, none awaited longer than `timeout_s`.

    Waiting for a place has no limit: the limit is for the call, not for the calls before it. A call that continues
    after its cancellation (it caught it) is abandoned. While `concurrency` abandoned calls run, further calls fail at
    once, so there are never more than twice as many.
    """

    def __init__(self, concurrency: int, timeout_s: float) -> None:
        self._concurrency = concurrency
        self._timeout_s = timeout_s
        self._places = asyncio.Semaphore(concurrency)
        self._abandoned: dict[asyncio.Future[Any], float] = {}  # -> when it was cancelled (loop time)

    async def run(self, rule: Rule, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a rule's call; raise its error, or TimeoutError.

        The place becomes free in the step in which the caller continues: its code up to the next `await` runs before
        the next call.
        """
        async with self._places:
            await self._wait_for_abandoned()
            future = asyncio.create_task(_watched(rule, call))
            try:
                await asyncio.wait((future,), timeout=self._timeout_s)
            finally:
                if not future.done():
                    self._abandon(future)
            if not future.done():
                raise TimeoutError(f"no answer within {self._timeout_s:g} s")
            if future.cancelled():  # else the caller would seem to be cancelled
                raise RuntimeError("the call was cancelled from within")
            return future.result()

    async def close(self) -> None:
        """Wait a moment for cancelled calls."""
        if self._abandoned:
            await asyncio.wait(self._abandoned, timeout=_GRACE_S)

    def _abandon(self, future: asyncio.Future[Any]) -> None:
        self._abandoned[future] = asyncio.get_running_loop().time()
        future.add_done_callback(self._ended)
        future.cancel()

    def _ended(self, future: asyncio.Future[Any]) -> None:
        del self._abandoned[future]
        if not future.cancelled():
            future.exception()  # retrieved, so that asyncio does not log it

    async def _wait_for_abandoned(self) -> None:
        while len(self._abandoned) >= self._concurrency:
            left_s = max(self._abandoned.values()) + _GRACE_S - asyncio.get_running_loop().time()
            if left_s <= 0:
                raise TimeoutError(
                    f"{len(self._abandoned)} earlier calls go on although they were cancelled: let CancelledError "
                    "through (an `except:` without a class catches it)"
                )
            await asyncio.wait(self._abandoned, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)


async def _watched(rule: Rule, call: Callable[[], Awaitable[T]]) -> T:
    """Await a call under the watchdog; turn errors that would end the loop or the task into others."""
    try:
        return await (call() if rule.context is None else Steps(rule.context.watch, rule, call))
    except Stuck as error:
        late = TimeoutError("it was at work for too long, and was interrupted")
        raise late.with_traceback(error.__traceback__) from None
    except SystemExit as error:
        raise RuntimeError(f"the call would have ended the process: {error!r}") from error
