"""The web application of seats: who is admitted, what a request may hold, and what a page may show."""

import asyncio
import json

import pytest

pytest.importorskip("starlette")

from ray_messaging.cluster.seat_desk import HeardMessage, SeatDesk, SeatQuestion
from ray_messaging.inspector.web import seat_pages as seat_pages_module
from ray_messaging.inspector.web.access_control import AccessControl
from ray_messaging.inspector.web.seat_pages import seat_pages
from ray_messaging.inspector.web.serve import Access, names_of

HOST = (b"host", b"127.0.0.1:8267")
JSON = (b"content-type", b"application/json")


class Remote:
    def __init__(self, method):
        self.remote = method


class Interceptor:
    """The desk of seats, called as an actor is."""

    def __init__(self):
        async def load():
            return {}

        async def keep(*_):
            pass

        desk = self.desk = SeatDesk(load, keep, 10_000, 60.0)
        self.asked = 0

        async def tokens():
            self.asked += 1
            return await desk.tokens()

        self.seat_tokens = Remote(tokens)
        self.news_of_seat, self.answer_of_seat = Remote(desk.news), Remote(desk.answer)
        self.set_seat_ready, self.set_seat_away = Remote(desk.set_ready), Remote(desk.set_away)


class Site:
    def __init__(self):
        self.interceptor = Interceptor()
        self.desk = self.interceptor.desk
        self.app = AccessControl(seat_pages(self.interceptor), Access(names_of("127.0.0.1")), 8267)

    async def ask(self, path, *headers, query="", body=None):
        """Ask; return the status, the headers and the body of the answer."""
        sent, given = [], [b"" if body is None else body]

        async def receive():
            return (
                {"type": "http.request", "body": given.pop(), "more_body": False}
                if given
                else {"type": "http.disconnect"}
            )

        async def send(event):
            sent.append(event)

        scope = {
            "type": "http", "http_version": "1.1", "method": "GET" if body is None else "POST", "path": path,
            "raw_path": path.encode(), "root_path": "", "scheme": "http", "query_string": query.encode(),
            "headers": [HOST, *headers], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8267),
        }  # fmt: skip
        await self.app(scope, receive, send)
        return sent[0]["status"], dict(sent[0]["headers"]), b"".join(event.get("body", b"") for event in sent[1:])

    async def enter(self, agent):
        """Open a seat's link; return the header with the cookie."""
        token = await self.desk.open(agent, "")
        status, headers, body = await self.ask(f"/seat/{agent}", query=f"token={token}")
        assert (status, body[:15]) == (200, b"<!doctype html>")
        cookie = headers[b"set-cookie"]
        assert token.encode() not in cookie + body
        assert b"HttpOnly" in cookie
        assert b"SameSite=strict" in cookie
        assert b"'unsafe" not in headers[b"content-security-policy"]
        assert headers[b"cache-control"] == b"no-store"
        return b"cookie", cookie.partition(b";")[0]


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setattr(seat_pages_module, "_LOOK_S", 0.02)
    return Site()


async def test_the_link_lets_a_browser_in_for_its_own_seat_only(site):
    seven, eight = [await site.enter(agent) for agent in (7, "a/8:b/news")]
    for path, cookie, status in (
        ("/seat/7", seven, 200), ("/seat/a/8:b/news", eight, 200), ("/seat/7", eight, 401),
        ("/seat/a/8:b/news", seven, 401), ("/seat/9", seven, 401), ("/news/7", eight, 401),
    ):  # fmt: skip
        assert (await site.ask(path, cookie))[0] == status
    assert (await site.ask("/seat/7"))[0] == 401
    assert (await site.ask("/", seven))[0] == 404


@pytest.mark.parametrize("token", ["", "x", "%00", "\N{GREEK SMALL LETTER ALPHA}"])
async def test_a_wrong_token_opens_nothing(site, token):
    await site.enter(7)
    paths = ("/seat/7", "/seat/8", "/seat/8", "/seat/9", "/seat/a%0Ab", "/seat/a\nb")
    for status, headers, _ in await asyncio.gather(*(site.ask(path, query=f"token={token}") for path in paths)):
        assert status in {401, 403, 404}
        assert b"set-cookie" not in headers
    assert site.interceptor.asked == 2  # strangers cannot make it ask the experiment often


async def test_a_request_of_another_site_changes_nothing(site):
    cookie = await site.enter(7)
    for header in ((b"origin", b"http://evil.example"), (b"sec-fetch-site", b"cross-site")):
        assert (await site.ask("/ready/7", cookie, JSON, header, body=b"{}"))[0] == 403
    assert (await site.ask("/ready/7", cookie, body=b"{}"))[0] == 415  # as a form of another site would send it
    assert not (await site.desk.news(7, -1)).ready
    assert (await site.ask("/ready/7", cookie, JSON, body=b"{}"))[0] == 200
    assert (await site.desk.news(7, -1)).ready


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400), (b"[]", 400), (b"[" * 100_000, 400), (b"{}", 400), (b'{"step": "0", "messages": []}', 400),
        (b'{"step": 0, "messages": [1]}', 400), (b" " * (2**20 + 1), 413), (b'{"step": 1, "messages": []}', 503),
    ],
)  # fmt: skip
async def test_what_cannot_be_read_is_refused(site, body, status):
    cookie = await site.enter(7)
    assert (await site.ask("/answer/7", cookie, JSON, body=body))[0] == status


async def test_texts_that_attack_stay_texts(site):
    cookie = await site.enter(7)
    await site.desk.set_ready(7)
    text = "<img src=x onerror=alert(1)>\u202e\x00\nsecond"
    asking = asyncio.create_task(site.desk.ask(SeatQuestion(7, 3, (HeardMessage("2-0-8", 2**60, text),))))
    await asyncio.sleep(0)
    _, headers, body = await site.ask("/news/7", cookie, query="seen=" + "9" * 400)
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"x-content-type-options"] == b"nosniff"
    (heard,) = json.loads(body)["question"]["heard"]
    assert heard["from"] == str(2**60)
    assert heard["text"] == "<img src=x onerror=alert(1)>\u27e8U+202E\u27e9\u2400\nsecond"
    answer = {"step": 3, "messages": [{"to": [str(2**60)], "text": "hi"}]}
    assert (await site.ask("/answer/7", cookie, JSON, body=json.dumps(answer).encode()))[0] == 200
    assert (await asking).messages[0].to == (2**60,)
    status, _, said = await site.ask("/answer/7", cookie, JSON, body=b'{"step": 2, "messages": []}')
    assert (status, said) == (400, b"Step 2 is over, so this was not sent.")
