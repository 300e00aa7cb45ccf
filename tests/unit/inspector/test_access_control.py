"""Access control of the inspector: which requests reach the pages."""

import pytest

from ray_messaging.inspector.web.access_control import AccessControl
from ray_messaging.inspector.web.serve import Access, names_of

LOCAL = names_of("127.0.0.1")
HOST = ("host", "127.0.0.1:8266")


async def ask(access, *headers, path="/", query="", kind="http", method="GET"):
    """Ask through it on port 8266; return the events that came back, with status and headers of the first."""
    sent = []

    async def app(scope, receive, send):
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"cache-control", b"public")]})
            await send({"type": "http.response.body", "body": b"the page"})
        else:
            await send({"type": "websocket.accept"})

    async def receive():
        return {"type": f"{kind}.connect"}

    async def send(event):
        sent.append(event)

    given = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    scope = {"type": kind, "path": path, "query_string": query.encode(), "headers": given, "method": method}
    await AccessControl(app, access, 8266)(scope, receive, send)
    return sent


def status(sent):
    return sent[0].get("status", sent[0]["type"])


@pytest.mark.parametrize("host", ["127.0.0.1:8266", "localhost:8266", "[::1]:8266", "localhost", "LOCALHOST:9000"])
async def test_the_own_names_are_let_in(host):
    sent = await ask(Access(LOCAL), ("host", host))
    assert (status(sent), sent[1]["body"]) == (200, b"the page")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8266", "127.0.0.1.evil.example", "", "[", "169.254.1.1"]
)
@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_another_name_is_refused(host, kind):
    """A site that lets its own name lead to this machine (DNS rebinding) reads nothing."""
    sent = await ask(Access(LOCAL), ("host", host), ("origin", f"http://{host}"), kind=kind)
    assert status(sent) == (421 if kind == "http" else "websocket.close")


@pytest.mark.parametrize("headers", [(), (HOST, HOST)])
async def test_there_must_be_one_name(headers):
    assert status(await ask(Access(LOCAL), *headers)) == 421


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "http://127.0.0.1:9999", "http://localhost:8266", "null", "", "http://["],
)
@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_the_page_of_another_site_is_refused(origin, kind):
    sent = await ask(Access(LOCAL), HOST, ("origin", origin), kind=kind, method="POST")
    assert status(sent) == (403 if kind == "http" else "websocket.close")


async def test_the_own_page_may_open_a_websocket_and_one_without_origin_may_not():
    assert status(await ask(Access(LOCAL), HOST, ("origin", "http://127.0.0.1:8266"), kind="websocket")) == (
        "websocket.accept"
    )
    assert status(await ask(Access(LOCAL), HOST, kind="websocket")) == "websocket.close"


@pytest.mark.parametrize(("mode", "expected"), [("navigate", 200), ("no-cors", 403)])
async def test_a_link_of_another_site_is_followed_and_its_scripts_read_nothing(mode, expected):
    sent = await ask(Access(LOCAL), HOST, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", mode))
    assert status(sent) == expected


async def test_a_token_is_exchanged_for_a_cookie_and_leaves_the_url():
    access = Access(LOCAL, "a token")
    first = await ask(access, HOST, query="token=a%20token")
    headers = dict(first[0]["headers"])
    cookie = headers[b"set-cookie"].decode()
    assert status(first) == 200
    assert b'location.replace("/")' in first[1]["body"]
    assert b"a token" not in first[1]["body"]
    assert cookie.endswith("; Path=/; HttpOnly; SameSite=Strict")
    assert "a token" not in cookie
    assert headers[b"referrer-policy"] == b"no-referrer"
    value = cookie.partition(";")[0]
    assert status(await ask(access, HOST, ("cookie", f"other=1; {value}"))) == 200
    websocket = await ask(access, HOST, ("origin", "http://127.0.0.1:8266"), ("cookie", value), kind="websocket")
    assert status(websocket) == "websocket.accept"


@pytest.mark.parametrize(
    ("headers", "query", "expected"),
    [
        ((), "", 401),
        ((), "token=", 401),
        ((), "token=wrong", 403),
        ((("cookie", "ray_messaging_inspector_8266=a-token"),), "", 401),
        ((("cookie", "ray_messaging_inspector_9999=session"),), "", 401),
        ((("cookie", "ray_messaging_inspector_8266=\xff"),), "", 401),
        ((("cookie", '"; = ;;'),), "", 401),
    ],
)
async def test_without_the_token_there_is_nothing(headers, query, expected):
    access = Access(LOCAL, "a-token", "session")
    for path in ("/", "/_nicegui/1/static/x.js", "/search"):
        found = status(await ask(access, HOST, *headers, path=path, query=query))
        assert found == (expected if path == "/" else 401)
    websocket = await ask(access, HOST, ("origin", "http://127.0.0.1:8266"), *headers, kind="websocket", query=query)
    assert status(websocket) == "websocket.close"


async def test_pages_are_protected_and_not_kept():
    headers = (await ask(Access(LOCAL), HOST))[0]["headers"]
    assert (b"cache-control", b"no-store") in headers
    assert (b"x-frame-options", b"DENY") in headers
    assert b"frame-ancestors 'none'" in dict(headers)[b"content-security-policy"]
    static = (await ask(Access(LOCAL), HOST, path="/_nicegui/3/x.js"))[0]["headers"]
    assert (b"cache-control", b"public") in static


def test_names_of_an_address():
    assert names_of("192.168.1.7") == {"192.168.1.7"}
    assert {"localhost", "127.0.0.1"} < names_of("0.0.0.0")
    assert "secret" not in repr(Access(LOCAL, None, "secret"))
