"""The verdict lane's protocol: frames with a length prefix on a TCP connection.

A connection opens with the token, which the messager got by a Ray call; the server answers with an empty frame. Each
request is its number (u32), its kind (u8) and a body; each answer is the number and a body. Answers come in any order:
a request that waits for a slow rule delays no other.

| kind       | body of the request                | body of the answer     |
|------------|------------------------------------|------------------------|
| `JUDGE`    | a batch (see `ray_messaging.wire`) | `VerdictReply`         |
| `WAIT`     | the deferred rows of a batch       | `VerdictReply`         |
| `SNAPSHOT` | `SnapshotRequest`                  | `RuleSnapshot`         |
"""

import asyncio
from struct import Struct
from typing import NamedTuple, cast

OPENING_S = 5.0  # time limit to connect and send the token
JUDGE, WAIT, SNAPSHOT = 0, 1, 2
REQUEST = Struct("<IB")
NUMBER = Struct("<I")
_LENGTH = Struct("<I")
_LARGE = 2**16  # bytes


class LaneAddress(NamedTuple):
    """Host and port of the lane, and the token that opens it."""

    host: str
    port: int
    token: str

    def __repr__(self) -> str:
        return f"LaneAddress(host={self.host!r}, port={self.port})"


class FrameProtocol(asyncio.Protocol):
    """A connection that carries frames; a frame above `limit_bytes` ends the connection before it is read."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.transport: asyncio.Transport | None = None
        self.received = 0
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's do not derive from asyncio's

    def data_received(self, data: bytes) -> None:
        """Pass on each complete frame."""
        buffer = self._buffer
        buffer += data
        at = 0
        while buffer is self._buffer and len(buffer) - at >= 4 and not self.crowded():
            (length,) = _LENGTH.unpack_from(buffer, at)
            if length > self.limit_bytes:
                self.refuse(f"a frame of {length} bytes, the limit is {self.limit_bytes}")
                return
            if len(buffer) - at - 4 < length:
                break
            low, at = at + 4, at + 4 + length
            self.received += 1
            with memoryview(buffer) as received, received[low:at] as frame:
                self.frame_received(frame)
        del buffer[:at]

    def send(self, *parts: bytes) -> None:
        """Write one frame, given in parts."""
        assert self.transport is not None
        size = sum(map(len, parts))
        whole = (_LENGTH.pack(size), *parts)
        if size < _LARGE:  # one copy is cheaper than a second buffer to write
            self.transport.write(b"".join(whole))
        else:
            self.transport.writelines(whole)

    def crowded(self) -> bool:
        """Return whether frames must wait in the buffer; a subclass that says so calls `data_received` again."""
        return False

    def refuse(self, why: str) -> None:  # noqa: ARG002 - for subclasses that log
        """End the connection: the peer breaks the protocol."""
        self._buffer = bytearray()  # that of before is in use while a frame is handled
        if self.transport is not None:
            self.transport.abort()

    def frame_received(self, frame: memoryview) -> None:
        """Handle one frame, which is there during this call only."""
        raise NotImplementedError
