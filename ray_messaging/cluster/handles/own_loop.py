"""Functions that run coroutines in a separate thread and event loop, for callers with or without a running loop."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

_END_S = 1.0


class SharedLoop:
    """An event loop in a separate thread, for all users that call `enter`.

    The thread ends when the last user leaves.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._changing = threading.Lock()
        self._users = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def enter(self) -> None:
        """Begin to use the loop. Each `enter` needs a later `leave`."""
        with self._changing:
            self._users += 1
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop,), name=f"ray_messaging {self._name}", daemon=True
                )
                self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine, and wait for its result; Ctrl-C cancels it."""
        future = self.begin(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin to run a coroutine, and return its future."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def leave(self, last: Coroutine[Any, Any, None] | None = None) -> None:
        """Run a last coroutine, if one is given, and stop using the loop.

        This waits for the coroutine, except in the loop's own thread, in which the garbage collector may call this.
        """
        if last is None:
            self._left()
            return
        assert self._loop is not None
        future = asyncio.run_coroutine_threadsafe(last, self._loop)
        future.add_done_callback(lambda _: self._left())
        if threading.current_thread() is not self._thread:
            future.result()

    def _left(self) -> None:
        with self._changing:
            self._users -= 1
            if self._users == 0 and self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._loop = self._thread = None


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.run_until_complete(_end_all(loop))
    loop.close()


async def _end_all(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel all tasks that are left, such as those of other packages. Then end the loop's async generators."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=_END_S)
    await loop.shutdown_asyncgens()  # ends the generators of `at_loop_end`, which then call their functions


def run_in_own_loop(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in its own thread and event loop, and wait for its result; Ctrl-C cancels it."""
    # With a loop_factory the runner does not set the event loop of this thread.
    runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
    loop, main = runner.get_loop(), work()

    def run() -> T:
        with runner:
            return runner.run(main)

    def cancel() -> None:
        for task in asyncio.all_tasks():
            if task.get_coro() is main:  # the coroutine itself ends the other tasks that it made
                task.cancel()

    with ThreadPoolExecutor(1, thread_name_prefix="ray_messaging own loop") as thread:
        try:
            return thread.submit(run).result()
        # After Ctrl-C, or an error of a signal handler, the coroutine is cancelled, because the end of the `with` block
        # waits for the thread.
        except BaseException:
            with suppress(RuntimeError):  # the error if the loop is closed already
                loop.call_soon_threadsafe(cancel)
            raise
