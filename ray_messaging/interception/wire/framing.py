"""Length-prefixed frames on a stream socket."""

import asyncio
from struct import Struct
from typing import cast

_LENGTH = Struct("<I")


class Framing(asyncio.Protocol):
    """Cut what arrives into frames; a frame above `limit_bytes` ends the connection before it is read."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.transport: asyncio.Transport | None = None
        self.received = 0
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are none by inheritance

    def data_received(self, data: bytes) -> None:
        """Hand on each whole frame."""
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= 4 and not self.crowded():
            (length,) = _LENGTH.unpack_from(buffer, at)
            if length > self.limit_bytes:
                self.refuse(f"a frame of {length} bytes, the limit is {self.limit_bytes}")
                return
            if len(buffer) - at - 4 < length:
                break
            frame = bytes(memoryview(buffer)[at + 4 : at + 4 + length])
            at += 4 + length
            self.received += 1
            self.frame_received(frame)
        del buffer[:at]

    def send(self, frame: bytes) -> None:
        """Write one frame."""
        assert self.transport is not None
        self.transport.write(_LENGTH.pack(len(frame)) + frame)  # one copy is cheaper than a second buffer to write

    def crowded(self) -> bool:
        """Tell whether frames must wait in the buffer; whoever says so calls `data_received` again."""
        return False

    def refuse(self, why: str) -> None:  # noqa: ARG002 - for those who log
        """End the connection: the peer does not keep to the protocol."""
        self._buffer.clear()
        if self.transport is not None:
            self.transport.abort()

    def frame_received(self, frame: bytes) -> None:
        """Take one frame."""
        raise NotImplementedError
