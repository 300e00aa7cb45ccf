"""Calls to several shards at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from ray_messaging.common.task_health import end
from ray_messaging.transports.sharded.versions import version_of
from ray_messaging.transports.transport import FrameWrite, SendRequest

T = TypeVar("T")


async def at_all(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Make calls at the same time, and return their results; raise the first error once all have ended."""
    found = await asyncio.gather(*calls, return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return found  # type: ignore[return-value]  # none is an exception


class PendingCalls(Generic[T]):
    """Calls to shards, one under way at each: one that gives no answer keeps nobody from the answers of the others."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: dict[int, asyncio.Task[T]] = {}

    async def answers(
        self, calls: Mapping[int, Callable[[], Coroutine[Any, Any, T]]], timeout_s: float, *, first: bool = False
    ) -> list[tuple[int, asyncio.Task[T]]]:
        """Return the calls that have ended in time; at shards with a call under way, none of the new ones is made.

        Args: with `first` it returns as soon as one has ended.
        """
        for shard, call in calls.items():
            if shard not in self._tasks:
                self._tasks[shard] = asyncio.create_task(call(), name=f"ray_messaging {self._name} of shard {shard}")
        when = asyncio.FIRST_COMPLETED if first else asyncio.ALL_COMPLETED
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=timeout_s, return_when=when)
        return [(shard, self._tasks.pop(shard)) for shard, task in list(self._tasks.items()) if task.done()]

    def keep(self, shard: int, task: asyncio.Task[T]) -> None:
        """Keep an ended call, whose error is to be raised by the next one."""
        self._tasks[shard] = task

    def has(self, shard: int) -> bool:
        """Tell whether a shard's call is under way, or was not returned yet."""
        return shard in self._tasks

    async def stop(self, shard: int) -> None:
        """Give up a shard's call, unless it has ended."""
        task = self._tasks.get(shard)
        if task is not None and not task.done():
            await end(task)
            self._tasks.pop(shard, None)

    async def close(self) -> None:
        """Give up the calls that are under way."""
        tasks, self._tasks = self._tasks, {}
        for task in tasks.values():
            await end(task)


def places_by_shard(writes: Sequence[FrameWrite], homes: Mapping[str, int]) -> dict[int, list[int]]:
    """Return which writes go to which shard, by their places; what no mailbox takes goes to the control shard."""
    parts: dict[int, list[int]] = {}
    for place, write in enumerate(writes):
        parts.setdefault(homes.get(write.mailbox, 0), []).append(place)
    return parts


def part_of(request: SendRequest, shard: int, writes: Sequence[FrameWrite]) -> SendRequest:
    """Return a call for one shard with some of the writes, without the conclusion."""
    version = version_of(request.directory_version, shard)
    return SendRequest(request.sender, request.epoch, version, request.interceptor_epoch, writes)
