"""The thread in which a group's model runs, beside the event loop of its actor."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from time import perf_counter
from typing import Any, Final, TypeVar
from weakref import finalize

from ray_messaging.common.awaitables import raising

T = TypeVar("T")

_SHORT_S: Final = 0.02


class ModelThread:
    """One thread for all calls of a model, with an event loop of its own for what is async in it.

    The actor's event loop stands still for a short call, 20 ms at most, because to be woken by its result costs up to a
    twentieth of a small step. After a call that was longer it goes on at once. So a call that waits for that event loop
    itself may wait 20 ms.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "model")
        self._short = True  # the last call was
        self._loop: asyncio.AbstractEventLoop | None = None  # for all steps: clients of models live as long

    async def call(
        self,
        function: Callable[..., T],
        *args: Any,  # noqa: ANN401 - the function's
        look: Callable[[], float | None] | None = None,
    ) -> T:
        """Call a plain function in the thread; raises its exceptions, as `raising` does.

        Args: `look` is called now and then, and returns after how many seconds it wants to be called again; the call
        ends with its exceptions, even if the function does not. With it the event loop does not stand still.
        """
        began = perf_counter()
        future = self._thread.submit(copy_context().run, raising, function, *args)
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
                ended.cancel()  # nobody asks for it any more
        finally:
            self._short = perf_counter() - began <= _SHORT_S

    def wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end; called in the thread."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            finalize(self, _close, self._loop)
        return self._loop.run_until_complete(coroutine)

    def tell(self, function: Callable[..., object], *args: Any) -> bool:  # noqa: ANN401 - the function's
        """Have the thread's event loop call a function, from any thread; return whether it runs."""
        if self._loop is None or not self._loop.is_running():
            return False
        self._loop.call_soon_threadsafe(function, *args)
        return True


def _close(loop: asyncio.AbstractEventLoop) -> None:
    if not loop.is_running():  # else the process ends, and a model does not
        loop.close()
