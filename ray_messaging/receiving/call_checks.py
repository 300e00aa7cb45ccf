"""Checks of the arguments of calls that receive or wait. They are made before the calls wait for anything."""

import math
from numbers import Real
from typing import Literal

from ray_messaging.errors import ConfigError

# What commits a fetched message: the next fetch ("next"), or only a call of `ack` ("acked").
CommitMode = Literal["next", "acked"]


def check_fetch(limit: int | None, commit: str = "next", *, complete: bool = False) -> None:
    """Raise ConfigError for an unknown `commit`, and for a `limit` that is invalid or is given with `complete`."""
    if limit is not None and (isinstance(limit, bool) or not hasattr(limit, "__index__")):
        raise ConfigError(f"limit must be an int, not {limit!r}: leave it out to fetch all messages that have arrived")
    if limit is not None and limit < 1:
        raise ConfigError(
            f"limit must be at least 1, not {limit!r}: leave it out to fetch all messages that have arrived"
        )
    if limit is not None and complete:
        raise ConfigError(
            "complete=True fetches all messages that the server has, so there can be no limit: leave "
            "out limit=, or complete="
        )
    if commit not in {"next", "acked"}:
        raise ConfigError(
            f"commit must be 'next' (the next fetch commits) or 'acked' (only ack commits), not {commit!r}"
        )


def check_timeout(timeout: object, *, optional: bool = True, positive: bool = False) -> None:
    """Raise ConfigError unless `timeout` is None or a finite number of seconds, 0 or more.

    Args: `optional=False` refuses None, and `positive=True` refuses 0.
    """
    if timeout is None and optional:
        return
    seconds = float(timeout) if isinstance(timeout, Real) and not isinstance(timeout, bool) else math.nan
    # Every comparison with NaN is false, so the condition also refuses NaN.
    if not 0 <= seconds < math.inf or (positive and seconds == 0):
        least, none = "above 0" if positive else "0 or more", ", or None for no limit" if optional else ""
        raise ConfigError(f"timeout={timeout!r} must be a number of seconds, {least}{none}")
