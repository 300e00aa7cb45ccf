"""New epochs: numbers that were never used before, for interceptors, log writers and delegated verdicts.

The server compares them for equality alone. A counter, or the time alone, would come again: after a flush, on a server
that was restored, or whose clock was stepped back.
"""

import secrets
import time

_CHANCE = 10**6  # the last six digits are drawn
_END = 2**62  # what is higher is none of ours, and would not fit where numbers travel


def new_epoch(above: int = 0) -> int:
    """Return a number that was never used: the time in ms and six random digits; it is above another one."""
    ms = time.time_ns() // 10**6
    return max(ms, above // _CHANCE + 1) * _CHANCE + secrets.randbelow(_CHANCE)


def successor_of(kept: bytes | None) -> int:
    """Return a new epoch above the one on the server; a value that cannot be an epoch is ignored."""
    above = int(kept) if kept is not None and kept.isdigit() and len(kept) < 20 else 0
    return new_epoch(above if above < _END // 2 else 0)
