"""The protocol of the verdict lane: the TCP connections over which messagers ask the interceptor for verdicts.

A connection carries frames with a length prefix. It opens with the token, which the messager got by a Ray call; the
server answers with an empty frame. Each request is its number (u32), its kind (u8) and a body; each answer is the
number and a body. Answers come in any order: a request that waits for a slow rule delays no other.

| kind       | body of the request                             | body of the answer     |
|------------|-------------------------------------------------|------------------------|
| `JUDGE`    | a batch (see `ray_messaging.wire`)              | `VerdictReply`         |
| `WAIT`     | the rows of a batch that wait for a slow rule   | `VerdictReply`         |
| `SNAPSHOT` | `SnapshotRequest`                               | `RuleSnapshot`         |
"""

import asyncio
from struct import Struct
from typing import Any, NamedTuple, cast

import numpy as np

from ray_messaging.common.sockets import notice_cuts
from ray_messaging.default_limits_and_leases import FRAME_LIMIT

OPENING_S = 5.0  # time limit to connect and send the token
# On one connection, at most this many requests about deferred rows may wait for answers, and at most as many other
# requests. A further request about deferred rows is answered at once, without verdicts. A further request of another
# kind ends the connection.
WAITING = 10_000
JUDGE, WAIT, SNAPSHOT = 0, 1, 2
REQUEST = Struct("<IB")
NUMBER = Struct("<I")
_LENGTH = Struct("<I")
_LARGE = 2**16  # a frame of at least this many bytes is written in several pieces, without joining them
# The smallest size of a buffer, in bytes, and the size up to which a buffer has room for a whole frame when only the
# beginning of the frame has arrived.
_SMALL, _AT_ONCE = 2**14, 2**22
_NOTHING = memoryview(b"")


class LaneAddress(NamedTuple):
    """The address at which the interceptor gives verdicts, and the token that a caller sends to open a connection."""

    host: str
    port: int
    token: str

    def __repr__(self) -> str:
        return f"LaneAddress(host={self.host!r}, port={self.port})"


