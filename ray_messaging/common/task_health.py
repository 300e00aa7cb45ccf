"""How a loop in the background is doing, and its end."""

import asyncio
from typing import Any, NamedTuple

_AGAIN_S = 0.2
STUCK_S = 15.0  # a loop that has work comes round within this; a read of a mailbox may take 5 s


class TaskHealth(NamedTuple):
    """Say whether a loop still runs, has work, and how long ago (s) it came round.

    One that waits for work is well, however long it waits. `limit_s`: with work to do it comes round within this.
    """

    name: str
    alive: bool
    busy: bool
    age_s: float
    error: str = ""
    limit_s: float = STUCK_S

    @property
    def stuck(self) -> bool:
        """Tell whether it has work and does not get on with it."""
        return self.alive and self.busy and self.age_s > self.limit_s


async def end(task: "asyncio.Task[Any]") -> None:
    """Cancel a task until it has ended, however it ends.

    Once is not enough: asyncio.wait_for of Python 3.11, by which redis-py connects, may drop a cancellation.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_AGAIN_S)
    if not task.cancelled():
        task.exception()  # whoever ends it does not ask why it had failed
