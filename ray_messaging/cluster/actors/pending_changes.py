"""Changes that are in force at once, and kept as soon as the server has them."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from ray_messaging.config import ServerConfig
from ray_messaging.errors import ConnectionFailed

T = TypeVar("T")


class PendingChanges:
    """Wait for changes to be kept, though not for ever: whoever made one is told that it is in force."""

    def __init__(self, server: ServerConfig, where: str, limit_s: float) -> None:
        self._server = server
        self._where = where
        self._limit_s = limit_s
        self._under_way: set[asyncio.Task[Any]] = set()

    async def kept(self, change: Coroutine[Any, Any, T]) -> T:
        """Return what a change returns; raise what it raises, or ConnectionFailed where it takes too long."""
        task = asyncio.create_task(change, name="ray_messaging change of the rules")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        if (await asyncio.wait([task], timeout=self._limit_s))[0]:
            return task.result()
        task.add_done_callback(_told)
        raise ConnectionFailed(
            f"the change is in force, but not kept: the server at {self._where} has not taken it within "
            f"{self._limit_s:g} s. Do not make it again: it is kept once the server takes writes, and lost if the "
            "interceptor dies before",
            host=self._server.server,
            port=self._server.port,
        )


def _told(task: asyncio.Task[Any]) -> None:
    """Take note of how a change ended whose caller was told already; a write that fails is logged where it does."""
    if not task.cancelled():
        task.exception()
