"""A coroutine in a thread and event loop of its own, for callers with or without a running loop."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


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
