"""The thread in which a group's model runs, and the search for an agent whose code blocks this thread's event loop.

Only one agent's code runs at a time. The time between two awaits in which an agent's code runs is called its turn.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from time import perf_counter
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import finalize

from ray_messaging.common.awaitables import raising

if TYPE_CHECKING:
    from ray_messaging.cluster.run.agent import Agent

logger = logging.getLogger(__name__)

T = TypeVar("T")

_SHORT_S: Final = 0.02
BLOCKING_S: Final = 0.1  # a turn of so many seconds blocks other agents; asyncio's debug mode has the same limit


class ModelThread:
    """One thread for all calls of a model, with an event loop of its own for async models.

    If the last call of the model took at most 20 ms, the next call blocks the actor's own event loop until the call
    ends, but for at most 20 ms. This saves the time to wake that loop for the result, up to a twentieth of a small
    step. In return, other calls to the actor may be delayed by 20 ms.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "model")
        self._short = True  # whether the last call took at most _SHORT_S
        self._last: Future[Any] | None = None  # the last call
        # The model's event loop is the same in all steps, because clients that the model has opened are bound to it.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._between: Future[None] | None = None  # set while `go_on` lets the loop run; done once the loop has stopped

    async def call(
        self,
        function: Callable[..., T],
        *args: Any,  # noqa: ANN401 - the function's
        look: Callable[[], float | None] | None = None,
    ) -> T:
        """Call a plain function in the thread; return its result, or raise its exception.

        A StopIteration becomes a RuntimeError.

        Args: `look` is called repeatedly, in the actor's event loop. It returns the number of seconds until its next
        call (None: when the function has ended). If `look` raises an exception, this method raises it, even if the
        function has not ended. With `look`, the actor's event loop is not blocked.
        """
        began = perf_counter()
        await self.pause()
        future = self._thread.submit(copy_context().run, raising, function, *args)
        self._last = future
        if self._short and look is None:
            with suppress(TimeoutError):
                future.exception(_SHORT_S)
        try:
            if future.done():
                return future.result()
            ended = asyncio.wrap_future(future)
            try:
                while look is not None and not ended.done():
                    await asyncio.wait({ended}, timeout=look())
                return await ended
            finally:
                ended.cancel()  # if `look` has raised an error, the result is not needed any more
        finally:
            self._short = perf_counter() - began <= _SHORT_S

    def go_on(self) -> None:
        """Let tasks in the model's event loop, such as calls through `me.remember`, run on until `pause` is called."""
        if self._loop is not None and self._between is None:
            self._between = self._thread.submit(self._loop.run_forever)

    async def pause(self) -> None:
        """Stop the model's event loop, if `go_on` has let it run; return when it stands still."""
        if self._between is not None:
            assert self._loop is not None
            between, self._between = self._between, None
            self._loop.call_soon_threadsafe(self._loop.stop)
            await asyncio.wrap_future(between)

    def wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end in the model's event loop; return its result. Call this in the model's thread."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            finalize(self, _close, self._loop)
        return self._loop.run_until_complete(coroutine)

    async def close(self) -> None:
        """Close the model's event loop, and with it what lives in the loop, such as the connections of a client.

        If the model's last call has not ended, the loop is not closed.
        """
        if self._loop is not None and self._last is not None and self._last.done():
            await self.pause()
            await asyncio.wrap_future(self._thread.submit(_end, self._loop))

    def soon(self, function: Callable[[], object]) -> None:
        """Schedule a function in the model's event loop, from any thread. It is called as soon as that loop runs.

        If there is no loop yet, because no async model was called, the function is not called.
        """
        if self._loop is not None:
            self._loop.call_soon_threadsafe(function)

    def tell(self, function: Callable[..., object], *args: Any) -> bool:  # noqa: ANN401 - the function's
        """Schedule a function in the model's event loop, from any thread; return whether that loop runs now.

        If the loop does not run, the function is not called.
        """
        if self._loop is None or not self._loop.is_running():
            return False
        self._loop.call_soon_threadsafe(function, *args)
        return True


def _end(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _close(loop: asyncio.AbstractEventLoop) -> None:
    if not loop.is_running():  # the loop still runs if a model has not returned when the process ends
        loop.close()


class Holder:
    """Record of the agent whose code runs now, and of the longest turn of the step.

    A turn is the time between two awaits in which an agent's code runs, and no other agent's. The first turn of at
    least BLOCKING_S seconds is logged as a warning.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._now: tuple[Agent, float] | None = None  # the agent whose turn it is, and the time at which the turn began
        self._longest: tuple[Agent | None, float] = None, 0.0
        self._warned = False

    def reset(self) -> None:
        """Forget which agents ran for how long in the previous step."""
        self._now, self._longest = None, (None, 0.0)

    def begin(self, agent: "Agent") -> None:
        """Record that an agent's code begins to run, after the call of the model or after an await."""
        self._now = agent, perf_counter()

    def end(self, what: str) -> None:
        """Record that the code of the agent has ended, or awaits something; warn if it has run too long.

        Args: `what` is the name of this code in a warning, such as "the model".
        """
        assert self._now is not None
        (agent, began), self._now = self._now, None
        seconds = perf_counter() - began
        if seconds < BLOCKING_S:
            return
        self._longest = max(self._longest, (agent, seconds), key=lambda turn: turn[1])
        if not self._warned:
            self._warned = True
            logger.warning(
                "%s blocks the event loop of group %r: agent %r held it for %.1f s in step %d, while all other agents "
                "of the group waited. Run blocking code by await asyncio.to_thread(...), or pass a plain function to "
                "me.remember, which runs it in a thread",
                what, self._group, agent.id, seconds, agent.step,
            )  # fmt: skip

    def longest(self, now: float) -> "tuple[Agent | None, float]":
        """Return the agent whose code has run longest without an await in this step, and for how many seconds.

        The agent is None, and the seconds are 0, if no agent's code has run for at least BLOCKING_S seconds.

        Args: `now` is the present value of `perf_counter`, up to which a turn that has not ended is measured.
        """
        turn = self._now
        running = (None, 0.0) if turn is None or now - turn[1] < BLOCKING_S else (turn[0], now - turn[1])
        return max(self._longest, running, key=lambda found: found[1])


class Turns(Awaitable[T]):
    """An awaitable that awaits a call of an agent, and records in `holder` when the code of this call runs.

    Args: `what` is the name of the call in a warning, such as "the model".
    """

    __slots__ = ("_agent", "_call", "_holder", "_what")

    def __init__(self, call: Awaitable[T], holder: Holder, agent: "Agent", what: str) -> None:
        self._call = call
        self._holder = holder
        self._agent = agent
        self._what = what

    def __await__(self) -> Generator[Any, Any, T]:
        inner = self._call if isinstance(self._call, CoroutineType) else _coroutine(self._call)
        error: BaseException | None = None
        while True:
            self._holder.begin(self._agent)
            try:
                found = inner.send(None) if error is None else inner.throw(error)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self._holder.end(self._what)
            try:
                yield found
                error = None
            except BaseException as thrown:  # noqa: BLE001 - the exception is raised again in the call
                error = thrown


async def _coroutine(call: Awaitable[T]) -> T:
    return await call
