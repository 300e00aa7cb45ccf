"""The socket on which the interceptor answers senders that ask for verdicts, one request for each batch."""

import asyncio
import hmac
import logging
import resource
import secrets
from collections.abc import Awaitable, Callable
from typing import Protocol, cast

from ray_messaging.default_limits_and_leases import FRAME_LIMIT
from ray_messaging.errors import Fenced, FrameError
from ray_messaging.interception.lane import (
    JUDGE,
    NUMBER,
    OPENING_S,
    REQUEST,
    SNAPSHOT,
    WAIT,
    WAITING,
    FrameProtocol,
    LaneAddress,
)
from ray_messaging.interception.verdicts import FOREIGN, BatchVerdict
from ray_messaging.wire.frames import decode

logger = logging.getLogger(__name__)

CONNECTIONS = 10_000
# The time limit for a caller to complete a request, or to read an answer. Slow callers use up memory.
STALLED_S = 60.0
HELD_BYTES = 2**30  # how many bytes the incomplete requests of all callers may have together
_UNREAD_BYTES = 2**20  # while a caller has more bytes of unread answers than this, its further requests are not read
_TOKEN_LIMIT = 128


Parts = tuple[bytes, ...]  # the pieces of a large answer, which are written without joining them


class Answer(Protocol):
    """A function that answers requests for verdicts."""

    def __call__(self, request: memoryview, *, patient: bool) -> bytes | Awaitable[bytes | Parts]:
        """Return the answer to a request for verdicts, as bytes or as an awaitable.

        A `patient` request is about rows that wait for slow rules, and its answer waits for verdicts. The memory of the
        request is valid during this call only.
        """


