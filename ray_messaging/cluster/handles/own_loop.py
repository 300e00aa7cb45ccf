"""Run a coroutine beside whatever event loop the caller has."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


def run_in_own_loop(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in a thread and an event loop of its own, and wait for it; Ctrl-C cancels it."""
    running: list[tuple[asyncio.AbstractEventLoop, Callable[[], bool]]] = []
    interrupted: list[BaseException] = []

    async def run() -> T:
        task = asyncio.current_task()
        assert task is not None
        running.append((asyncio.get_running_loop(), task.cancel))
        if interrupted:  # before anybody could cancel this
            raise asyncio.CancelledError
        return await work()

    with ThreadPoolExecutor(1, thread_name_prefix="ray_messaging aside") as thread:
        try:
            return thread.submit(lambda: asyncio.run(run())).result()
        except BaseException as error:  # Ctrl-C, or what a signal raises: leaving would wait for all of it
            interrupted.append(error)
            for loop, cancel in running:
                with suppress(RuntimeError):  # it has come to its end just now
                    loop.call_soon_threadsafe(cancel)
            raise
