"""Rules of access: the names under which the server may be asked, and the token that a browser must bring once."""

import hmac
import secrets
import socket
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import urlsplit

_ANY = {"0.0.0.0", "::"}  # noqa: S104 - what a user may ask for
_LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def names_of(host: str) -> frozenset[str]:
    """Return the names by which browsers may ask a server that is bound to an address."""
    if is_loopback(host):
        return _LOOPBACK_NAMES
    if host in _ANY:
        own = {socket.gethostname(), socket.getfqdn()}
        own |= _addresses()
        return _LOOPBACK_NAMES | {name.lower() for name in own}
    return frozenset({host.lower()})


def _addresses() -> set[str]:
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(socket.gethostname(), None)}
    except OSError:  # a machine whose own name has no address
        return set()


@dataclass(frozen=True)
class Access:
    """Conditions of a request: a known name as its host, and the cookie, if there is a token.

    The token is exchanged for the cookie's value, which is another secret: neither leads to the other.
    """

    hosts: frozenset[str]
    token: str | None = None
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    def knows_host(self, header: str) -> bool:
        """Return whether a Host header names this server."""
        return hostname(header) in self.hosts

    def is_token(self, given: str) -> bool:
        """Return whether a text is the token, in a time that does not tell how much of it is right."""
        return self.token is not None and hmac.compare_digest(given.encode(), self.token.encode())

    def is_session(self, given: str) -> bool:
        """Return whether a cookie is of a browser that brought the token."""
        return hmac.compare_digest(given.encode(), self.session.encode())


def hostname(header: str) -> str:
    """Return the host of a Host header or an origin, without port and brackets; "" for one that cannot be read."""
    try:
        return urlsplit(header if "://" in header else f"//{header}").hostname or ""
    except ValueError:
        return ""


def same_origin(origin: str, host: str) -> bool:
    """Return whether an Origin header is of the page's own server, by name and port."""
    return origin.lower() in {f"http://{host}".lower(), f"https://{host}".lower()}


def new_token() -> str:
    """Return a token that nobody can guess."""
    return secrets.token_urlsafe(32)
