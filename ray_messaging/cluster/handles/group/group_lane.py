"""The handle's side of the lane of a group: sockets over which a handle calls the group's actor.

A Ray call with 2 MB takes 6 to 8 ms of processor time, in the caller, in the actor and in Ray's object store. A message
that one handle sends and another fetches needs two such calls, which take as long as all other work for the message. A
socket takes a fraction of that time (`python -m benchmarks.driven --processor`). So handles send and fetch over a
socket of the actor. Ray calls are used to open the socket, to return errors, and for calls that get no answer over the
socket.

Outside of steps, handles do not write to the server themselves. For that, each handle would need an epoch, a
connection, the directory, the delegated rules and the server's password. So only the group's actor sends under the
group's name. A task that drives a group's steps does write to the server itself (see `group_steps.py`).
"""

import asyncio
import logging
import os
import socket
import time
import weakref
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from struct import Struct as Packer
from struct import unpack
from typing import Any, NamedTuple

from ray_messaging.cluster.handles.connection import value_of, wait_restart
from ray_messaging.cluster.handles.group.waiting import Waiting
from ray_messaging.cluster.lane_calls import AliveCall, Call, body_of, parts_of
from ray_messaging.common.awaitables import Life, at_loop_end
from ray_messaging.common.backoff import LANE_RETRY
from ray_messaging.common.process_tuning import keep_memory
from ray_messaging.common.sockets import notice_cuts
from ray_messaging.default_limits_and_leases import FRAME_LIMIT
from ray_messaging.errors import FrameError, MessagingError
from ray_messaging.interception.lane import JUDGE, NUMBER, REQUEST, WAITING, LaneAddress, LaneClient

logger = logging.getLogger(__name__)

_OPENING_S = 2.0  # how many seconds to wait for a connection; a firewall may drop packets
# How many seconds a call waits at most: a call over the socket for messages, or a Ray call for answers. To wait longer
# for messages, a handle makes a Ray call: a task that waits for Ray gives its processor to other tasks, such as the one
# that sends the messages.
WAIT_S = 0.5
# The longest wait for an answer in seconds. For each _BYTES_PER_S bytes of a request, a second is added.
_PATIENCE_S, _BYTES_PER_S = 1.0, 50 * 2**20
# If this is True, the actor is called only through Ray, because calls over the socket are not encrypted.
_ENCRYPTED = os.environ.get("RAY_USE_TLS", "").lower() in {"1", "true"}
_TIME = Packer("@ll")  # struct timeval
_PREFIX = Packer("<I")
_BEGINNING = Packer("<II")  # an answer begins with its size and the number of its call
# How many sends may run over one connection at the same time. The actor accepts twice as many calls, because calls that
# were cancelled here may still run in the actor.
_SENDS = WAITING // 2
_SILENT = 5  # a connection is given up after this many checks in a row without an answer


def patience_s(size: int) -> float:
    """Return how many seconds to wait for the answer to a request of `size` bytes."""
    return _PATIENCE_S + size // _BYTES_PER_S


class LaneReply(NamedTuple):
    """Result of a call over a socket to the group's actor.

    `begun` says whether the actor may have received the call. `answer` has the header and the frames of the answer. If
    `answer` is None, the call must be repeated as a Ray call.
    """

    begun: bool
    answer: tuple[bytes, list[bytes]] | None


class LaneRoute:
    """The address of the socket of a group's actor, if it is known.

    If no connection to the actor's host can be made, `by_ray_until` is set to the time until which Ray calls are made
    instead. `host` is the host of the last known address, so that errors can name the host when the address is not
    known any more.
    """

    def __init__(self) -> None:
        self.address: LaneAddress | None = None
        self.host = ""
        self.by_ray_until = 0.0  # before this time (of `time.monotonic`) no new connection is tried


