"""What whoever fetches asks for: how many messages, and how long to wait for them."""

import time
from collections.abc import Callable

from ray_messaging.errors import ConfigError


def left_of(timeout: float | None) -> Callable[[], float | None]:
    """Return a function that tells what is left of a timeout that begins now, in seconds."""
    if not timeout:
        return lambda: timeout
    due = time.monotonic() + timeout
    return lambda: max(0.0, due - time.monotonic())


def check_limit(limit: int | None) -> None:
    """Raise ConfigError where nobody can hand out so many."""
    if limit is not None and limit < 1:
        raise ConfigError(f"limit must be at least 1, not {limit!r}: leave it out to fetch all that is there")
