"""The verdict lane as a messager uses it."""

import asyncio
from typing import Any

from ray_messaging.common.limits import FRAME_LIMIT
from ray_messaging.interception.server.lane_server import JUDGE, NUMBER, OPENING_S, REQUEST, STAND, WAIT, LaneAddress
from ray_messaging.interception.wire.framing import Framing


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

    @property
    def alive(self) -> bool:
        """Tell whether the connection is there, as far as is known."""
        return self.transport is not None and not self.transport.is_closing()

    async def ask(self, request: bytes, *, patient: bool = False) -> bytes:
        """Send a request and return its answer; raise OSError where the connection is lost."""
        return await self._exchange(WAIT if patient else JUDGE, request)

    async def stand(self, request: bytes) -> bytes:
        """Send a request for standing verdicts and return its answer; raise OSError where the connection is lost."""
        return await self._exchange(STAND, request)

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
                self._given_up.add(number)

    def close(self) -> None:
        """Drop the connection."""
        if self.transport is not None:
            self.transport.abort()

    def frame_received(self, frame: bytes) -> None:
        """Take an answer; one that nobody waits for any more passes by, one that nobody asked for ends it all."""
        if self._opening is not None and not self._opening.done():
            self._opening.set_result(None)
        elif len(frame) < NUMBER.size:
            self.refuse("an answer without a number")
        else:
            (number,) = NUMBER.unpack_from(frame)
            future = self._waiting.get(number)
            if future is not None and not future.done():
                future.set_result(frame[NUMBER.size :])
            elif future is None and number not in self._given_up:
                self.refuse("an answer to no request")
            self._given_up.discard(number)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell who waits."""
        lost: list[asyncio.Future[Any]] = [] if self._opening is None else [self._opening]
        for future in (*lost, *self._waiting.values()):
            if not future.done():
                future.set_exception(ConnectionResetError(f"the verdict lane was cut ({exc or 'closed'})"))
