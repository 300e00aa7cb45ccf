"""The web application of seats: a page for each person who plays an agent, which shows what the agent hears.

The link to a seat's page contains the seat's token. At the first visit the browser gets a cookie in place of the token.
The cookie is computed from the token, so it stays valid when this process, or the whole experiment, starts again.
"""

import asyncio
import json
import time
from base64 import b64encode
from collections.abc import Mapping
from functools import partial
from hashlib import blake2b, sha256
from hmac import compare_digest
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ray_messaging.addressing.channels import AgentId, check_id
from ray_messaging.cluster.handles.connection import insist
from ray_messaging.cluster.handles.group.waiting import InLoop
from ray_messaging.cluster.seat_desk import MOST_CHARACTERS, SeatView
from ray_messaging.errors import ConfigError, InvalidAddress, MessagingError
from ray_messaging.inspector.page_values import visible

_LOOK_S: Final = 1.0  # seconds between two reads of the experiment's seats
_MOST_BYTES: Final = 2**20  # a request may have at most this many bytes
_COOKIE_S: Final = 30 * 24 * 3600  # a month, so that a person who comes back after some days needs no new link
_DIGITS: Final = 16
_AT_ONCE: Final = 10  # at most this many requests wait for a change of one seat's page
_HTML: Final = (Path(__file__).parents[1] / "pages" / "seat.html").read_text()


def _hashes(tag: str) -> str:
    """Return the hashes of the inline scripts or styles of the page, for its content security policy."""
    parts = [part.partition(f"</{tag}>")[0] for part in _HTML.split(f"<{tag}>")[1:]]
    return " ".join(f"'sha256-{b64encode(sha256(part.encode()).digest()).decode()}'" for part in parts)


