"""Access control for all pages and websockets: checks of host, origin and token, and protective headers.

The host that a request names must be one of the names of the server. If there is a token, a browser must present it
once, and then has a cookie.
"""

import hmac

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ray_messaging.inspector.web.serve import Access

COOKIE = "ray_messaging_inspector"
_STATIC = "/_nicegui/"
# The content security policy. NiceGUI's pages have inline scripts, and Vue compiles templates in the browser. Nothing
# may be loaded from another host.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; object-src 'none'; base-uri 'self'; "
    "form-action 'self'; frame-ancestors 'none'"
)
_POLICY_NAME = "content-security-policy"
_HEADERS = {
    _POLICY_NAME: _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
_NO_STORE = {"cache-control": "no-store"}
# The answer to the URL with the token. It opens the first page by a script, in place of a redirect: if the link was on
# another site, browsers would follow a redirect without the cookie, because the cookie is SameSite=Strict.
_ENTER = """<!doctype html><meta charset="utf-8"><title>Inspector</title>
<script>location.replace("/")</script><noscript><a href="/">Open the inspector</a></noscript>"""


class AccessControl:
    """ASGI application that passes only permitted requests on to another application."""

    def __init__(self, app: ASGIApp, access: Access, port: int) -> None:
        self.app = app
        self._access = access
        self._cookie = f"{COOKIE}_{port}"  # browsers share cookies among ports, so the name must differ by port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request or websocket."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        asked = HTTPConnection(scope)
        if (refusal := self._refusal(asked)) is not None:
            await _refuse(scope, receive, send, *refusal)
        elif scope["type"] == "http" and (given := _token(asked)):
            await self._enter(given, scope, receive, send)
        elif self._access.token is not None and not _is_secret(
            asked.cookies.get(self._cookie, ""), self._access.session
        ):
            await _refuse(scope, receive, send, 401, "open the URL with ?token= that the command printed")
        elif scope["type"] == "http":
            await self.app(scope, receive, _protected(send, is_static=scope["path"].startswith(_STATIC)))
        else:
            await self.app(scope, receive, send)

    def _refusal(self, asked: HTTPConnection) -> tuple[int, str] | None:
        """Return the status and the reason if a request's host or origin is not allowed; otherwise None."""
        hosts, origins = asked.headers.getlist("host"), asked.headers.getlist("origin")
        if len(hosts) != 1 or not self._access.knows_host(hosts[0]):
            return 421, "this host name is not allowed: allow it with --allow-host NAME"
        if asked.scope["type"] == "websocket" and not origins:
            return 403, "a websocket must say from which page it comes"
        own = {f"http://{hosts[0]}".lower(), f"https://{hosts[0]}".lower()}
        foreign = any(origin.lower() not in own for origin in origins)
        followed = "navigate" in asked.headers.getlist("sec-fetch-mode")
        if foreign or ("cross-site" in asked.headers.getlist("sec-fetch-site") and not followed):
            return 403, "the request comes from the page of another site"
        return None

    async def _enter(self, given: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Exchange the token for a cookie, and send the browser to a URL without the token."""
        if self._access.token is None or not _is_secret(given, self._access.token):
            await _refuse(scope, receive, send, 403, "this token is wrong: open the URL that the command printed")
            return
        cookie = {"set-cookie": f"{self._cookie}={self._access.session}; Path=/; HttpOnly; SameSite=Strict"}
        await HTMLResponse(_ENTER, headers=_HEADERS | _NO_STORE | cookie)(scope, receive, send)


def _is_secret(given: str, secret: str) -> bool:
    """Return whether a secret is right. The time does not depend on how many of its characters are right."""
    return hmac.compare_digest(given.encode(), secret.encode())


def _token(asked: HTTPConnection) -> str:
    """Return the token in a request's URL if the request is for the first page; otherwise, or without a token, ""."""
    first = asked.scope["path"] == "/" and asked.scope["method"] == "GET"
    return asked.query_params.get("token", "") if first else ""


async def _refuse(scope: Scope, receive: Receive, send: Send, status: int, why: str) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008, "reason": why})
    else:
        await PlainTextResponse(why, status, _HEADERS | _NO_STORE)(scope, receive, send)


def _protected(send: Send, *, is_static: bool) -> Send:
    """Return a `send` that adds security headers to each response.

    Browsers may store only static files, and no texts of agents.
    """

    async def sending(event: Message) -> None:
        if event["type"] == "http.response.start":
            event.setdefault("headers", [])
            headers = MutableHeaders(scope=event)
            # A page may have set a content security policy that is stricter than the one in _HEADERS.
            policy = {name: headers[name] for name in (_POLICY_NAME,) if name in headers}
            headers.update((_HEADERS if is_static else _HEADERS | _NO_STORE) | policy)
        await send(event)

    return sending
