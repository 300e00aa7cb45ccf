"""The two ways in which a handle's calls wait: blocking, for drivers and tasks, or in an event loop."""

import asyncio
import threading
import time
from types import TracebackType
from typing import Any, Protocol

import ray

Refs = list[Any]  # of ObjectRefs


class Lock(Protocol):
    """A lock that calls hold while they wait."""

    def locked(self) -> bool:
        """Return whether a call holds it."""

    async def __aenter__(self) -> object: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Waiting(Protocol):
    """How a handle's calls wait."""

    blocks: bool  # its coroutines never suspend: see `common.blocking.finish`

    async def value(self, ref: Any) -> Any:  # noqa: ANN401 - an ObjectRef and its value
        """Return the result of a Ray call, or raise its error."""

    async def some(self, refs: Refs, timeout_s: float) -> tuple[Refs, Refs]:
        """Wait for Ray calls up to a time; return those that have ended, and the others."""

    async def pause(self, seconds: float) -> None:
        """Wait for some seconds."""

    def lock(self) -> Lock:
        """Return a new lock."""


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
        """Return a lock among threads."""
        return _ThreadLock()


class InLoop:
    """Waits that let the event loop go on."""

    blocks = False

    async def value(self, ref: Any) -> Any:  # noqa: ANN401 - an ObjectRef and its value
        """Return the result of a Ray call, or raise its error."""
        return await ref

    async def some(self, refs: Refs, timeout_s: float) -> tuple[Refs, Refs]:
        """Wait for Ray calls up to a time; return those that have ended, and the others."""
        futures = [asyncio.wrap_future(ref.future()) for ref in refs]
        for future in futures:  # one that fails later has no reader
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
        """Return a lock among tasks."""
        return asyncio.Lock()


class _ThreadLock:
    """A lock among threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def locked(self) -> bool:
        """Return whether a call holds it."""
        return self._lock.locked()

    async def __aenter__(self) -> None:
        self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()
