"""Access control before all pages and websockets: it checks host, origin and token, and adds protective headers.

A request must use one of the names of the server, and a browser must bring the token once, if there is one.
"""

import hmac
import secrets
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qs, urlsplit

_ANY = {"0.0.0.0", "::"}  # noqa: S104 - what a user may ask for
_LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "ray_messaging_inspector"
_STATIC = "/_nicegui/"
# NiceGUI's pages have inline scripts, and Vue compiles templates in the browser; nothing comes from another host.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; object-src 'none'; base-uri 'self'; "
    "form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_NO_STORE = (b"cache-control", b"no-store")
# The page leads on by a script: on a redirect after a link from another site, browsers send no strict cookie.
_ENTER = b"""<!doctype html><meta charset="utf-8"><title>Inspector</title>
<script>location.replace("/")</script><noscript><a href="/">Open the inspector</a></noscript>"""


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only."""
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
    with suppress(OSError):  # a machine whose own name has no address
        own |= {str(found[4][0]) for found in socket.getaddrinfo(socket.gethostname(), None)}
    return _LOOPBACK_NAMES | {name.lower() for name in own}


@dataclass(frozen=True)
class Access:
    """Conditions of a request: its host must be a known name, and it must have the cookie, if there is a token.

    The token is exchanged for the cookie's value. That is another secret, so neither can be derived from the other.
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


def _is_secret(given: str, secret: str) -> bool:
    """Compare in a time that does not depend on how much of the secret is right."""
    return hmac.compare_digest(given.encode(), secret.encode())


class AccessControl:
    """ASGI application that passes only permitted requests on to another one."""

    def __init__(self, app: App, access: Access, port: int) -> None:
        self.app = app
        self._access = access
        self._cookie = f"{COOKIE}_{port}"  # browsers share cookies among ports, so the name must differ by port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request or websocket."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif (refusal := self._refusal(scope)) is not None:
            await _refuse(scope, receive, send, *refusal)
        elif scope["type"] == "http" and (given := _token(scope)) is not None:
            await self._enter(given, send)
        elif not self._is_known(scope):
            await _refuse(scope, receive, send, 401, "open the URL with ?token= that the command printed")
        elif scope["type"] == "http":
            await self.app(scope, receive, _protected(send, is_static=scope["path"].startswith(_STATIC)))
        else:
            await self.app(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Return status and reason if a request names another host or comes from another site's page, else None."""
        hosts = _values(scope, b"host")
        if len(hosts) != 1 or not self._access.knows_host(hosts[0]):
            return 421, "this server is not asked by that name: allow it with --allow-host NAME"
        origins = _values(scope, b"origin")
        if scope["type"] == "websocket" and not origins:
            return 403, "a websocket must say from which page it comes"
        own = {f"http://{hosts[0]}".lower(), f"https://{hosts[0]}".lower()}
        foreign = any(origin.lower() not in own for origin in origins)
        followed = "navigate" in _values(scope, b"sec-fetch-mode")
        if foreign or ("cross-site" in _values(scope, b"sec-fetch-site") and not followed):
            return 403, "the page of another site asks"
        return None

    async def _enter(self, given: str, send: Send) -> None:
        """Exchange the token for a cookie, and lead the browser away from the URL that has the token."""
        if self._access.token is None or not _is_secret(given, self._access.token):
            await _answer(send, 403, b"this token is wrong: open the URL that the command printed")
            return
        cookie = f"{self._cookie}={self._access.session}; Path=/; HttpOnly; SameSite=Strict"
        await _answer(send, 200, _ENTER, (b"set-cookie", cookie.encode()), kind=b"text/html; charset=utf-8")

    def _is_known(self, scope: Scope) -> bool:
        if self._access.token is None:
            return True
        found = SimpleCookie()
        for header in _values(scope, b"cookie"):
            try:
                found.load(header)
            except CookieError:
                continue  # cookies of other servers on this host
        given = found.get(self._cookie)
        return given is not None and _is_secret(given.value, self._access.session)


def _values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


def _token(scope: Scope) -> str | None:
    """Return the token in the URL of the first page, or None if it has none."""
    if scope["path"] != "/" or scope["method"] != "GET":
        return None
    given = parse_qs(scope["query_string"].decode("latin-1")).get("token")
    return given[0] if given else None


async def _refuse(scope: Scope, receive: Receive, send: Send, status: int, why: str) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008, "reason": why})
    else:
        await _answer(send, status, why.encode())


async def _answer(
    send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes], kind: bytes = b"text/plain; charset=utf-8"
) -> None:
    found = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), _NO_STORE, *_HEADERS, *headers]
    await send({"type": "http.response.start", "status": status, "headers": found})
    await send({"type": "http.response.body", "body": body})


def _protected(send: Send, *, is_static: bool) -> Send:
    """Return a `send` that adds the protective headers. Browsers may store static files only, not agents' texts."""

    async def sending(event: Event) -> None:
        if event["type"] == "http.response.start":
            kept = [header for header in event.get("headers", ()) if is_static or header[0] != _NO_STORE[0]]
            event["headers"] = [*kept, *_HEADERS, *([] if is_static else [_NO_STORE])]
        await send(event)

    return sending
