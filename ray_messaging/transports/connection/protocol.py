"""One connection to Redis on the hot path, which only writes commands and reads replies.

redis-py connects, authenticates and starts TLS. Then we take over its socket, because redis-py takes 80 us of Python
per command, and our own protocol takes 10.
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
    """Authenticate. If this fails, abort the socket at once, because a shutdown of TLS may take up to 30 s."""
    # redis-py has no public name for the writer, and drops its own reference to the writer when it fails.
    writer: Any = connection._writer
    try:
        await connection.on_connect()
    except BaseException as error:
        # uvloop raises RuntimeError for this, some releases of Python AttributeError; redis-py expects asyncio's error.
        ended = isinstance(error, (RuntimeError, AttributeError)) and writer.transport.is_closing()
        with suppress(AttributeError):
            writer.transport.abort()
        if ended:
            raise RedisConnectionError("the server ended the connection while it was opened") from error
        raise


async def connect(connection: AbstractConnection) -> None:
    """Connect within 5 s; raises redis-py's errors."""
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


LARGE = 64 * 2**10  # arguments from this size on are sent separately, because hiredis copies each three times
# Up to this size the reply buffer is kept between replies, because a buffer that grows again is copied.
_KEPT_BYTES = 4 * 2**20


class ServerBusyError(ResponseError):
    """The server cannot run this command now; it can be tried again."""


class ClusterLostError(ServerBusyError):
    """The node has lost most of its cluster, or the cluster has a slot without an owner."""


class MovedError(ResponseError):
    """Another node of the cluster has the key."""


# After these errors another server may be the primary. A new connection is made to the server that is the primary then.
_ELSEWHERE = (ReadOnlyError, ClusterLostError, MovedError)

_ERRORS: dict[str, type[Exception]] = {
    "NOAUTH": AuthenticationError,
    "WRONGPASS": AuthenticationError,
    "NOPERM": NoPermissionError,
    "NOSCRIPT": NoScriptError,
    "OOM": OutOfMemoryError,
    "LOADING": BusyLoadingError,
    "READONLY": ReadOnlyError,
    "UNBLOCKED": ReadOnlyError,  # The server became a replica while a read waited.
    "CLUSTERDOWN": ClusterLostError,
    "MOVED": MovedError,
    **dict.fromkeys(("ASK", "BUSY", "MISCONF", "MASTERDOWN", "NOREPLICAS", "TRYAGAIN", "NOTREADY"), ServerBusyError),
}


def reply_error(text: str) -> Exception:
    """Turn an error reply into redis-py's exception for it."""
    return _ERRORS.get(text.partition(" ")[0], ResponseError)(text)


class LargeCommand(list[Any]):
    """Command with large arguments, whose positions are in `large`."""

    __slots__ = ("large",)

    def __init__(self, args: Sequence[Any], large: Sequence[int]) -> None:
        super().__init__(args)
        self.large = large


def pieces_of(args: Sequence[Any]) -> list[bytes]:
    """Return an encoded command in pieces.

    Each large argument of a LargeCommand is a piece of its own, and is not copied.
    """
    if not isinstance(args, LargeCommand):
        return [hiredis.pack_command(tuple(args))]
    pieces, before, low = list[bytes](), b"*%d\r\n" % len(args), 0
    for at in args.large:
        pieces += [b"%b%b$%d\r\n" % (before, _items(args[low:at]), len(args[at])), args[at]]
        before, low = b"\r\n", at + 1
    return [*pieces, before + _items(args[low:])]


def _items(args: Sequence[Any]) -> bytes:
    """Return some encoded arguments of a command, without the count of arguments that precedes them."""
    return hiredis.pack_command(tuple(args)).partition(b"\n")[2] if args else b""


class _Call(msgspec.Struct, eq=False):
    future: "asyncio.Future[Any]"
    began: float  # a time of the event loop's clock
    due: float  # a time of the event loop's clock
    stall_s: float
    end: int  # how many bytes had been written to the connection in all, after its command


