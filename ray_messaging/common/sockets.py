"""Options of TCP connections with which one end notices that the other is gone, and a check of HTTP addresses."""

import socket
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from ray_messaging.default_limits_and_leases import (
    KEEPALIVE_IDLE_S,
    KEEPALIVE_PROBE_S,
    KEEPALIVE_PROBES,
    UNACKNOWLEDGED_S,
)

_VALUES = {
    "TCP_KEEPIDLE": KEEPALIVE_IDLE_S,
    "TCP_KEEPINTVL": KEEPALIVE_PROBE_S,
    "TCP_KEEPCNT": KEEPALIVE_PROBES,
    "TCP_USER_TIMEOUT": int(UNACKNOWLEDGED_S * 1000),
}


def keepalive_options() -> dict[int, int]:
    """Return the numbers and values of TCP options for keepalive. Options that this system lacks are left out."""
    return {getattr(socket, name): value for name, value in _VALUES.items() if hasattr(socket, name)}


def notice_cuts(found: Any) -> None:  # noqa: ANN401 - a socket, or what asyncio or uvloop has in place of one
    """Set options of a TCP socket so that the connection breaks when the other end is gone; ignore other objects."""
    if found is None:
        return
    with suppress(OSError):  # the socket has just been closed, or does not use TCP
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in keepalive_options().items():
            found.setsockopt(socket.IPPROTO_TCP, option, value)


def is_http_address(url: object) -> bool:
    """Return whether a value is the http(s) URL of a host."""
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
