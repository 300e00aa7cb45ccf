"""The connection of an event loop to a group's actor, over the group's lane."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress

from ray_messaging.cluster.handles.group.group_lane import LaneReply, patience_s
from ray_messaging.cluster.lane_calls import AliveCall, Call, body_of, parts_of
from ray_messaging.common.limits import FRAME_LIMIT
from ray_messaging.common.loop_end import Life, at_loop_end
from ray_messaging.errors import FrameError
from ray_messaging.interception.lane import REQUEST, WAITING, LaneAddress, LaneClient

logger = logging.getLogger(__name__)

# Sends that are under way at once. The actor takes twice as many calls from a connection: those that were cancelled
# are under way there all the same.
_SENDS = WAITING // 2
_SILENT = 5  # looks in a row at which nothing had come, after which the connection is given up


class LoopConnection:
    """A connection for all calls of one event loop, many at once; a call without an answer goes by Ray.

    A call may take long, behind many others or a slow rule. So it is not given up after some time, but with the
    connection, once no answer to any call, nor to a question for a sign of life, has come for a while.
    """

    def __init__(self, process: str, client: LaneClient, life: Life) -> None:
        self.process = process
        self._client = client
        self._life = life  # a client that nobody has any more is closed, too
        self._loop = asyncio.get_running_loop()
        self._sends = asyncio.Semaphore(_SENDS)
        self._calls = 0  # that have no answer yet
        self._nbytes = 0  # theirs
        self._watch: asyncio.TimerHandle | None = None  # while there are some
        self._heard = 0  # answers at the last look
        self._silent = 0  # looks since one came
        self._asking: asyncio.Task[None] | None = None

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

    def turn(self) -> AbstractAsyncContextManager[object]:
        """Return a context for one send, which waits while very many are under way."""
        return self._sends

    async def ask(self, call: Call, frames: Sequence[bytes] = ()) -> LaneReply:
        """Make a call."""
        head, _ = body_of(call, frames)
        body = b"".join((head, *frames))
        if REQUEST.size + len(body) > FRAME_LIMIT:
            return LaneReply(begun=False, answer=None)
        self._begin(len(body))
        try:
            answer = await self._client.ask(body)
            if not answer:
                return LaneReply(begun=True, answer=None)
            header, *found = parts_of(answer)
        except (OSError, FrameError) as error:
            logger.info("the group's actor did not answer over its lane, so it is asked by Ray: %r", error)
            return LaneReply(begun=True, answer=None)
        finally:
            self._calls -= 1
            self._nbytes -= len(body)
        return LaneReply(begun=True, answer=(header, found))

    def _begin(self, nbytes: int) -> None:
        self._calls += 1
        self._nbytes += nbytes
        if self._watch is None:
            self._heard, self._silent = self._client.received, 0
            self._look_later()

    def _look_later(self) -> None:
        self._watch = self._loop.call_later(patience_s(self._nbytes), self._look)

    def _look(self) -> None:
        """Look whether answers come while calls wait; if not, ask for a sign of life, and give up in the end."""
        self._watch = None
        if not self._calls or not self._client.alive:
            return
        self._silent = self._silent + 1 if self._heard == self._client.received else 0
        self._heard = self._client.received
        if self._silent == 1:
            self._asking = asyncio.ensure_future(self._ask_for_life())
        if self._silent >= _SILENT:
            logger.info("the group's actor gives no sign of life over its lane, so it is asked by Ray")
            self._client.close()
            return
        self._look_later()

    async def _ask_for_life(self) -> None:
        head, _ = body_of(AliveCall())
        with suppress(OSError):
            await self._client.ask(head)
