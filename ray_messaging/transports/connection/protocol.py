"""A connection to Redis that writes commands and reads replies in less time than redis-py.

redis-py connects, authenticates and starts TLS. Then this module takes over the socket: redis-py takes 80 us of Python
per command, and this module takes 10.
"""

import asyncio
import math
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import hiredis
import msgspec
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ray_messaging.default_limits_and_leases import CONNECT_TIMEOUT_S


async def _introduce(connection: AbstractConnection) -> None:
    """Authenticate. If this fails, abort the socket at once, because closing TLS properly may take up to 30 s."""
    # redis-py has no public name for the writer, and sets this attribute to None when the connection fails.
    writer: Any = connection._writer
    try:
        await connection.on_connect()
    except BaseException as error:
        # If the connection has ended, uvloop raises RuntimeError, and some releases of Python raise AttributeError.
        # redis-py handles neither error, so an error of redis-py's is raised instead.
        ended = isinstance(error, (RuntimeError, AttributeError)) and writer.transport.is_closing()
        with suppress(AttributeError):
            writer.transport.abort()
        if ended:
            raise RedisConnectionError("the server ended the connection while it was opened") from error
        raise


async def connect(connection: AbstractConnection) -> None:
    """Connect within 5 s.

    Raises: redis-py's errors; Python's TimeoutError after 5 s.
    """
    connection.redis_connect_func = _introduce
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await connection.connect()
            if task.cancelling() > before:  # up to Python 3.11 redis-py's wait_for loses some cancellations
                raise asyncio.CancelledError  # noqa: TRY301 - the connection is to be closed below
    except BaseException:
        await connection.disconnect(nowait=True)
        raise


# Arguments of this many bytes or more are sent separately, because hiredis would copy each of them three times.
LARGE = 64 * 2**10
# A reply buffer of up to this many bytes is kept for the next reply, because a new buffer is copied as it grows.
_KEPT_BYTES = 4 * 2**20


class ServerBusyError(ResponseError):
    """The server cannot run this command now, but the command can be tried again."""


class ClusterLostError(ServerBusyError):
    """The node has lost most of its cluster, or the cluster has a slot without an owner."""


class MovedError(ResponseError):
    """Another node of the cluster has the key."""


# These errors may mean that another server is the primary now. So the connection is closed. The next connection may be
# made to another server.
_ELSEWHERE = (ReadOnlyError, ClusterLostError, MovedError)

_ERRORS: dict[str, type[Exception]] = {
    "NOAUTH": AuthenticationError,
    "WRONGPASS": AuthenticationError,
    "NOPERM": NoPermissionError,
    "NOSCRIPT": NoScriptError,
    "OOM": OutOfMemoryError,
    "LOADING": BusyLoadingError,
    "READONLY": ReadOnlyError,
    "UNBLOCKED": ReadOnlyError,  # the server became a replica while a read waited
    "CLUSTERDOWN": ClusterLostError,
    "MOVED": MovedError,
    **dict.fromkeys(("ASK", "BUSY", "MISCONF", "MASTERDOWN", "NOREPLICAS", "TRYAGAIN", "NOTREADY"), ServerBusyError),
}


def reply_error(text: str) -> Exception:
    """Return an exception, of redis-py or of this module, for the text of an error that the server replied."""
    return _ERRORS.get(text.partition(" ")[0], ResponseError)(text)


def pieces_of(args: Sequence[Any]) -> list[bytes]:
    """Return an encoded command as a list of byte strings.

    Each large argument is an item of the list, so it is not copied.
    """
    large = [at for at, arg in enumerate(args) if type(arg) is bytes and len(arg) >= LARGE]
    if not large:
        return [hiredis.pack_command(tuple(args))]
    pieces, before, low = list[bytes](), b"*%d\r\n" % len(args), 0
    for at in large:
        pieces += [b"%b%b$%d\r\n" % (before, _items(args[low:at]), len(args[at])), args[at]]
        before, low = b"\r\n", at + 1
    return [*pieces, before + _items(args[low:])]


def _items(args: Sequence[Any]) -> bytes:
    """Return some encoded arguments of a command, without the number of arguments with which a command begins."""
    return hiredis.pack_command(tuple(args)).partition(b"\n")[2] if args else b""


class _Call(msgspec.Struct, eq=False):
    future: "asyncio.Future[Any]"
    began: float  # the event loop's time when the command was sent
    due: float  # the event loop's time until which the reply must arrive
    stall_s: float
    end: int  # how many bytes had been written to the connection in all, this command included