class GroupLane:
    """The connections of one handle to its group's actor.

    A blocking handle has one connection for each of its concurrent calls, which are in different threads. All calls of
    an event loop share one connection. Several event loops share `route`, which has the actor's address.
    """

    def __init__(
        self,
        actor: Any,  # noqa: ANN401 - a Ray actor handle
        actor_name: str,
        wait_s: float,
        waiting: Waiting,
        route: LaneRoute,
    ) -> None:
        self._actor = actor
        self._actor_name = actor_name
        self._wait_s = wait_s  # how long to wait for the actor to start again
        self._waiting = waiting
        self._shared = not waiting.blocks
        self._lost = False  # whether the actor's process may have died
        self._route = route
        self._idle: list[Connection] = []
        self._opening = waiting.lock()

    async def connection(self) -> "Connection | None":
        """Return a connection to the group's actor for one call, or None if a Ray call must be made instead."""
        found = self._known()
        if found is not None or _ENCRYPTED or time.monotonic() < self._route.by_ray_until:
            return found
        async with self._opening.held():
            found = self._known() or await self._open()
            if found is not None and self._shared and found not in self._idle:
                self._idle.append(found)
            return found

    def _known(self) -> "Connection | None":
        with suppress(IndexError):  # `pop` raises IndexError if no connection is idle
            while True:
                found = self._idle.pop()
                if found.alive():
                    if self._shared:
                        self._idle.append(found)
                    return found
                # The actor is asked for its address again, because another program may have the port now.
                found.close()
                self._lost = True
        return None

    async def _open(self) -> "Connection | None":
        # If the actor's process has died, its next process has another socket. Wait until that process runs, because a
        # Ray call during the restart would take seconds to fail.
        if self._lost:
            await wait_restart(self._waiting, self._actor, self._wait_s)
            self._route.address, self._lost = None, False
        try:
            address = self._route.address
            if address is None:
                answer = self._actor.lane.remote()
                address = LaneAddress(*await value_of(self._waiting, answer, actor_name=self._actor_name))
                self._route.address, self._route.host = address, address.host
            keep_memory()
            return await LoopConnection.open(address) if self._shared else LaneConnection(address)
        except (MessagingError, OSError) as error:
            logger.info("no socket connection to %s, so its actor is called through Ray: %s", self._actor_name, error)
            self._route.address = None
            # After a MessagingError or a ConnectionError the next call tries the socket again, because the actor may be
            # restarting.
            if not isinstance(error, MessagingError | ConnectionError):
                self._route.by_ray_until = time.monotonic() + LANE_RETRY.first_s
            return None

    def release(self, connection: "Connection") -> None:
        """Keep a connection for later calls. The connection may be closed: the next call checks this."""
        if not self._shared:
            self._idle.append(connection)


