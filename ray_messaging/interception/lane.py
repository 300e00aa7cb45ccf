"""The verdict lane: a socket that the interceptor serves, one request per batch.

A connection opens with the token that the messager got by a Ray call. Each request is its number (u32), its kind (u8:
JUDGE, or WAIT for deferred rows) and a frame (see `frames`); each answer the number and a `Verdicts`. Answers come as
they are known: one that waits for a slow rule holds no other up.
"""

import asyncio
import hmac
import logging
import secrets
from collections.abc import Awaitable
from struct import Struct
from typing import Any, NamedTuple, Protocol

from ray_messaging.errors import Fenced, FrameError
from ray_messaging.frames import FRAME_LIMIT, decode
from ray_messaging.interception.framing import Framing
from ray_messaging.interception.verdicts import FOREIGN, Judgement

logger = logging.getLogger(__name__)

CONNECTIONS = 10_000
OPENING_S = 5.0
# Requests of one connection that wait for their answers. One more about deferred rows is told at once to go on waiting.
WAITING = 10_000
_TOKEN_LIMIT = 128
JUDGE, WAIT = 0, 1
_REQUEST = Struct("<IB")
_NUMBER = Struct("<I")


class LaneAddress(NamedTuple):
    """Where the lane is served, and the token that opens it."""

    host: str
    port: int
    token: str

    def __repr__(self) -> str:
        return f"LaneAddress(host={self.host!r}, port={self.port})"


class Answer(Protocol):
    """Answer a request, at once or later."""

    def __call__(self, request: bytes, *, patient: bool) -> bytes | Awaitable[bytes]:
        """Return the answer, or what gives it."""


class LaneServer:
    """Serve the lane on one address."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.token = secrets.token_urlsafe(24)
        self.connections: set[_Caller] = set()
        self.refused = 0
        self._server: asyncio.Server | None = None

    async def start(self, host: str) -> LaneAddress:
        """Listen on a free port of an address."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Caller(self), host, 0, backlog=1024)
        return LaneAddress(host, self._server.sockets[0].getsockname()[1], self.token)

    async def close(self) -> None:
        """Stop listening and drop all callers."""
        if self._server is not None:
            self._server.close()
            for caller in list(self.connections):
                caller.refuse("closing")
            await self._server.wait_closed()


class _Caller(Framing):
    """One messager's connection, seen from the interceptor."""

    def __init__(self, server: LaneServer) -> None:
        super().__init__(_TOKEN_LIMIT)
        self._server = server
        self._open = False
        self._timer: asyncio.TimerHandle | None = None
        self._later: dict[int, set[asyncio.Future[None]]] = {JUDGE: set(), WAIT: set()}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Give the caller a few seconds to show the token."""
        super().connection_made(transport)
        if len(self._server.connections) >= CONNECTIONS:
            self.refuse("too many connections")
            return
        self._server.connections.add(self)
        self._timer = asyncio.get_running_loop().call_later(OPENING_S, self.refuse, "no token in time")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        """Forget the caller."""
        self._server.connections.discard(self)
        for answer in [*self._later[JUDGE], *self._later[WAIT]]:
            answer.cancel()
        if self._timer is not None:
            self._timer.cancel()

    def refuse(self, why: str) -> None:
        """End the connection, and count it."""
        self._server.refused += why != "closing"
        logger.debug("the verdict lane drops a connection: %s", why)
        super().refuse(why)

    def frame_received(self, frame: bytes) -> None:
        """Check the token, then answer requests."""
        if self._open:
            self._request(frame)
        elif hmac.compare_digest(frame, self._server.token.encode()):
            assert self._timer is not None
            self._timer.cancel()
            self._open = True
            self.limit_bytes = FRAME_LIMIT
            self.send(b"")
        else:
            self.refuse("wrong token")

    def _request(self, frame: bytes) -> None:
        if len(frame) < _REQUEST.size:
            self.refuse("a request without a number")
            return
        number, kind = _REQUEST.unpack_from(frame)
        patient = kind == WAIT
        later = self._later[WAIT if patient else JUDGE]
        crowded = len(later) >= WAITING
        if crowded and not patient:
            self.refuse("too many requests that wait")
            return
        request = frame[_REQUEST.size :]
        try:
            answer = _unknown(request) if crowded else self._server.answer(request, patient=patient)
        except (FrameError, Fenced) as error:
            self.refuse(str(error))
            return
        if isinstance(answer, bytes):
            self.send(_NUMBER.pack(number) + answer)
        else:
            task = asyncio.ensure_future(self._answer_later(number, answer))
            later.add(task)
            task.add_done_callback(later.discard)

    async def _answer_later(self, number: int, answer: Awaitable[bytes]) -> None:
        try:
            found = await answer
        except (FrameError, Fenced) as error:
            self.refuse(str(error))
        except Exception as error:
            logger.exception("the verdict lane cannot answer")
            self.refuse(str(error))
        else:
            if self.transport is not None and not self.transport.is_closing():
                self.send(_NUMBER.pack(number) + found)


def _unknown(request: bytes) -> bytes:
    """Answer that nothing is known yet of what is asked about."""
    rows = set(range(len(decode(request))))
    return Judgement(deferred=rows).encode(FOREIGN, wants_payload=False)


class LaneClient(Framing):
    """One messager's connection, seen from the messager."""

    def __init__(self) -> None:
        super().__init__(FRAME_LIMIT)
        self._numbers = 0
        self._opening: asyncio.Future[None] | None = None
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._given_up: set[int] = set()

    @classmethod
    async def open(cls, address: LaneAddress, timeout_s: float = OPENING_S) -> "LaneClient":
        """Connect and show the token, within 5 s at most; raise OSError."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(min(OPENING_S, timeout_s)):
            _, client = await loop.create_connection(cls, address.host, address.port)
            client._opening = loop.create_future()
            try:
                client.send(address.token.encode())
                await client._opening
            except BaseException:
                client.close()
                raise
        return client

    async def ask(self, request: bytes, *, patient: bool = False) -> bytes:
        """Send a request and return its answer; raise OSError where the connection is lost."""
        if self.transport is None or self.transport.is_closing():
            raise ConnectionResetError("the verdict lane is closed")
        number = self._numbers
        self._numbers = (number + 1) % 2**32
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            self.send(_REQUEST.pack(number, WAIT if patient else JUDGE) + request)
            return await future
        finally:
            del self._waiting[number]
            if future.cancelled():
                self._given_up.add(number)

    def close(self) -> None:
        """Drop the connection."""
        if self.transport is not None:
            self.transport.abort()

    def frame_received(self, frame: bytes) -> None:
        """Take an answer; one that nobody waits for any more passes by, one that nobody asked for ends it all."""
        if self._opening is not None and not self._opening.done():
            self._opening.set_result(None)
        elif len(frame) < _NUMBER.size:
            self.refuse("an answer without a number")
        else:
            (number,) = _NUMBER.unpack_from(frame)
            future = self._waiting.get(number)
            if future is not None and not future.done():
                future.set_result(frame[_NUMBER.size :])
            elif future is None and number not in self._given_up:
                self.refuse("an answer to no request")
            self._given_up.discard(number)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell who waits."""
        lost: list[asyncio.Future[Any]] = [] if self._opening is None else [self._opening]
        for future in (*lost, *self._waiting.values()):
            if not future.done():
                future.set_exception(ConnectionResetError(f"the verdict lane was cut ({exc or 'closed'})"))
