"""The connection of an event loop to a group's actor, over the group's lane."""

import asyncio
import logging
from collections.abc import Sequence

from ray_messaging.cluster.handles.group.group_lane import LaneReply, patience_s
from ray_messaging.cluster.lane_calls import Call, body_of, parts_of
from ray_messaging.common.limits import FRAME_LIMIT
from ray_messaging.common.loop_end import Life, at_loop_end
from ray_messaging.errors import FrameError
from ray_messaging.interception.client.lane_client import LaneClient
from ray_messaging.interception.wire.lane import REQUEST, LaneAddress

logger = logging.getLogger(__name__)


class LoopConnection:
    """A connection for all calls of one event loop, many at once; a call without an answer goes by Ray."""

    def __init__(self, process: str, client: LaneClient, life: Life) -> None:
        self.process = process
        self._client = client
        self._life = life  # a client that nobody has any more is closed, too
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def open(cls, address: LaneAddress) -> "LoopConnection":
        """Connect; raise OSError."""
        client = await LaneClient.open(address)
        return cls(address.token, client, await at_loop_end(client.close))

    @property
    def closed(self) -> bool:
        """Return whether the connection is down."""
        return not self._client.alive

    def alive(self) -> bool:
        """Return whether the connection is up, as far as is known, and of the running event loop."""
        return self._loop is asyncio.get_running_loop() and self._client.alive

    def close(self) -> None:
        """Close the connection: the actor stops waiting for messages on its behalf."""
        if not self._loop.is_closed():  # else it was closed with its loop
            self._client.close()

    async def ask(self, call: Call, frames: Sequence[bytes] = ()) -> LaneReply:
        """Make a call."""
        head, _ = body_of(call, frames)
        body = b"".join((head, *frames))
        if REQUEST.size + len(body) > FRAME_LIMIT:
            return LaneReply(begun=False, answer=None)
        try:
            async with asyncio.timeout(patience_s(len(body))):
                answer = await self._client.ask(body)
            if not answer:
                return LaneReply(begun=True, answer=None)
            header, *found = parts_of(answer)
        except (OSError, FrameError) as error:  # a TimeoutError is an OSError
            logger.info("the group's actor did not answer over its lane, so it is asked by Ray: %r", error)
            return LaneReply(begun=True, answer=None)
        return LaneReply(begun=True, answer=(header, found))