class LaneConnection:
    """A connection of one thread to a group's actor. It is closed after a call that got no answer.

    `process` identifies the actor's process. A send that is repeated as a Ray call must reach the same process.
    """

    turn = nullcontext()  # a send need not wait for other sends, because each thread has its own connection

    def __init__(self, address: LaneAddress) -> None:
        self.process = address.token
        self._limit_s = 0.0
        self._socket = socket.create_connection((address.host, address.port), timeout=_OPENING_S)
        # `finalize` closes the socket when this object is gone. With `__del__`, a garbage collection of this object and
        # the socket might first warn of an open socket.
        weakref.finalize(self, self._socket.close)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            notice_cuts(self._socket)
            self._wait_at_most(_OPENING_S)
            token = address.token.encode()
            self._socket.sendall(_PREFIX.pack(len(token)) + token)
            self._read(_PREFIX.size)  # an empty frame means that the token is right
        except BaseException:
            self._socket.close()
            raise

    def alive(self) -> bool:
        """Return whether both sides of the connection seem to be open."""
        try:
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:  # also if this side has closed the socket
            return False
        return False  # the actor has closed the connection, or has sent an answer that belongs to no call

    def close(self) -> None:
        """Close the connection. The actor ends the calls of this connection that wait for messages."""
        self._socket.close()

    async def ask(self, call: Call, frames: Sequence[bytes] = ()) -> LaneReply:
        """Make a call to the group's actor over the socket, and return the reply.

        This blocks, and never suspends the coroutine.
        """
        body = body_of(call, frames)
        size = REQUEST.size + sum(map(len, body))
        begun = False
        if size > FRAME_LIMIT:
            return LaneReply(begun, None)
        try:
            self._wait_at_most(patience_s(size))
            start = _PREFIX.pack(size) + REQUEST.pack(0, JUDGE) + body[0]
            self._socket.sendall(start, socket.MSG_MORE if frames else 0)
            for frame in frames:
                self._socket.sendall(frame)
            begun = True
            return LaneReply(begun, self._answer())
        except BaseException as error:  # also Ctrl-C closes the connection
            self.close()
            if not isinstance(error, OSError | FrameError):
                raise
            logger.info("the group's actor did not answer over its socket, so it is called through Ray: %r", error)
            return LaneReply(begun, None)

    def _answer(self) -> tuple[bytes, list[bytes]] | None:
        size, _ = _BEGINNING.unpack(self._read(_BEGINNING.size))
        if size == NUMBER.size:
            return None
        (count,) = _PREFIX.unpack(self._read(_PREFIX.size))
        if not 1 <= count <= size // _PREFIX.size:
            raise FrameError(
                f"the answer of a group's actor has {size} bytes, in which {count} parts are not possible: use one "
                "version of ray_messaging in all processes"
            )
        sizes = unpack(f"<{count}I", self._read(_PREFIX.size * count))
        if NUMBER.size + _PREFIX.size * (1 + count) + sum(sizes) != size:
            raise FrameError(
                "the parts of a group's actor's answer do not add up to its size: use one version of ray_messaging in "
                "all processes"
            )
        header, *frames = (self._read(each) for each in sizes)
        return header, frames

    def _read(self, size: int) -> bytes:
        """Read exactly `size` bytes, if possible by one system call and without a copy."""
        found = self._socket.recv(size, socket.MSG_WAITALL) if size else b""
        while len(found) < size:
            more = self._socket.recv(size - len(found), socket.MSG_WAITALL)
            if not more:
                raise ConnectionResetError("the connection to the group's actor was cut")
            found += more
        return found

    def _wait_at_most(self, seconds: float) -> None:
        """Set the timeout of each read and write, by options of the socket.

        With Python's own timeout the socket would not block, so that a single call might not read a whole frame.
        """
        if seconds == self._limit_s:
            return
        self._limit_s = seconds
        self._socket.settimeout(None)
        limit = _TIME.pack(int(seconds), int(seconds % 1 * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, limit)


class LoopConnection:
    """A connection to a group's actor for all calls of one event loop, many at once.

    A call without an answer is made again through Ray. A call may take long, because of many other calls or a slow
    rule, so a single call has no timeout. If no call is answered for a while, the actor is asked for a sign of life by
    an AliveCall. If that call is not answered either, the connection and all its calls are given up.
    """

    def __init__(self, process: str, client: LaneClient, life: Life) -> None:
        self.process = process
        self._client = client
        self._life = life  # closes the client when the event loop ends, or when this connection is dropped
        self._loop = asyncio.get_running_loop()
        self.turn = asyncio.Semaphore(_SENDS)  # a send waits while `_SENDS` other sends have no answer
        self._calls = 0  # the number of calls that have no answer yet
        self._nbytes = 0  # the size in bytes of the calls that have no answer yet
        self._watch: asyncio.TimerHandle | None = None  # the timer of the next check, if calls wait for an answer
        self._heard = 0  # the number of answers up to the last check
        self._silent = 0  # the number of checks since the last answer
        self._asking: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, address: LaneAddress) -> "LoopConnection":
        """Connect to the socket of a group's actor at an address; raise OSError if that fails."""
        client = await LaneClient.open(address)
        return cls(address.token, client, await at_loop_end(client.close))

    def alive(self) -> bool:
        """Return whether the connection seems to be open."""
        return self._client.alive

    def close(self) -> None:
        """Close the connection. The actor ends the calls of this connection that wait for messages."""
        self._client.close()

    async def ask(self, call: Call, frames: Sequence[bytes] = ()) -> LaneReply:
        """Make a call to the group's actor over the socket, and return the reply.

        If the socket gives no answer, the `answer` of the reply is None.
        """
        body = b"".join(body_of(call, frames))
        if REQUEST.size + len(body) > FRAME_LIMIT:
            return LaneReply(begun=False, answer=None)
        self._begin(len(body))
        try:
            answer = await self._client.ask(body)
            if not answer:
                return LaneReply(begun=True, answer=None)
            header, *found = parts_of(answer)
        except (OSError, FrameError) as error:
            logger.info("the group's actor did not answer over its socket, so it is called through Ray: %r", error)
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
        """Check whether answers arrive while calls wait.

        If no answer has come since the last check, ask for a sign of life. After some more checks, give the connection
        up.
        """
        self._watch = None
        if not self._calls or not self._client.alive:
            return
        self._silent = self._silent + 1 if self._heard == self._client.received else 0
        self._heard = self._client.received
        if self._silent == 1:
            self._asking = asyncio.ensure_future(self._ask_for_life())
        if self._silent >= _SILENT:
            logger.info("the group's actor gives no sign of life over its socket, so it is called through Ray")
            self._client.close()
            return
        self._look_later()

    async def _ask_for_life(self) -> None:
        with suppress(OSError):
            await self._client.ask(b"".join(body_of(AliveCall())))


Connection = LaneConnection | LoopConnection
