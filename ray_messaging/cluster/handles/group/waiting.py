"""The two ways in which a handle's calls wait: blocking, for drivers and tasks, or in an event loop."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Generic, Protocol, TypeVar

import ray

from ray_messaging.errors import ConfigError

Refs = list[Any]  # of ObjectRefs
T = TypeVar("T")


class Lock(Protocol):
    """A lock that calls hold while they wait."""

    def held(self) -> AbstractAsyncContextManager[object]:
        """Return a context that holds the lock."""


class Waiting(Protocol):
    """The way in which a handle's calls wait: blocking, or in an event loop."""

    blocks: bool  # its coroutines never suspend: see `common.awaitables.finish`

    async def value(self, ref: Any) -> Any:  # noqa: ANN401 - an ObjectRef and its value
        """Return the result of a Ray call, or raise its error."""

    async def some(self, refs: Refs, timeout_s: float) -> tuple[Refs, Refs]:
        """Wait for Ray calls up to a time; return those that have ended, and the others."""

    async def pause(self, seconds: float) -> None:
        """Wait for some seconds."""

    def lock(self) -> Lock:
        """Return a new lock."""

    def shared(self, make: Callable[[], T]) -> Callable[[], T]:
        """Return a function that returns an object made by `make`, which concurrent calls share."""


class Blocking:
    """Waits that block the thread: the coroutines never suspend."""

    blocks = True

    async def value(self, ref: Any) -> Any:  # noqa: ANN401 - an ObjectRef and its value
        """Return the result of a Ray call, or raise its error."""
        return ray.get(ref)

    async def some(self, refs: Refs, timeout_s: float) -> tuple[Refs, Refs]:
        """Wait for Ray calls up to a time; return those that have ended, and the others."""
        return ray.wait(refs, num_returns=len(refs), timeout=timeout_s)

    async def pause(self, seconds: float) -> None:
        """Wait for some seconds."""
        time.sleep(seconds)  # noqa: ASYNC251 - there is no event loop

    def lock(self) -> Lock:
        """Return a lock for threads."""
        return _ThreadLock()

    def shared(self, make: Callable[[], T]) -> Callable[[], T]:
        """Call `make` once; return a function that returns the same object in all threads."""
        made = make()
        return lambda: made


class InLoop:
    """Waits that let the event loop go on."""

    blocks = False

    async def value(self, ref: Any) -> Any:  # noqa: ANN401 - an ObjectRef and its value
        """Return the result of a Ray call, or raise its error."""
        return await ref

    async def some(self, refs: Refs, timeout_s: float) -> tuple[Refs, Refs]:
        """Wait for Ray calls up to a time; return those that have ended, and the others."""
        futures = [asyncio.wrap_future(ref.future()) for ref in refs]
        for future in futures:  # nobody reads the error of a future that fails later
            future.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        await asyncio.wait(futures, timeout=timeout_s)
        ended = [future.done() for future in futures]
        return (
            [ref for ref, end in zip(refs, ended, strict=True) if end],
            [ref for ref, end in zip(refs, ended, strict=True) if not end],
        )

    async def pause(self, seconds: float) -> None:
        """Wait for some seconds."""
        await asyncio.sleep(seconds)

    def lock(self) -> Lock:
        """Return a lock for tasks. It raises ConfigError if tasks of two event loops want it at the same time."""
        return _TaskLock()

    def shared(self, make: Callable[[], T]) -> Callable[[], T]:
        """Return a function that calls `make` once per event loop, and returns the same object to all callers in it."""
        return _PerLoop(make).get


class _ThreadLock:
    """A lock for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def held(self) -> "_ThreadLock":
        """Return a context that holds the lock."""
        return self

    async def __aenter__(self) -> None:
        self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()


class _Turns:
    """The number of calls in one event loop that hold a lock or wait for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self.loop = loop
        self.lock = asyncio.Lock()
        self.calls = 0

    def over(self) -> bool:
        """Return whether no call is left. Calls of a closed event loop do not count, because they never continue."""
        return not self.calls or self.loop is None or self.loop.is_closed()


class _TaskLock:
    """A lock for tasks, which the tasks of only one event loop may use at a time."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._turns = _Turns(None)

    @asynccontextmanager
    async def held(self) -> AsyncGenerator[None, None]:
        """Hold the lock; raise ConfigError while a call in another event loop holds it or waits for it."""
        turns = self._enter(asyncio.get_running_loop())
        try:
            async with turns.lock:
                yield
        finally:
            with self._guard:
                turns.calls -= 1

    def _enter(self, loop: asyncio.AbstractEventLoop) -> _Turns:
        with self._guard:
            if self._turns.loop is not loop:
                if not self._turns.over():
                    raise ConfigError(
                        "`group.aio` fetches and acks in one event loop at a time, and a call of another loop has not"
                        " ended. Give each event loop a handle of its own: messaging.group(name).aio"
                    )
                self._turns = _Turns(loop)
            self._turns.calls += 1
            return self._turns


class _PerLoop(Generic[T]):
    """Objects that `make` makes, one for each event loop."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._guard = threading.Lock()
        self._made: dict[asyncio.AbstractEventLoop, T] = {}

    def get(self) -> T:
        """Return the object of the running event loop."""
        loop = asyncio.get_running_loop()
        found = self._made.get(loop)
        if found is None:
            with self._guard:
                self._made = {each: made for each, made in self._made.items() if not each.is_closed()}
                found = self._made[loop] = self._make()
        return found
