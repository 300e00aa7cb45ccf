"""Changes of rules that are in force at once, and stored as soon as the server takes them."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from ray_messaging.config import ServerConfig
from ray_messaging.errors import ConnectionFailed

T = TypeVar("T")


class PendingChanges:
    """Wait, with a limit, until changes are stored."""

    def __init__(self, server: ServerConfig, where: str, limit_s: float) -> None:
        self._server = server
        self._where = where
        self._limit_s = limit_s
        self._unfinished: set[asyncio.Task[Any]] = set()

    async def wait_stored(self, change: Coroutine[Any, Any, T]) -> T:
        """Return the result of a change once it is stored; raise its error, or ConnectionFailed after the limit."""
        task = asyncio.create_task(change, name="ray_messaging change of the rules")
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)
        if (await asyncio.wait([task], timeout=self._limit_s))[0]:
            return task.result()
        task.add_done_callback(_retrieve_error)
        raise ConnectionFailed(
            f"the change is in force, but not kept: the server at {self._where} has not taken it within "
            f"{self._limit_s:g} s. Do not repeat it: it is stored once the server takes writes, and lost if the "
            "interceptor dies before",
            host=self._server.server,
            port=self._server.port,
        )


def _retrieve_error(task: asyncio.Task[Any]) -> None:
    """Retrieve the error of a change after its caller has left; failed writes are logged elsewhere."""
    if not task.cancelled():
        task.exception()