class LaneServer:
    """The server of the verdict lane, the socket on which senders ask for verdicts. It listens on one address.

    Args:
        answer: the function that answers requests for verdicts.
        snapshot: the function that answers requests for rule snapshots (None: they are answered by `answer`, too).
    """

    def __init__(
        self, answer: Answer, snapshot: Callable[[memoryview], bytes | Awaitable[bytes]] | None = None
    ) -> None:
        self.answer = answer
        self.snapshot = snapshot
        self.token = secrets.token_urlsafe(24)
        self.connections: set[_LanePeer] = set()
        self.strangers: dict[_LanePeer, None] = {}  # connections that have not sent their token yet, the oldest first
        self.refused = 0
        self.held_bytes = 0
        self._limit = CONNECTIONS
        self._server: asyncio.Server | None = None
        self._address: LaneAddress | None = None
        self._opening = asyncio.Lock()

    @property
    def serving(self) -> bool:
        """Return whether the socket for verdicts accepts connections."""
        return self._server is not None and self._server.is_serving()

    async def start(self, host: str) -> LaneAddress:
        """Listen for messagers on a free port of the host, unless this was done before; return the address."""
        async with self._opening:
            if self._address is None:
                self._limit = _connections_limit()
                # The backlog is limited, because asyncio accepts the whole backlog before this class can refuse a
                # connection. This must not use up all file descriptors.
                backlog = max(1, min(1024, self._limit // 4))
                loop = asyncio.get_running_loop()
                self._server = await loop.create_server(lambda: _LanePeer(self), host, 0, backlog=backlog)
                self._address = LaneAddress(host, self._server.sockets[0].getsockname()[1], self.token)
            return self._address

    async def close(self) -> None:
        """Stop listening and drop all connections."""
        if self._server is not None:
            # After asyncio has accepted a connection, a task sets it up. If the server is closed in between, this
            # task fails and leaves the socket open. So accept no more, and let the tasks that exist run first.
            loop = asyncio.get_running_loop()
            for listening in self._server.sockets:
                loop.remove_reader(listening.fileno())
            await asyncio.sleep(0)
            self._server.close()
            for caller in list(self.connections):
                caller.refuse("closing")
            await self._server.wait_closed()

    def admit(self, caller: "_LanePeer") -> bool:
        """Add a connection, and return True.

        If there are too many connections, or too many that have not sent their token yet, drop the oldest connection
        that has not sent its token. If there are too many connections, and all have sent their tokens, add nothing, and
        return False.
        """
        if len(self.strangers) >= max(1, self._limit // 4) or len(self.connections) >= self._limit:
            oldest = next(iter(self.strangers), None)
            if oldest is None:
                return False
            oldest.refuse("no token yet, and others wait")
            self.leave(oldest)  # asyncio reports the end of the connection only later
        self.connections.add(caller)
        self.strangers[caller] = None
        return True

    def leave(self, caller: "_LanePeer") -> None:
        """Remove a connection that has ended or was refused."""
        self.connections.discard(caller)
        self.strangers.pop(caller, None)


def _connections_limit() -> int:
    """Return how many connections are accepted. A quarter of the process's file descriptors is left for other use."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS if soft == resource.RLIM_INFINITY else max(1, min(CONNECTIONS, soft * 3 // 4))


class _LanePeer(FrameProtocol):
    """The server's end of a connection to one messager."""

    def __init__(self, server: LaneServer) -> None:
        super().__init__(_TOKEN_LIMIT)
        self._server = server
        self._open = False
        self._timer: asyncio.TimerHandle | None = (
            None  # a timer that closes the connection if the token, or a later request, is not complete in time
        )
        self._unread: asyncio.TimerHandle | None = None
        self._held = 0
        self._later: dict[int, set[asyncio.Future[None]]] = {JUDGE: set(), WAIT: set()}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, and start the time limit for its token."""
        super().connection_made(transport)
        if not self._server.admit(self):
            self.refuse("too many connections")
            return
        cast("asyncio.Transport", transport).set_write_buffer_limits(high=_UNREAD_BYTES)
        self._timer = asyncio.get_running_loop().call_later(OPENING_S, self.refuse, "no token in time")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio passes it
        """Remove the caller, and cancel its requests."""
        self._server.leave(self)
        self._hold(0)
        for answer in [*self._later[JUDGE], *self._later[WAIT]]:
            answer.cancel()
        for timer in (self._timer, self._unread):
            if timer is not None:
                timer.cancel()

    def handle(self) -> None:
        """Handle the complete requests, and start the time limit for an incomplete one."""
        requests = self.received
        super().handle()
        begun = self._high - self._low
        if self._open and not (begun and requests == self.received and self._timer):
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if begun:
                self._timer = asyncio.get_running_loop().call_later(STALLED_S, self.refuse, "a request without an end")
        if begun != self._held and not self._hold(begun):
            self.refuse("too many bytes of requests that have only begun")

    def _hold(self, size: int) -> bool:
        """Record that `size` bytes of this caller's next request, which is not complete yet, have arrived.

        Return False if the incomplete requests of all callers now have more than HELD_BYTES bytes together.
        """
        change, self._held = size - self._held, size
        self._server.held_bytes += change
        return change <= 0 or self._server.held_bytes <= HELD_BYTES

    def crowded(self) -> bool:
        """Return whether this caller's requests must wait, because it has not read enough of its earlier answers."""
        assert self.transport is not None
        if self._unread is None:
            if self.transport.get_write_buffer_size() <= _UNREAD_BYTES:
                return False
            # `_resume` runs in the loop's next iteration. Before that, uvloop writes the waiting answers, or calls
            # `pause_writing` if the caller does not read them.
            asyncio.get_running_loop().call_soon(self._resume)
        return True

    def _resume(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.handle()

    def pause_writing(self) -> None:
        """Stop reading from a caller that does not read its answers. If this lasts for STALLED_S, drop the caller."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()
            self._unread = asyncio.get_running_loop().call_later(STALLED_S, self.refuse, "answers that nobody reads")

    def resume_writing(self) -> None:
        """Read again from a caller that has begun to read its answers."""
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()
            asyncio.get_running_loop().call_soon(self._resume)

    def refuse(self, why: str) -> None:
        """End the connection. It counts as refused, unless the server is closing."""
        self._server.refused += why != "closing"
        logger.debug("the verdict lane, the socket for senders, drops a connection: %s", why)
        super().refuse(why)

    def frame_received(self, frame: memoryview) -> None:
        """Check the token in the first frame. Answer the requests in all later frames."""
        if not self._open:
            self._check_token(frame)
            return
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
        answer: bytes | Awaitable[bytes | Parts]
        try:
            with frame[REQUEST.size :] as request:
                if kind == SNAPSHOT and self._server.snapshot is not None:
                    answer = self._server.snapshot(request)
                else:
                    answer = _all_deferred(request) if crowded else self._server.answer(request, patient=patient)
        except (FrameError, Fenced) as error:
            self.refuse(str(error))
            return
        if isinstance(answer, bytes):
            self.send(NUMBER.pack(number), answer)
        else:
            task = asyncio.ensure_future(self._answer_later(number, answer))
            later.add(task)
            task.add_done_callback(later.discard)

    def _check_token(self, token: memoryview) -> None:
        """Accept requests from now on if the token is right. Otherwise end the connection."""
        if not hmac.compare_digest(token, self._server.token.encode()):
            self.refuse("wrong token")
            return
        assert self._timer is not None
        self._timer.cancel()
        self._timer = None
        self._server.strangers.pop(self, None)
        self._open = True
        self.limit_bytes = FRAME_LIMIT
        self.send(b"")

    async def _answer_later(self, number: int, answer: Awaitable[bytes | Parts]) -> None:
        try:
            found = await answer
        except (FrameError, Fenced) as error:
            self.refuse(str(error))
        except Exception as error:
            logger.exception("the verdict lane, the interceptor's socket, cannot answer")
            self.refuse(str(error))
        else:
            if self.transport is not None and not self.transport.is_closing():
                self.send(NUMBER.pack(number), *((found,) if isinstance(found, bytes) else found))


def _all_deferred(request: memoryview) -> bytes:
    rows = set(range(len(decode(bytes(request)))))
    return BatchVerdict(deferred=rows).encode(FOREIGN, wants_payload=False)
