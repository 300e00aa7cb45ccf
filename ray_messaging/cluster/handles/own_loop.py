"""Coroutines in a thread and event loop of their own, for callers with or without a running loop."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")


class OwnLoop:
    """An event loop in a thread of its own, for objects that live through several calls; it ends with its block."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"ray_messaging {name}", daemon=True)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine, and wait for its result; Ctrl-C cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def run_in_own_loop(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in its own thread and event loop, and wait for its result; Ctrl-C cancels it."""
    running: list[tuple[asyncio.AbstractEventLoop, Callable[[], bool]]] = []
    interrupted: list[BaseException] = []

    async def run() -> T:
        task = asyncio.current_task()
        assert task is not None
        running.append((asyncio.get_running_loop(), task.cancel))
        if interrupted:  # before this task could be cancelled
            raise asyncio.CancelledError
        return await work()

    with ThreadPoolExecutor(1, thread_name_prefix="ray_messaging own loop") as thread:
        try:
            return thread.submit(lambda: asyncio.run(run())).result()
        except BaseException as error:  # Ctrl-C, or a signal's error: the pool waits for the task
            interrupted.append(error)
            for loop, cancel in running:
                with suppress(RuntimeError):  # it ended just now
                    loop.call_soon_threadsafe(cancel)
            raise