class TakenSocket(asyncio.Protocol):
    """Socket of an open connection of redis-py, with our own protocol from then on."""

    def __init__(self, connection: AbstractConnection) -> None:
        self._loop = asyncio.get_running_loop()
        self._lost: Exception | None = None
        self._reader = hiredis.Reader(replyError=reply_error)
        # The reference is kept, because redis-py closes the socket of a connection that nobody refers to.
        self._connection = connection
        # redis-py has no public way to give its socket away.
        writer: Any = connection._writer
        self._transport: asyncio.Transport = writer.transport
        self._transport.set_protocol(self)

    @property
    def is_open(self) -> bool:
        """Return whether commands can be sent."""
        return self._lost is None and not self._transport.is_closing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Call `close` with the reason why the connection was lost."""
        self.close(RedisConnectionError(f"the connection was cut ({exc or 'closed by the server'})"))

    def close(self, why: Exception | None = None) -> None:
        """Close the connection because of `why`."""
        if self._lost is None:
            self._lost = why or RedisConnectionError("closed")
            self._transport.abort()
            # Otherwise redis-py would warn that its connection was not closed.
            self._connection._reader = self._connection._writer = None


class Wire(TakenSocket):
    """Connection that matches replies to commands, in order. Several commands may be in flight.

    One timer checks all commands, and runs only while commands wait, so it costs almost nothing for short calls.
    """

    def __init__(self, connection: AbstractConnection) -> None:
        super().__init__(connection)
        self._waiting: deque[_Call] = deque()
        self._written = self._left = 0  # bytes that were given to the socket, and bytes that have left the socket
        self._left_at = self._heard_at = -math.inf  # times of the event loop's clock
        self.waited_s = 0.0  # seconds that the oldest waiting command had waited when the first byte after it arrived
        self._timer: asyncio.TimerHandle | None = None
        self._look_at = math.inf  # a time of the event loop's clock
        self._reader.setmaxbuf(_KEPT_BYTES)

    @classmethod
    async def open(cls, connection: AbstractConnection) -> "Wire":
        """Connect within 5 s and take the socket over; raises redis-py's errors."""
        await connect(connection)
        return cls(connection)

    def call(self, args: Sequence[Any], timeout_s: float, stall_s: float = math.inf) -> "asyncio.Future[Any]":
        """Send a command; return a future with its reply, or with the error that the server replied.

        If the reply does not arrive within `timeout_s`, the connection is closed, because the next reply could belong
        to this call or to the next. It is also closed if no byte was sent or received for `stall_s`: the connection may
        be half open, and a new one would be answered at once.
        """
        loop, transport = self._loop, self._transport
        future: asyncio.Future[Any] = loop.create_future()
        if self._lost is not None or transport.is_closing():
            future.set_exception(RedisConnectionError(f"the connection is closed ({self._lost})"))
            return future
        # The server begins to work on the command while we record it.
        for piece in pieces_of(args):
            transport.write(piece)
            self._written += len(piece)
        self._expect(future, timeout_s, stall_s)
        return future

    def calls(
        self, commands: Iterable[Sequence[Any]], timeout_s: float, stall_s: float = math.inf
    ) -> "list[asyncio.Future[Any]]":
        """Send commands in one piece; return a future for each, as `call` does."""
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
        # `_left` counts sent bytes for the oldest waiting call. If this call is the oldest, the count begins with it.
        if self._timer is None or len(self._waiting) == 1:
            self._left, self._left_at = self._sent(call), now
        self._watch(min(call.due, now + stall_s))

    def _watch(self, at: float) -> None:
        """Schedule a check of the waiting calls, unless an earlier check is scheduled."""
        if self._timer is not None:
            if self._look_at <= at:
                return
            self._timer.cancel()
        self._timer, self._look_at = self._loop.call_at(at, self._look), at

    def _sent(self, call: _Call) -> int:
        """Return how many bytes, up to the end of this call, have left the write buffer."""
        return min(self._written - self._transport.get_write_buffer_size(), call.end)

    def _look(self) -> None:
        self._timer = None
        # Calls whose callers were cancelled are ignored.
        waiting = [call for call in self._waiting if not call.future.done()]
        if not waiting:
            return
        first, now = waiting[0], self._loop.time()
        left = self._sent(first)
        if left != self._left:
            self._left, self._left_at = left, now
        due = min(call.due for call in waiting)
        stalled_at = max(first.began, self._heard_at, self._left_at) + first.stall_s
        if now >= min(due, stalled_at):
            self.close(RedisTimeoutError("no reply in time"))
        else:
            self._watch(min(due, stalled_at))

    def data_received(self, data: bytes) -> None:
        """Give each reply to its call."""
        now, waiting = self._loop.time(), self._waiting
        if waiting and self._heard_at <= waiting[0].began:
            self.waited_s = now - waiting[0].began
        self._heard_at = now
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not False:
                future = self._waiting.popleft().future
                if future.done():  # A future that is done belongs to a caller that was cancelled.
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
