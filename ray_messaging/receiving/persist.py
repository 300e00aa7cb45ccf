"""Calls that a receiver repeats until the server answers, because its messages wait as well."""

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ray_messaging.common.backoff import Backoff, RetryPolicy
from ray_messaging.errors import ConnectionFailed, MailboxFull, ServerRefused

logger = logging.getLogger(__name__)

T = TypeVar("T")


async def persist(call: Callable[[], Awaitable[T]], policy: RetryPolicy, why: str) -> T:
    """Repeat a call while the server does not answer or has no memory, and log a warning that begins with `why`."""
    backoff = Backoff(policy)
    while True:
        try:
            return await call()
        except ServerRefused:
            raise
        except (ConnectionFailed, MailboxFull) as error:
            logger.warning("%s, trying on: %s", why, error)
            await backoff.sleep()
