"""Calls of a user's coroutines: so many at a time, each for so long."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ray_messaging.interception.rules.rule import Rule
from ray_messaging.interception.server.watchdog import Steps, Stuck

T = TypeVar("T")

# A call that was cancelled may take so long to tidy up before it counts as one that will not end.
_GRACE_S = 1.0


class Calls:
    """Run calls, at most `concurrency` at a time and in the order they came; none is awaited longer than `timeout_s`.

    Who waits for a place waits as long as it takes: what a call takes is limited, what many take in turn is not. A call
    that goes on after it was cancelled (it caught the cancellation) is left behind; as long as `concurrency` of those
    are there, others fail at once, so that there are never more than twice as many.
    """

    def __init__(self, concurrency: int, timeout_s: float) -> None:
        self._concurrency = concurrency
        self._timeout_s = timeout_s
        self._places = asyncio.Semaphore(concurrency)
        self._left_behind: dict[asyncio.Future[Any], float] = {}  # and when it was cancelled (loop time)

    async def run(self, rule: Rule, call: Callable[[], Awaitable[T]]) -> T:
        """Return what a call of a rule returns; raise what it raises, or TimeoutError.

        The place is given back in the same step in which the caller goes on: what it does until it next awaits comes
        before the next call.
        """
        async with self._places:
            await self._room()
            future = asyncio.create_task(_watched(rule, call))
            try:
                await asyncio.wait((future,), timeout=self._timeout_s)
            finally:
                if not future.done():
                    self._leave(future)
            if not future.done():
                raise TimeoutError(f"no answer within {self._timeout_s:g} s")
            if future.cancelled():  # else the caller would seem to be cancelled
                raise RuntimeError("the call was cancelled from within")
            return future.result()

    async def close(self) -> None:
        """Wait a moment for calls that were cancelled."""
        if self._left_behind:
            await asyncio.wait(self._left_behind, timeout=_GRACE_S)

    def _leave(self, future: asyncio.Future[Any]) -> None:
        self._left_behind[future] = asyncio.get_running_loop().time()
        future.add_done_callback(self._ended)
        future.cancel()

    def _ended(self, future: asyncio.Future[Any]) -> None:
        del self._left_behind[future]
        if not future.cancelled():
            future.exception()  # nobody waits for it any more: that it was looked at keeps asyncio from complaining

    async def _room(self) -> None:
        while len(self._left_behind) >= self._concurrency:
            left_s = max(self._left_behind.values()) + _GRACE_S - asyncio.get_running_loop().time()
            if left_s <= 0:
                raise TimeoutError(
                    f"{len(self._left_behind)} earlier calls go on although they were cancelled: let CancelledError "
                    "through (an `except:` without a class catches it)"
                )
            await asyncio.wait(self._left_behind, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)


async def _watched(rule: Rule, call: Callable[[], Awaitable[T]]) -> T:
    """Await a call, watched while it is at work; what it raises ends neither the loop nor the task."""
    try:
        return await (call() if rule.context is None else Steps(rule.context.watch, rule, call))
    except Stuck as error:
        late = TimeoutError("it was at work for too long, and was interrupted")
        raise late.with_traceback(error.__traceback__) from None
    except SystemExit as error:
        raise RuntimeError(f"the call would have ended the process: {error!r}") from error