class FrameProtocol(asyncio.BufferedProtocol):
    """A connection that carries frames.

    If a frame is larger than `limit_bytes`, the connection ends before the frame is read.

    The socket is read into one buffer. A frame stays in the buffer until it is handled, so that no bytes are copied.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.transport: asyncio.Transport | None = None
        self.received = 0
        self._buffer = _NOTHING
        self._low, self._high = 0, 0  # the bytes between these two positions in the buffer are not handled yet

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the asyncio transport of the new connection."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's transports are not subclasses of asyncio's
        notice_cuts(transport.get_extra_info("socket"))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio passes it
        """Return the free end of the buffer, into which the next bytes are written."""
        if self._low or self._high == len(self._buffer):
            self._make_room()
        return self._buffer[self._high :]

    def _make_room(self) -> None:
        """Move the unhandled bytes to the beginning of the buffer, or of a new buffer with more room for their frame.

        The other side cannot make this process allocate much memory by announcing a large frame: a buffer of more than
        `_AT_ONCE` bytes is at most twice as large as the bytes that have arrived.
        """
        held = self._high - self._low
        whole = 0 if held < _LENGTH.size else _LENGTH.size + _LENGTH.unpack_from(self._buffer, self._low)[0]
        size = max(_SMALL, 2 * held if whole <= held else min(whole, max(_AT_ONCE, 2 * held)))
        buffer = self._buffer if size <= len(self._buffer) else np.empty(size, np.uint8).data
        buffer[:held] = self._buffer[self._low : self._high]
        self._buffer, self._low, self._high = buffer, 0, held

    def buffer_updated(self, nbytes: int) -> None:
        """Handle each complete frame, after `nbytes` more bytes have arrived."""
        self._high += nbytes
        self.handle()

    def handle(self) -> None:
        """Pass each complete frame to `frame_received`, unless `crowded` returns True."""
        buffer = self._buffer
        while buffer is self._buffer and self._high - self._low >= _LENGTH.size and not self.crowded():
            (length,) = _LENGTH.unpack_from(buffer, self._low)
            if length > self.limit_bytes:
                self.refuse(f"a frame of {length} bytes, the limit is {self.limit_bytes}")
                return
            low = self._low + _LENGTH.size
            if self._high - low < length:
                return
            self._low = low + length
            self.received += 1
            with buffer[low : self._low] as frame:
                self.frame_received(frame)
        if buffer is self._buffer and self._low == self._high:
            self._low = self._high = 0
            if len(buffer) > _SMALL:  # a large buffer is not kept, because thousands of callers may have one each
                self._buffer = _NOTHING

    def send(self, *parts: bytes) -> None:
        """Write one frame, whose content is given as several byte strings."""
        assert self.transport is not None
        size = sum(map(len, parts))
        whole = (_LENGTH.pack(size), *parts)
        if size < _LARGE:  # for a small frame, one copy takes less time than writing several buffers
            self.transport.write(b"".join(whole))
        else:
            self.transport.writelines(whole)

    def crowded(self) -> bool:
        """Return whether complete frames must stay in the buffer for now.

        This class returns False. A subclass that returns True must call `handle` later.
        """
        return False

    def refuse(self, why: str) -> None:  # noqa: ARG002 - for subclasses that log
        """End the connection, because the other side breaks the protocol."""
        # The old buffer is replaced and not released, because the frame that is being handled still uses it.
        self._buffer, self._low, self._high = _NOTHING, 0, 0
        if self.transport is not None:
            self.transport.abort()

    def frame_received(self, frame: memoryview) -> None:
        """Handle one frame. Its memory is valid during this call only."""
        raise NotImplementedError


class LaneClient(FrameProtocol):
    """A messager's connection to the verdict lane, over which it asks the interceptor for verdicts."""

    def __init__(self) -> None:
        super().__init__(FRAME_LIMIT)
        self._numbers = 0
        self._opening: asyncio.Future[None] | None = None
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        # Numbers of requests whose callers were cancelled, so that the answers are dropped.
        self._abandoned: set[int] = set()

    @classmethod
    async def open(cls, address: LaneAddress, timeout_s: float = OPENING_S) -> "LaneClient":
        """Connect to the interceptor's socket for verdicts, and send the token.

        Raises: OSError if connecting fails or the token is refused; TimeoutError, a kind of OSError, if this takes
        longer than `timeout_s` or OPENING_S.
        """
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

    @property
    def alive(self) -> bool:
        """Return whether the connection is open, as far as this process knows."""
        return self.transport is not None and not self.transport.is_closing()

    async def ask(self, request: bytes, kind: int = JUDGE) -> bytes:
        """Send a request and return its answer; raise OSError if the connection is lost.

        Args: `kind` is the kind of the request. The answer to `WAIT`, about messages that wait for a slow rule, arrives
        when there are verdicts, or after PATIENCE_S seconds.
        """
        if not self.alive:
            raise ConnectionResetError("the verdict lane, the socket to the interceptor, is closed")
        number = self._numbers
        self._numbers = (number + 1) % 2**32
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            self.send(REQUEST.pack(number, kind) + request)
            return await future
        finally:
            del self._waiting[number]
            if future.cancelled():
                self._abandoned.add(number)

    def close(self) -> None:
        """Close the connection at once."""
        if self.transport is not None:
            self.transport.abort()

    def frame_received(self, frame: memoryview) -> None:
        """Give an answer to the caller that waits for it. The first frame only confirms that the lane is open.

        If the caller was cancelled, drop the answer. If no request has the answer's number, end the connection.
        """
        if self._opening is not None and not self._opening.done():
            self._opening.set_result(None)
        elif len(frame) < NUMBER.size:
            self.refuse("an answer without a number")
        else:
            (number,) = NUMBER.unpack_from(frame)
            future = self._waiting.get(number)
            if future is not None and not future.done():
                future.set_result(bytes(frame[NUMBER.size :]))
            elif future is None and number not in self._abandoned:
                self.refuse("an answer to no request")
            self._abandoned.discard(number)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all requests that wait for answers with a ConnectionResetError."""
        lost: list[asyncio.Future[Any]] = [] if self._opening is None else [self._opening]
        for future in (*lost, *self._waiting.values()):
            if not future.done():
                future.set_exception(
                    ConnectionResetError(
                        f"the verdict lane, the socket to the interceptor, was cut ({exc or 'closed'})"
                    )
                )
