"""Checks of limited resources: the used share of a limit."""

from collections.abc import Callable

from ray_messaging.observability.health.findings import Finding, critical, ok, warning

WARNING_SHARE, CRITICAL_SHARE = 0.80, 0.95


def usage_of_limit(what: str, used: int, limit: int, shown: Callable[[int], str], remedy: str) -> Finding:
    """Build a finding about the used share of a limit: a warning from 80% on, critical from 95% on."""
    share = used / max(1, limit)
    text = f"{shown(used)} of {shown(limit)} ({share:.0%})"
    if share >= CRITICAL_SHARE:
        return critical(what, text, remedy)
    return warning(what, text, remedy) if share >= WARNING_SHARE else ok(what, text)


def in_bytes(count: int) -> str:
    """Format a number of bytes with a suitable unit."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
