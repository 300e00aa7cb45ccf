"""The verdict lane: a socket that the interceptor serves, one request per batch, answered in order.

A connection opens with the token that the messager got by a Ray call. Each request is a frame (see `frames`), each
answer a `Verdicts`.
"""

import asyncio
import hmac
import logging
import secrets
from typing import NamedTuple

from ray_messaging.errors import FrameError
from ray_messaging.frames import FRAME_LIMIT
from ray_messaging.interception.framing import Answer, Framing

logger = logging.getLogger(__name__)

CONNECTIONS = 10_000
OPENING_S = 5.0
_TOKEN_LIMIT = 128


class LaneAddress(NamedTuple):
    """Where the lane is served, and the token that opens it."""

    host: str
    port: int
    token: str

    def __repr__(self) -> str:
        return f"LaneAddress(host={self.host!r}, port={self.port})"


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
            try:
                self.send(self._server.answer(frame))
            except FrameError as error:
                self.refuse(str(error))
        elif hmac.compare_digest(frame, self._server.token.encode()):
            assert self._timer is not None
            self._timer.cancel()
            self._open = True
            self.limit_bytes = FRAME_LIMIT
            self.send(b"")
        else:
            self.refuse("wrong token")


class LaneClient(Framing):
    """One messager's connection, seen from the messager: one request under way at a time."""

    def __init__(self) -> None:
        super().__init__(FRAME_LIMIT)
        self._waiting: asyncio.Future[bytes] | None = None

    @classmethod
    async def open(cls, address: LaneAddress, timeout_s: float = OPENING_S) -> "LaneClient":
        """Connect and show the token, within 5 s at most; raise OSError."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(min(OPENING_S, timeout_s)):
            _, client = await loop.create_connection(cls, address.host, address.port)
            await client.ask(address.token.encode())
        return client

    async def ask(self, request: bytes) -> bytes:
        """Send a request and return its answer; raise OSError where the connection is lost."""
        if self.transport is None or self.transport.is_closing():
            raise ConnectionResetError("the verdict lane is closed")
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            self.send(request)
            return await self._waiting
        except asyncio.CancelledError:
            self.close()  # its answer must not be taken for another's
            raise
        finally:
            self._waiting = None

    def close(self) -> None:
        """Drop the connection."""
        if self.transport is not None:
            self.transport.abort()

    def frame_received(self, frame: bytes) -> None:
        """Take the answer."""
        if self._waiting is None or self._waiting.done():
            self.refuse("an answer nobody asked for")
        else:
            self._waiting.set_result(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell who waits."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(ConnectionResetError(f"the verdict lane was cut ({exc or 'closed'})"))
