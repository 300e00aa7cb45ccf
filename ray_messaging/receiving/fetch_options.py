"""What whoever fetches asks for: how many messages, how long to wait for them, and when they are committed."""

import time
from collections.abc import Callable
from typing import Literal, NamedTuple

from ray_messaging.errors import ConfigError

Commit = Literal["next", "acked"]  # at the next fetch, or what is acknowledged alone


class FetchOptions(NamedTuple):
    """What a handle asks for; `number` counts its fetches, and the answer to number `received` has come last."""

    commit: Commit = "next"
    complete: bool = False
    number: int = 0
    received: int = 0


NEXT = FetchOptions()


def left_of(timeout: float | None) -> Callable[[], float | None]:
    """Return a function that tells what is left of a timeout that begins now, in seconds."""
    if not timeout:
        return lambda: timeout
    due = time.monotonic() + timeout
    return lambda: max(0.0, due - time.monotonic())


def check_limit(limit: int | None, *, complete: bool = False) -> None:
    """Raise ConfigError where nobody can hand out so many."""
    if limit is not None and limit < 1:
        raise ConfigError(f"limit must be at least 1, not {limit!r}: leave it out to fetch all that is there")
    if limit is not None and complete:
        raise ConfigError("complete=True fetches all that the server has: leave out the limit, or complete")


def check_commit(commit: str) -> None:
    """Raise ConfigError where a way to commit is none."""
    if commit not in {"next", "acked"}:
        raise ConfigError(f"commit must be 'next' (by the next fetch) or 'acked' (by ack alone), not {commit!r}")
