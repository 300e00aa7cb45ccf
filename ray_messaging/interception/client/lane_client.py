"""The client side of the verdict lane."""

import asyncio
from typing import Any

from ray_messaging.common.limits import FRAME_LIMIT
from ray_messaging.interception.wire.lane import (
    JUDGE,
    NUMBER,
    OPENING_S,
    REQUEST,
    SNAPSHOT,
    WAIT,
    FrameProtocol,
    LaneAddress,
)


class LaneClient(FrameProtocol):
    """A messager's connection to the verdict lane."""

    def __init__(self) -> None:
        super().__init__(FRAME_LIMIT)
        self._numbers = 0
        self._opening: asyncio.Future[None] | None = None
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._abandoned: set[int] = set()  # requests whose callers were cancelled

    @classmethod
    async def open(cls, address: LaneAddress, timeout_s: float = OPENING_S) -> "LaneClient":
        """Connect and send the token, within OPENING_S at most; raise OSError."""
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
        """Return whether the connection is up, as far as is known."""
        return self.transport is not None and not self.transport.is_closing()

    async def ask(self, request: bytes, *, patient: bool = False) -> bytes:
        """Send a request for verdicts and return its answer; raise OSError if the connection is lost.

        Args:
            patient: the request is about deferred rows; its answer comes once there are verdicts, or after a while.
        """
        return await self._exchange(WAIT if patient else JUDGE, request)

    async def snapshot(self, request: bytes) -> bytes:
        """Send a request for a rule snapshot and return its answer; raise OSError if the connection is lost."""
        return await self._exchange(SNAPSHOT, request)

    async def _exchange(self, kind: int, request: bytes) -> bytes:
        if not self.alive:
            raise ConnectionResetError("the verdict lane is closed")
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
        """Drop the connection."""
        if self.transport is not None:
            self.transport.abort()

    def frame_received(self, frame: memoryview) -> None:
        """Handle an answer: drop one to an abandoned request, close the connection on one to no request."""
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
        """Fail all open requests."""
        lost: list[asyncio.Future[Any]] = [] if self._opening is None else [self._opening]
        for future in (*lost, *self._waiting.values()):
            if not future.done():
                future.set_exception(ConnectionResetError(f"the verdict lane was cut ({exc or 'closed'})"))
