"""The health of background tasks, a function that ends a task, and one that logs the failure of a task."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from ray_messaging.common.backoff import CANCEL_RETRY

logger = logging.getLogger(__name__)

STUCK_S = 15.0  # the longest iteration of a healthy loop, in seconds; a read of a mailbox may take 5 s


class TaskHealth(NamedTuple):
    """State of a background loop: alive, busy, and the seconds since its last iteration.

    A loop that waits for work is healthy, however long it waits. A busy loop must finish an iteration within `limit_s`.
    """

    name: str
    alive: bool
    busy: bool
    age_s: float
    error: str = ""
    limit_s: float = STUCK_S

    @property
    def stuck(self) -> bool:
        """Return whether the loop is busy without progress."""
        return self.alive and self.busy and self.age_s > self.limit_s


async def end(task: "asyncio.Task[Any]") -> None:
    """Cancel a task, repeatedly, until it has ended with any result.

    One cancellation is not enough: redis-py connects by asyncio.wait_for, which may lose a cancellation in Python 3.11.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=CANCEL_RETRY.first_s)
    if not task.cancelled():
        task.exception()  # otherwise asyncio logs that the exception was never retrieved


def logs_failure(what: str) -> "Callable[[asyncio.Task[Any]], None]":
    """Return a callback for the end of a task.

    If the task has failed, the callback logs the error, after the text `what`, which says what the failure means.
    """

    def log(task: "asyncio.Task[Any]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s", what, exc_info=error)

    return log
