"""The socket, the URL, the start and the end of the inspector's web server."""

import errno
import os
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

from ray_messaging.errors import ConfigError

_GRACE_S = 2  # seconds for which the server waits for open pages when it ends
_ANY = {"0.0.0.0", "::"}  # noqa: S104 - what a user may ask for
_HOSTS = "write one, such as 127.0.0.1, or 0.0.0.0 for all addresses of this machine"
_LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})


class Place(NamedTuple):
    """Where to serve: an address, a port (0: a free one), and more host names that browsers may use."""

    host: str = "127.0.0.1"
    port: int = 8266
    allowed: tuple[str, ...] = ()


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached only from this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def names_of(host: str) -> frozenset[str]:
    """Return the host names that browsers may use for a server that is bound to an address."""
    if is_loopback(host):
        return _LOOPBACK_NAMES
    if host not in _ANY:
        return frozenset({host.lower()})
    own = {socket.gethostname(), socket.getfqdn()}
    with suppress(OSError):  # the machine's own name may have no address
        own |= {str(found[4][0]) for found in socket.getaddrinfo(socket.gethostname(), None)}
    return _LOOPBACK_NAMES | {name.lower() for name in own}


@dataclass(frozen=True)
class Access:
    """The conditions for a request: it must name a known host, and must have a cookie if the server has a token.

    A browser gets the cookie in exchange for the token. The cookie's value is `session`, another secret. Neither secret
    can be derived from the other.
    """

    hosts: frozenset[str]
    token: str | None = None
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    def knows_host(self, header: str) -> bool:
        """Return whether a Host header has one of the names of this server."""
        try:
            return urlsplit(f"//{header}").hostname in self.hosts
        except ValueError:
            return False


class Bound(NamedTuple):
    """A socket that is bound, the conditions for requests, and the URL to open."""

    socket: socket.socket
    access: Access
    port: int
    url: str


def bind(place: Place, *, token: bool) -> Bound:
    """Bind a socket to an address and port; raise ConfigError if that fails.

    Requests need a token if `token` is True, or if the address can be reached from other machines.
    """
    if not 0 <= place.port <= 65535:
        raise ConfigError(f"--port {place.port} is not a port: write a number from 1 to 65535, or 0 for a free port")
    try:
        family = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((place.host, place.port), family=family)
    except OverflowError as error:
        raise ConfigError(f"--host {place.host!r} is not an address of this machine: {_HOSTS}") from error
    except socket.gaierror as error:
        raise ConfigError(
            f"--host {place.host!r} is not an address of this machine ({error.strerror}): {_HOSTS}"
        ) from error
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise ConfigError(f"--host {place.host!r} is not an address of this machine: {_HOSTS}") from error
        raise ConfigError(
            f"port {place.port} of {place.host} cannot be taken ({os.strerror(error.errno or 0)}): write another "
            "--port, or --port 0 for a free one"
        ) from error
    port = listening.getsockname()[1]
    hosts = names_of(place.host) | {name.lower().strip("[]") for name in place.allowed}
    demanded = token or not is_loopback(place.host)
    access = Access(hosts, secrets.token_urlsafe(32) if demanded else None)
    name = "127.0.0.1" if place.host == "localhost" else place.host
    if place.host in {"0.0.0.0", "::"}:  # noqa: S104 - what a user asked for
        name = socket.gethostname()
    shown = f"[{name}]" if ":" in name else name
    return Bound(listening, access, port, f"http://{shown}:{port}/" + (f"?token={access.token}" if demanded else ""))


def serve(app: object, bound: Bound, *, on_ready: Callable[[], None], until: "threading.Event | None" = None) -> None:
    """Serve until Ctrl-C or SIGTERM, or until the event `until` is set.

    Args: `on_ready` is called when pages can be opened.
    """
    import uvicorn  # noqa: PLC0415 - part of an optional extra

    from ray_messaging.inspector.web.access_control import AccessControl  # noqa: PLC0415

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                on_ready()

    checked = AccessControl(app, bound.access, bound.port)  # type: ignore[arg-type]
    # Requests are not logged, because the URL of the first request has the token.
    config = uvicorn.Config(checked, access_log=False, log_level="warning", timeout_graceful_shutdown=_GRACE_S)
    server = Server(config)
    if until is not None:

        def end() -> None:
            until.wait()
            server.should_exit = True

        threading.Thread(target=end, daemon=True).start()
    server.run(sockets=[bound.socket])