class TakenSocket(asyncio.Protocol):
    """The socket of an open connection of redis-py, over which this module sends and receives in place of redis-py."""

    def __init__(self, connection: AbstractConnection) -> None:
        self._loop = asyncio.get_running_loop()
        self._lost: Exception | None = None
        self._reader = hiredis.Reader(replyError=reply_error)
        # redis-py closes the socket of a connection that is garbage collected, so this reference is kept.
        self._connection = connection
        # redis-py has no public way to hand over its socket.
        writer: Any = connection._writer
        self._transport: asyncio.Transport = writer.transport
        self._transport.set_protocol(self)

    @property
    def is_open(self) -> bool:
        """Return whether commands can be sent."""
        return self._lost is None and not self._transport.is_closing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the connection with the reason why it was lost."""
        self.close(RedisConnectionError(f"the connection was cut ({exc or 'closed by the server'})"))

    def close(self, why: Exception | None = None) -> None:
        """Close the connection. `why` is the error that later calls raise."""
        if self._lost is None:
            self._lost = why or RedisConnectionError("closed")
            self._transport.abort()
            # With references to a reader and a writer, redis-py would warn that its connection was not closed.
            self._connection._reader = self._connection._writer = None


class Wire(TakenSocket):
    """Connection that gives each reply to its command, in the order of the commands. Several commands may be under way.

    One timer checks all commands. It runs only while commands wait, so it costs almost nothing for short calls.
    """

    def __init__(self, connection: AbstractConnection) -> None:
        super().__init__(connection)
        self._waiting: deque[_Call] = deque()
        self._written = self._left = 0  # the bytes that calls have written, and how many of them are sent
        # The loop times at which `_left` was last set, and at which bytes last arrived.
        self._left_at = self._heard_at = -math.inf
        self.waited_s = 0.0  # how many seconds the oldest command had waited when the first byte of its reply arrived
        self._timer: asyncio.TimerHandle | None = None
        self._look_at = math.inf  # the loop time of the next check
        self._reader.setmaxbuf(_KEPT_BYTES)

    @classmethod
    async def open(cls, connection: AbstractConnection) -> "Wire":
        """Connect within 5 s, and take the socket over from redis-py.

        Raises: redis-py's errors; Python's TimeoutError after 5 s.
        """
        await connect(connection)
        return cls(connection)

    def call(self, args: Sequence[Any], timeout_s: float, stall_s: float = math.inf) -> "asyncio.Future[Any]":
        """Send a command; return a future with its reply, or with the error that the server replied.

        If the reply does not arrive within `timeout_s`, the connection is closed, because a later reply could not be
        assigned to a command with certainty. The connection is also closed if no byte was sent or received for
        `stall_s`, because the connection may be half open, and a new connection may get an answer immediately.
        """
        loop, transport = self._loop, self._transport
        future: asyncio.Future[Any] = loop.create_future()
        if self._lost is not None or transport.is_closing():
            future.set_exception(RedisConnectionError(f"the connection is closed ({self._lost})"))
            return future
        # The command is sent before it is registered, so that the server begins to work earlier.
        for piece in pieces_of(args):
            transport.write(piece)
            self._written += len(piece)
        self._expect(future, timeout_s, stall_s)
        return future

    def calls(
        self, commands: Iterable[Sequence[Any]], timeout_s: float, stall_s: float = math.inf
    ) -> "list[asyncio.Future[Any]]":
        """Send commands in one piece; return a future for each reply. The time limits are those of `call`."""
        if self._lost is not None or self._transport.is_closing():
            return [self.call(command, timeout_s, stall_s) for command in commands]
        futures: list[asyncio.Future[Any]] = []
        pieces: list[bytes] = []
        for command in commands:
            more = pieces_of(command)
            pieces += more
            self._written += sum(map(len, more))
            futures.append(self._loop.create_future())
            self._expect(futures[-1], timeout_s, stall_s)
        self._transport.writelines(pieces)
        return futures

    def _expect(self, future: "asyncio.Future[Any]", timeout_s: float, stall_s: float) -> None:
        """Register a future for the reply to the command that was written last."""
        now = self._loop.time()
        call = _Call(future, now, now + timeout_s, stall_s, self._written)
        self._waiting.append(call)
        # `_left` counts sent bytes up to the end of the oldest waiting call. If this call is the oldest one, the count
        # begins anew.
        if self._timer is None or len(self._waiting) == 1:
            self._left, self._left_at = self._written - self._transport.get_write_buffer_size(), now
        self._watch(min(call.due, now + stall_s))

    def _watch(self, at: float) -> None:
        """Schedule a check of the waiting calls, unless an earlier check is scheduled."""
        if self._timer is not None:
            if self._look_at <= at:
                return
            self._timer.cancel()
        self._timer, self._look_at = self._loop.call_at(at, self._look), at

    def _look(self) -> None:
        self._timer = None
        # Calls whose callers were cancelled need no check.
        waiting = [call for call in self._waiting if not call.future.done()]
        if not waiting:
            return
        first, now = waiting[0], self._loop.time()
        left = min(self._written - self._transport.get_write_buffer_size(), first.end)
        if left != self._left:
            self._left, self._left_at = left, now
        due = min(call.due for call in waiting)
        stalled_at = max(first.began, self._heard_at, self._left_at) + first.stall_s
        if now >= min(due, stalled_at):
            self.close(RedisTimeoutError("no reply in time"))
        else:
            self._watch(min(due, stalled_at))

    def data_received(self, data: bytes) -> None:
        """Give each reply in the received bytes to the call that waits for it."""
        now, waiting = self._loop.time(), self._waiting
        if waiting and self._heard_at <= waiting[0].began:
            self.waited_s = now - waiting[0].began
        self._heard_at = now
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not False:
                future = self._waiting.popleft().future
                if future.done():  # the caller was cancelled
                    continue
                if isinstance(reply, Exception):
                    future.set_exception(reply)
                    if isinstance(reply, _ELSEWHERE):
                        self.close(reply)
                        return
                else:
                    future.set_result(reply)
        except (hiredis.ProtocolError, IndexError) as error:
            self.close(RedisConnectionError(f"the server does not speak Redis's protocol ({error})"))

    def close(self, why: Exception | None = None) -> None:
        """Close the connection; waiting calls raise `why`."""
        super().close(why)
        assert self._lost is not None
        if self._timer is not None:
            self._timer.cancel()
        while self._waiting:
            future = self._waiting.popleft().future
            if not future.done():
                future.set_exception(self._lost)