# The browser runs only the page's own script and style, and neither loads from nor sends to another host.
_POLICY: Final = (
    f"default-src 'none'; script-src {_hashes('script')}; style-src {_hashes('style')}; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {"content-security-policy": _POLICY, "cache-control": "no-store"}


def seat_pages(interceptor: Any) -> Starlette:  # noqa: ANN401 - a Ray actor handle
    """Return the web application with the seats of an experiment: pages on which people play agents."""
    pages = _SeatPages(interceptor)
    return Starlette(
        routes=[
            Route("/seat/{agent:path}", pages.page),
            Route("/news/{agent:path}", pages.news),
            Route("/answer/{agent:path}", pages.answer, methods=["POST"]),
            Route("/ready/{agent:path}", pages.ready, methods=["POST"]),
            Route("/away/{agent:path}", pages.away, methods=["POST"]),
        ],
        exception_handlers={_Refused: _answer_of},
    )


class _Refused(Exception):
    """A request that is refused, with the status and a text for the person."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.answer = PlainTextResponse(text, status, _HEADERS)


class _SeatPages:
    def __init__(self, interceptor: Any) -> None:  # noqa: ANN401 - a Ray actor handle
        self._interceptor = interceptor
        self._tokens: dict[AgentId, str] = {}
        self._looked = float("-inf")
        # The task that reads the list of seats. A request for an unknown seat waits until this task has ended.
        self._look: asyncio.Task[None] | None = None
        self._waiting: dict[AgentId, int] = {}  # by agent, how many requests wait for a change of the page

    async def _call(self, method: str, *arguments: object, **named: object) -> Any:  # noqa: ANN401 - of the seat desk
        call = partial(getattr(self._interceptor, method).remote, *arguments, **named)
        try:
            return await insist(InLoop(), self._interceptor, call, actor_name="the interceptor")
        except ConfigError as error:
            raise _Refused(400, str(error)) from error
        except MessagingError as error:
            raise _Refused(503, "The study cannot be reached now.") from error

    async def _token_of(self, request: Request) -> tuple[AgentId, str]:
        """Return the agent that a request names, and the token of the agent's seat.

        A seat is a web page on which a person plays an agent. The token is "" if the agent has no seat. If the request
        names no valid id, the agent is "", too.
        """
        try:
            agent = check_id(request.path_params["agent"])
        except InvalidAddress:
            return "", ""
        if agent not in self._tokens:
            if self._look is None or self._look.done():
                self._look = asyncio.create_task(self._look_for_seats(), name="ray_messaging look for seats")
            await asyncio.shield(self._look)
        return agent, self._tokens.get(agent, "")

    async def _look_for_seats(self) -> None:
        await asyncio.sleep(self._looked + _LOOK_S - time.monotonic())
        self._looked = time.monotonic()
        self._tokens = await self._call("seat_tokens")

    async def _admitted(self, request: Request) -> AgentId:
        """Return the agent that a request names, if the person may see the agent's seat.

        A seat is a web page on which a person plays an agent.

        Raises: _Refused unless the request has the seat's cookie.
        """
        agent, token = await self._token_of(request)
        if not token or not _equal(request.cookies.get(_cookie_name(token), ""), _cookie(token)):
            raise _Refused(401, "Please open the link that you were given.")
        return agent

    async def page(self, request: Request) -> Response:
        """Return the page of a seat, on which a person plays an agent.

        If the link has a token, set the cookie; the page's script removes the token from the URL.

        Raises: _Refused if the request has neither the seat's token nor its cookie.
        """
        given = request.query_params.get("token")
        answer = HTMLResponse(_HTML, headers=_HEADERS)
        if given is None:
            await self._admitted(request)
            return answer
        _, token = await self._token_of(request)
        if not token or not _equal(given, token):
            raise _Refused(403, "This link is wrong. Please open the link that you were given.")
        answer.set_cookie(
            _cookie_name(token),
            _cookie(token),
            max_age=_COOKIE_S,
            httponly=True,
            samesite="strict",
        )
        return answer

    async def news(self, request: Request) -> Response:
        """Wait until the seat's page has something new to show, but only some seconds; return what the page shows."""
        agent = await self._admitted(request)
        seen = request.query_params.get("seen", "")
        version = int(seen) if seen.isdecimal() and len(seen) < _DIGITS else -1
        if self._waiting.get(agent, 0) >= _AT_ONCE:
            raise _Refused(429, "This page is open in too many tabs: please close the other tabs.")
        self._waiting[agent] = self._waiting.get(agent, 0) + 1
        try:
            view = await self._call("news_of_seat", agent, version)
        finally:
            self._waiting[agent] -= 1
        return JSONResponse(shown(view), headers=_HEADERS)

    async def answer(self, request: Request) -> Response:
        """Pass on what a person has written in a step. The agent's group sends it as the agent's messages."""
        agent, given = await self._admitted(request), await _given(request)
        step, messages = given.get("step"), given.get("messages")
        if type(step) is not int or not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
            raise _Refused(400, "This request has no step with a list of messages: please reload the page.")
        await self._call("answer_of_seat", agent, step, messages)
        return JSONResponse({}, headers=_HEADERS)

    async def ready(self, request: Request) -> Response:
        """Record that the person is ready."""
        agent = await self._admitted(request)
        await _given(request)
        await self._call("set_seat_ready", agent)
        return JSONResponse({}, headers=_HEADERS)

    async def away(self, request: Request) -> Response:
        """Record that the person has left, or has come back."""
        agent, given = await self._admitted(request), await _given(request)
        await self._call("set_seat_away", agent, away=given.get("away") is True)
        return JSONResponse({}, headers=_HEADERS)


async def _answer_of(_: Request, refused: Exception) -> Response:
    assert isinstance(refused, _Refused)
    return refused.answer


async def _given(request: Request) -> Mapping[str, Any]:
    """Return the JSON object in a request; raise _Refused if there is none, or it is too large."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise _Refused(415, "This request is not of the type application/json: please reload the page.")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_BYTES:
            raise _Refused(413, "This is too much text.")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _Refused(400, "This request is not a JSON object: please reload the page.")
    return found


def _equal(given: str, secret: str) -> bool:
    """Return whether `given` equals `secret`, in a time that does not depend on how much of `given` is right."""
    return compare_digest(given.encode(errors="replace"), secret.encode())


def _cookie(token: str) -> str:
    return blake2b(token.encode(), digest_size=32, person=b"seat's cookie").hexdigest()


def _cookie_name(token: str) -> str:
    """Return the name of a seat's cookie. Browsers share cookies among ports, so each seat has its own cookie name."""
    return "seat_" + blake2b(token.encode(), digest_size=8, person=b"seat's name").hexdigest()


def shown(view: SeatView) -> dict[str, Any]:
    """Return what a person's page shows as JSON, with ids as strs, and without invisible characters in its strs."""
    question = view.question
    return {
        "version": view.version,
        "agent": _name(view.agent),
        "ready": view.ready,
        "consent": _text(view.consent),
        "away": view.away,
        "ended": view.ended,
        "most": MOST_CHARACTERS,
        "lines": [
            {"kind": line.kind, "step": line.step, "text": _text(line.text), "who": [*map(_name, line.who)]}
            for line in view.lines
        ],
        "question": None
        if question is None
        else {
            "step": question.step,
            "more": question.more,
            "to": None if question.to is None else [*map(_name, question.to)],
            "heard": [
                {"id": each.id, "from": _name(each.from_id), "text": _text(each.text), "asks": each.asks}
                for each in question.heard
            ],
        },
        "left": view.left_s,
    }


def _name(agent: AgentId | None) -> str:
    return "the organisers" if agent is None else visible(str(agent))


def _text(text: str) -> str:
    return "\n".join(map(visible, text.split("\n")))
