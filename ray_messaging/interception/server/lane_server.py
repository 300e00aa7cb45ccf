"""The verdict lane: a socket that the interceptor serves, one request per batch.

A connection opens with the token that the messager got by a Ray call. Each request is its number (u32), its kind (u8:
JUDGE, or WAIT for deferred rows) and a frame (see `frames`); each answer the number and a `Verdicts`. One of kind STAND
has a `Standing`, and its answer a `Grant` (see `grants`). Answers come as they are known: one that waits for a slow
rule holds no other up.
"""

import asyncio
import hmac
import logging
import resource
import secrets
from collections.abc import Awaitable, Callable
from struct import Struct
from typing import NamedTuple, Protocol, cast

from ray_messaging.common.limits import FRAME_LIMIT
from ray_messaging.errors import Fenced, FrameError
from ray_messaging.interception.wire.framing import Framing
from ray_messaging.interception.wire.verdicts import FOREIGN, BatchVerdict
from ray_messaging.wire.frames import decode

logger = logging.getLogger(__name__)

CONNECTIONS = 10_000
OPENING_S = 5.0
# A request that has begun must come to its end, and an answer be read: whoever drips bytes holds memory.
STALLED_S = 60.0
HELD_BYTES = 2**30  # of requests that have begun, all callers together
_UNREAD_BYTES = 2**20  # of answers; above it no more requests are read
# Requests of one connection that wait for their answers. One more about deferred rows is told at once to go on waiting.
WAITING = 10_000
_TOKEN_LIMIT = 128
JUDGE, WAIT, STAND = 0, 1, 2
REQUEST = Struct("<IB")
NUMBER = Struct("<I")


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

    def __init__(self, answer: Answer, stand: Callable[[bytes], bytes | Awaitable[bytes]] | None = None) -> None:
        self.answer = answer
        self.stand = stand
        self.token = secrets.token_urlsafe(24)
        self.connections: set[_Caller] = set()
        self.strangers: dict[_Caller, None] = {}  # those that have shown no token yet, in order
        self.refused = 0
        self.held_bytes = 0
        self._limit = CONNECTIONS
        self._server: asyncio.Server | None = None

    @property
    def serving(self) -> bool:
        """Tell whether callers are let in."""
        return self._server is not None and self._server.is_serving()

    async def start(self, host: str) -> LaneAddress:
        """Listen on a free port of an address."""
        loop = asyncio.get_running_loop()
        self._limit = _connections_limit()
        # asyncio accepts a whole backlog before any of it can be refused: it must not take all descriptors.
        backlog = max(1, min(1024, self._limit // 4))
        self._server = await loop.create_server(lambda: _Caller(self), host, 0, backlog=backlog)
        return LaneAddress(host, self._server.sockets[0].getsockname()[1], self.token)

    async def close(self) -> None:
        """Stop listening and drop all callers."""
        if self._server is not None:
            self._server.close()
            for caller in list(self.connections):
                caller.refuse("closing")
            await self._server.wait_closed()

    def admit(self, caller: "_Caller") -> bool:
        """Take a connection on, in place of the oldest that has shown no token: who floods us keeps nobody out."""
        if len(self.strangers) >= max(1, self._limit // 4) or len(self.connections) >= self._limit:
            oldest = next(iter(self.strangers), None)
            if oldest is None:
                return False
            oldest.refuse("no token yet, and others wait")
            self.leave(oldest)  # asyncio tells us of its end only later
        self.connections.add(caller)
        self.strangers[caller] = None
        return True

    def leave(self, caller: "_Caller") -> None:
        """Forget a connection."""
        self.connections.discard(caller)
        self.strangers.pop(caller, None)

    def hold(self, change: int) -> bool:
        """Count bytes of requests that have begun; False where it is too much."""
        self.held_bytes += change
        return change <= 0 or self.held_bytes <= HELD_BYTES


def _connections_limit() -> int:
    """Return how many connections there may be, so that a quarter of the process's descriptors is left for others."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS if soft == resource.RLIM_INFINITY else max(1, min(CONNECTIONS, soft * 3 // 4))


class _Caller(Framing):
    """One messager's connection, seen from the interceptor."""

    def __init__(self, server: LaneServer) -> None:
        super().__init__(_TOKEN_LIMIT)
        self._server = server
        self._open = False
        self._timer: asyncio.TimerHandle | None = None  # until the token is there, then of a request under way
        self._unread: asyncio.TimerHandle | None = None
        self._held = 0
        self._later: dict[int, set[asyncio.Future[None]]] = {JUDGE: set(), WAIT: set()}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Give the caller a few seconds to show the token."""
        super().connection_made(transport)
        if not self._server.admit(self):
            self.refuse("too many connections")
            return
        cast("asyncio.Transport", transport).set_write_buffer_limits(high=_UNREAD_BYTES)
        self._timer = asyncio.get_running_loop().call_later(OPENING_S, self.refuse, "no token in time")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        """Forget the caller."""
        self._server.leave(self)
        self._hold(0)
        for answer in [*self._later[JUDGE], *self._later[WAIT]]:
            answer.cancel()
        for timer in (self._timer, self._unread):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Take what has come, and watch what has only begun."""
        requests = self.received
        super().data_received(data)
        begun = len(self._buffer)
        if self._open and not (begun and requests == self.received and self._timer):
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if begun:
                self._timer = asyncio.get_running_loop().call_later(STALLED_S, self.refuse, "a request without an end")
        if begun != self._held and not self._hold(begun):
            self.refuse("too much that has only begun")

    def _hold(self, size: int) -> bool:
        change, self._held = size - self._held, size
        return self._server.hold(change)

    def crowded(self) -> bool:
        """Let requests wait while the answers to earlier ones have not left."""
        assert self.transport is not None
        if self._unread is None:
            if self.transport.get_write_buffer_size() <= _UNREAD_BYTES:
                return False
            asyncio.get_running_loop().call_soon(self._go_on)  # uvloop writes, and pauses us, only then
        return True

    def _go_on(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.data_received(b"")

    def pause_writing(self) -> None:
        """Read no more requests of a caller who does not read the answers, and wait for him only so long."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()
            self._unread = asyncio.get_running_loop().call_later(STALLED_S, self.refuse, "answers that nobody reads")

    def resume_writing(self) -> None:
        """Go on with a caller who reads again."""
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()
            asyncio.get_running_loop().call_soon(self._go_on)

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
            self._timer = None
            self._server.strangers.pop(self, None)
            self._open = True
            self.limit_bytes = FRAME_LIMIT
            self.send(b"")
        else:
            self.refuse("wrong token")

    def _request(self, frame: bytes) -> None:
        if len(frame) < REQUEST.size:
            self.refuse("a request without a number")
            return
        number, kind = REQUEST.unpack_from(frame)
        patient = kind == WAIT
        later = self._later[WAIT if patient else JUDGE]
        crowded = len(later) >= WAITING
        if crowded and not patient:
            self.refuse("too many requests that wait")
            return
        request = frame[REQUEST.size :]
        try:
            if kind == STAND and self._server.stand is not None:
                answer = self._server.stand(request)
            else:
                answer = _unknown(request) if crowded else self._server.answer(request, patient=patient)
        except (FrameError, Fenced) as error:
            self.refuse(str(error))
            return
        if isinstance(answer, bytes):
            self.send(NUMBER.pack(number) + answer)
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
                self.send(NUMBER.pack(number) + found)


def _unknown(request: bytes) -> bytes:
    """Answer that nothing is known yet of what is asked about."""
    rows = set(range(len(decode(request))))
    return BatchVerdict(deferred=rows).encode(FOREIGN, wants_payload=False)
