"""The thread in which a group's model runs, beside the event loop of its actor."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from time import perf_counter
from typing import Any, Final, TypeVar

from ray_messaging.common.awaitables import raising

T = TypeVar("T")

_SHORT_S: Final = 0.02


class ModelThread:
    """One thread for all calls of a model.

    The event loop stands still for a short call, 20 ms at most, because to be woken by its result costs up to a
    twentieth of a small step. After a call that was longer it goes on at once. So a call that waits for the event loop
    itself may wait 20 ms.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "model")
        self._short = True  # the last call was

    async def call(self, function: Callable[..., T], *args: Any) -> T:  # noqa: ANN401 - the function's
        """Call a plain function in the thread; raises its exceptions, as `raising` does."""
        began = perf_counter()
        future = self._thread.submit(copy_context().run, raising, function, *args)
        if self._short:
            with suppress(TimeoutError):
                future.exception(_SHORT_S)
        try:
            return future.result() if future.done() else await asyncio.wrap_future(future)
        finally:
            self._short = perf_counter() - began <= _SHORT_S
