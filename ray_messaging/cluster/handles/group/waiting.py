"""The two ways in which a handle's calls wait: blocking, for drivers and tasks, or in an event loop."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from ray_messaging.cluster.ray_calls import get, wait
from ray_messaging.errors import ConfigError

Refs = list[Any]  # ObjectRefs
T = TypeVar("T")


class Blocking:
    """The ways of waiting of a blocking handle. They block the thread, so the handle's coroutines never suspend."""

    blocks = True

    async def value(self, ref: Any) -> Any:  # noqa: ANN401 - an ObjectRef and its value
        """Return the result of a Ray call, or raise its error."""
        return get(ref)

    async def some(self, refs: Refs, timeout_s: float) -> tuple[Refs, Refs]:
        """Wait up to `timeout_s` seconds for Ray calls; return the calls that have ended, and those that have not."""
        return wait(refs, num_returns=len(refs), timeout=timeout_s)

    async def pause(self, seconds: float) -> None:
        """Wait for some seconds."""
        time.sleep(seconds)  # noqa: ASYNC251 - there is no event loop

    def lock(self) -> "_ThreadLock":
        """Return a lock for threads."""
        return _ThreadLock()

    def shared(self, make: Callable[[], T]) -> Callable[[], T]:
        """Call `make` once; return a function that returns the same object in all threads."""
        made = make()
        return lambda: made


class InLoop:
    """The ways of waiting of an async handle. They let the event loop go on."""

    blocks = False

    async def value(self, ref: Any) -> Any:  # noqa: ANN401 - an ObjectRef and its value
        """Return the result of a Ray call, or raise its error."""
        return await ref

    async def some(self, refs: Refs, timeout_s: float) -> tuple[Refs, Refs]:
        """Wait up to `timeout_s` seconds for Ray calls; return the calls that have ended, and those that have not."""
        futures = {asyncio.wrap_future(ref.future()): ref for ref in refs}
        for future in futures:  # the callback reads errors, because asyncio warns of errors that nobody reads
            future.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        ended, _ = await asyncio.wait(futures, timeout=timeout_s)
        left = [ref for future, ref in futures.items() if future not in ended]
        return [ref for future, ref in futures.items() if future in ended], left

    async def pause(self, seconds: float) -> None:
        """Wait for some seconds."""
        await asyncio.sleep(seconds)

    def lock(self) -> "_TaskLock":
        """Return a lock for tasks, which raises ConfigError if tasks of two event loops want it at the same time."""
        return _TaskLock()

    def shared(self, make: Callable[[], T]) -> Callable[[], T]:
        """Return a function that calls `make` at its first call in an event loop, and later returns the same object."""
        made: dict[asyncio.AbstractEventLoop, T] = {}
        guard = threading.Lock()

        def get() -> T:
            loop = asyncio.get_running_loop()
            if loop not in made:
                with guard:
                    for closed in [each for each in made if each.is_closed()]:
                        del made[closed]
                    made[loop] = make()
            return made[loop]

        return get


Waiting = Blocking | InLoop


class _ThreadLock:
    """A lock for threads. It is its own context manager, because a generator would take three times as long."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def held(self) -> "_ThreadLock":
        """Return a context that holds the lock."""
        return self

    async def __aenter__(self) -> None:
        self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()


class _TaskLock:
    """A lock for tasks, which the tasks of only one event loop may use at a time."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None  # the last event loop whose tasks wanted the lock
        self._lock = asyncio.Lock()  # the lock for the tasks of the event loop `_loop`
        self._calls = 0  # how many calls in `_loop` hold the lock or wait for it

    @asynccontextmanager
    async def held(self) -> AsyncGenerator[None, None]:
        """Hold the lock; raise ConfigError while a call in another event loop holds it or waits for it."""
        loop = asyncio.get_running_loop()
        with self._guard:
            if self._loop is not loop:
                # Calls of a closed event loop are ignored, because they never continue.
                if self._calls and self._loop is not None and not self._loop.is_closed():
                    raise ConfigError(
                        "`group.aio` can fetch and ack in only one event loop at a time, and a call in another event "
                        "loop has not ended. Use another handle in each event loop: "
                        "Messaging.connect(exp_id).group(name).aio"
                    )
                self._loop, self._lock, self._calls = loop, asyncio.Lock(), 0
            self._calls += 1
            lock = self._lock
        try:
            async with lock:
                yield
        finally:
            with self._guard:
                if self._loop is loop:
                    self._calls -= 1
