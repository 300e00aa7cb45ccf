"""Passwords of an embedded server with a replica, and of its Sentinel."""

import secrets
from dataclasses import dataclass, field


def _password() -> str:
    return secrets.token_urlsafe(32)


@dataclass(frozen=True)
class Credentials:
    """Random passwords; each opens one thing only."""

    clients: str = field(default_factory=_password, repr=False)  # of both servers
    sentinel: str = field(default_factory=_password, repr=False)  # of the Sentinel
    watcher: str = field(default_factory=_password, repr=False)  # by which the Sentinel logs in at the servers
