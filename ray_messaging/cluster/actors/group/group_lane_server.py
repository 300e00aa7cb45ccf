"""The lane of a group, on the actor's side: a socket on which the group's handles send, fetch and acknowledge."""

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from typing import Protocol

from ray_messaging.cluster.lane_calls import (
    ALIVE,
    AliveCall,
    Call,
    Committed,
    FetchCall,
    Parts,
    RelayCall,
    body_of,
    fates_of,
    lent_of,
    parse_call,
)
from ray_messaging.errors import CommitFailed, MessagingError
from ray_messaging.interception.server.lane_server import LaneServer
from ray_messaging.interception.wire.lane import LaneAddress
from ray_messaging.messages import Messages
from ray_messaging.receipt import Receipts
from ray_messaging.receiving.ack_ranges import Span
from ray_messaging.receiving.delivery_leases import FetchOptions, Token

logger = logging.getLogger(__name__)


class Served(Protocol):
    """The group that the lane's callers reach."""

    async def relay(self, caller: str, number: int, oldest: int, frames: Sequence[bytes]) -> Receipts:
        """Send the frames of a handle."""

    async def fetch(
        self, caller: str, token: Token | None, limit: int | None, timeout: float | None, asking: FetchOptions
    ) -> tuple[Token | None, Messages]:
        """Commit the lease of a token, and lease the next messages."""

    async def ack_some(
        self, loans: Sequence[tuple[Token, Sequence[Span] | None]]
    ) -> tuple[list[Token], CommitFailed | None]:
        """Commit leases."""


class GroupLaneServer:
    """The lane of one group. It has results only: a call that fails gets an empty answer, and is repeated by Ray."""

    def __init__(self, group: Served) -> None:
        self._group = group
        self._lane = LaneServer(self._answer)
        self._address: LaneAddress | None = None
        self._opening = asyncio.Lock()

    async def address(self, host: str) -> LaneAddress:
        """Return the address; listen on a free port of `host` if this is the first call."""
        async with self._opening:
            if self._address is None:
                self._address = await self._lane.start(host)
        return self._address

    @property
    def token(self) -> str:
        """Return the lane's token, which no other process of this group has had."""
        return self._lane.token

    async def close(self) -> None:
        """Stop listening and drop all connections."""
        await self._lane.close()

    def _answer(self, request: memoryview, *, patient: bool) -> Awaitable[bytes | tuple[bytes, ...]]:  # noqa: ARG002 - a lane's
        return self._found(*parse_call(request))

    async def _found(self, call: Call, frames: list[bytes]) -> bytes | tuple[bytes, ...]:
        try:
            head, found = await self._result(call, frames)
        except MessagingError as error:
            logger.debug("a call over the group's lane failed, and comes again by Ray: %r", error)
            return b""
        return head, *found

    async def _result(self, call: Call, frames: list[bytes]) -> Parts:
        if isinstance(call, RelayCall):
            return body_of(fates_of(await self._group.relay(call.caller, call.number, call.oldest, frames)))
        if isinstance(call, FetchCall):
            token, messages = await self._group.fetch(call.caller, call.token, call.limit, call.timeout, call.options)
            return lent_of(token, messages)
        if isinstance(call, AliveCall):
            return ALIVE
        over, late = await self._group.ack_some([(token, None) for token in call.tokens])
        if late is not None:
            raise late
        return body_of(Committed(tuple(over)))
