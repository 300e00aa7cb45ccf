"""Who waits for the log to come so far."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

from ray_messaging.errors import MessagingError

Reached = Callable[[str, str], bool]  # a stream, an entry: was it read up to there?


class Waiters:
    """Wake those who wait for streams to be read up to an entry, or for anything new."""

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
        goal = asyncio.get_running_loop().create_future()
        self._open[goal] = missing
        self._asked.set()
        try:
            await goal
        finally:
            del self._open[goal]

    async def lull(self, timeout_s: float) -> None:
        """Wait for a moment, unless somebody waits for streams."""
        if self._open:
            return
        self._asked.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._asked.wait(), timeout_s)

    async def news(self) -> None:
        """Wait until something was read."""
        await self._event.wait()

    def moved(self) -> None:
        """Look who has what they waited for."""
        for goal, missing in self._open.items():
            for name in [name for name, entry in missing.items() if self._reached(name, entry)]:
                del missing[name]
            if not missing and not goal.done():
                goal.set_result(None)
        self._event.set()
        self._event = asyncio.Event()

    def fail(self, error: MessagingError) -> None:
        """Let everybody who waits for streams have an error; who waits for news looks again."""
        for goal in self._open:
            if not goal.done():
                goal.set_exception(error.with_traceback(None))
        self._event.set()
        self._event = asyncio.Event()
