"""Waiters for the log's progress."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

from ray_messaging.errors import MessagingError

Reached = Callable[[str, str], bool]  # whether a stream was read up to an entry


class Waiters:
    """Tasks that wait until streams are read up to an entry, or for any new rows."""

    def __init__(self, reached: Reached) -> None:
        self._reached = reached
        self._open: dict[asyncio.Future[None], dict[str, str]] = {}
        self._event = asyncio.Event()
        self._asked = asyncio.Event()

    async def reach(self, ends: Mapping[str, str]) -> None:
        """Wait until each stream was read up to its entry."""
        missing = {name: entry for name, entry in ends.items() if not self._reached(name, entry)}
        if not missing:
            return
        future = asyncio.get_running_loop().create_future()
        self._open[future] = missing
        self._asked.set()
        try:
            await future
        finally:
            del self._open[future]

    async def pause(self, timeout_s: float) -> None:
        """Wait up to a timeout, shorter if a task waits for streams."""
        if self._open:
            return
        self._asked.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._asked.wait(), timeout_s)

    async def wait_change(self) -> None:
        """Wait until entries were read, or the writer failed."""
        await self._event.wait()

    def notify(self) -> None:
        """Wake the tasks that wait for a position which is reached now."""
        for future, missing in self._open.items():
            for name in [name for name, entry in missing.items() if self._reached(name, entry)]:
                del missing[name]
            if not missing and not future.done():
                future.set_result(None)
        self._event.set()
        self._event = asyncio.Event()

    def fail(self, error: MessagingError) -> None:
        """Raise an error in the tasks that wait for streams; wake those that wait for changes."""
        for future in self._open:
            if not future.done():
                future.set_exception(error.with_traceback(None))
        self._event.set()
        self._event = asyncio.Event()
