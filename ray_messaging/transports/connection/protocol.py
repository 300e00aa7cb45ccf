"""One connection to Redis on the hot path: commands out, replies in, nothing between.

redis-py connects, authenticates and speaks TLS; then its socket is ours. It takes 80 us of Python per command, this 10.
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
from redis.exceptions import (
    TimeoutError as RedisTimeoutError,
)

from ray_messaging.limits_and_timeouts import CONNECT_TIMEOUT_S


async def _introduce(connection: AbstractConnection) -> None:
    """Authenticate; on failure drop the socket at once, because TLS would wait up to 30 s for its shutdown."""
    # redis-py lets go of it, and has no public name for it.
    writer: Any = connection._writer
    try:
        await connection.on_connect()
    except BaseException as error:
        ended = isinstance(error, RuntimeError) and writer.transport.is_closing()
        with suppress(AttributeError):  # early releases of Python 3.11, for one that the server has ended
            writer.transport.abort()
        if ended:  # uvloop says so by a RuntimeError; redis-py expects what asyncio raises
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
            if task.cancelling() > before:  # redis-py's wait_for drops some, up to Python 3.11
                raise asyncio.CancelledError  # noqa: TRY301 - the connection is to be closed below
    except BaseException:
        await connection.disconnect(nowait=True)
        raise


def take_over(connection: AbstractConnection, protocol: asyncio.Protocol) -> asyncio.Transport:
    """Hand a connection's socket to a protocol, which must keep the connection: without a reference it is closed."""
    # redis-py has no public way to hand its socket over.
    writer: Any = connection._writer
    transport: asyncio.Transport = writer.transport
    transport.set_protocol(protocol)
    return transport


LARGE = 64 * 2**10  # bytes of an argument that is worth a piece of its own: hiredis copies each three times
_KEPT_BYTES = 4 * 2**20  # of the buffer for replies, between two of them: it grows by copies of itself


class ServerBusyError(ResponseError):
    """The server cannot serve this now; it can be asked again."""


class ClusterLostError(ServerBusyError):
    """The node has lost most of its cluster, or the cluster has a slot without an owner."""


class MovedError(ResponseError):
    """Another node of the cluster has the key."""


# After these another server may be the one to ask: a new connection finds it.
_ELSEWHERE = (ReadOnlyError, ClusterLostError, MovedError)

_ERRORS: dict[str, type[Exception]] = {
    "NOAUTH": AuthenticationError,
    "WRONGPASS": AuthenticationError,
    "NOPERM": NoPermissionError,
    "NOSCRIPT": NoScriptError,
    "OOM": OutOfMemoryError,
    "LOADING": BusyLoadingError,
    "READONLY": ReadOnlyError,
    "UNBLOCKED": ReadOnlyError,  # it became a replica while a read waited
    "CLUSTERDOWN": ClusterLostError,
    "MOVED": MovedError,
    **dict.fromkeys(("ASK", "BUSY", "MISCONF", "MASTERDOWN", "NOREPLICAS", "TRYAGAIN", "NOTREADY"), ServerBusyError),
}


def reply_error(text: str) -> Exception:
    """Turn an error reply into redis-py's exception for it."""
    return _ERRORS.get(text.partition(" ")[0], ResponseError)(text)


class LargeCommand(list[Any]):
    """Command with large arguments, at the `large` places."""

    __slots__ = ("large",)

    def __init__(self, args: Sequence[Any], large: Sequence[int]) -> None:
        super().__init__(args)
        self.large = large


def pieces_of(args: Sequence[Any]) -> list[bytes]:
    """Return a command as the server reads it, in pieces: large arguments, where they are named, are not copied."""
    if not isinstance(args, LargeCommand):
        return [hiredis.pack_command(tuple(args))]
    pieces, before, low = list[bytes](), b"*%d\r\n" % len(args), 0
    for at in args.large:
        pieces += [b"%b%b$%d\r\n" % (before, _items(args[low:at]), len(args[at])), args[at]]
        before, low = b"\r\n", at + 1
    return [*pieces, before + _items(args[low:])]


def _items(args: Sequence[Any]) -> bytes:
    """Return some arguments of a command as the server reads them, without the count that comes before them."""
    return hiredis.pack_command(tuple(args)).partition(b"\n")[2] if args else b""


class _Call(msgspec.Struct, eq=False):
    future: "asyncio.Future[Any]"
    began: float  # loop time
    due: float  # loop time
    stall_s: float
    end: int  # of its command, in bytes written


class Wire(asyncio.Protocol):
    """Connection that matches replies to commands, in order; several may be under way.

    One timer watches over all of them, and only while some wait: it costs a stream of short calls next to nothing.
    """

    def __init__(self, connection: AbstractConnection) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Call] = deque()
        self._lost: Exception | None = None
        self._written = self._left = 0  # bytes of commands: given to the socket, and seen to have left
        self._left_at = self._heard_at = -math.inf  # loop time
        self._timer: asyncio.TimerHandle | None = None
        self._look_at = math.inf  # loop time
        self._reader = hiredis.Reader(replyError=reply_error)
        self._reader.setmaxbuf(_KEPT_BYTES)
        # Kept, as redis-py closes the socket of a connection without a reference.
        self._connection = connection
        self._transport = take_over(connection, self)

    @classmethod
    async def open(cls, connection: AbstractConnection) -> "Wire":
        """Connect within 5 s and take the socket over; raises redis-py's errors."""
        await connect(connection)
        return cls(connection)

    @property
    def is_open(self) -> bool:
        """Return whether commands can be sent."""
        return self._lost is None and not self._transport.is_closing()

    def call(self, args: Sequence[Any], timeout_s: float, stall_s: float = math.inf) -> "asyncio.Future[Any]":
        """Send a command; the future gives its reply, or raises the error that the server replied.

        A reply that does not come in time ends the connection: the next reply could be for this call or for the next.
        So does `stall_s` without any movement: the link may be half open, and a new one would be answered at once.
        """
        loop, transport = self._loop, self._transport
        future: asyncio.Future[Any] = loop.create_future()
        if self._lost is not None or transport.is_closing():
            future.set_exception(RedisConnectionError(f"the connection is closed ({self._lost})"))
            return future
        # The server begins with it while we note it down.
        for piece in pieces_of(args):
            transport.write(piece)
            self._written += len(piece)
        self._expect(future, timeout_s, stall_s)
        return future

    def calls(
        self, commands: Iterable[Sequence[Any]], timeout_s: float, stall_s: float = math.inf
    ) -> "list[asyncio.Future[Any]]":
        """Send commands in one piece; the futures are as those of `call`."""
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
        """Let a future have the reply to what was written last."""
        now = self._loop.time()
        call = _Call(future, now, now + timeout_s, stall_s, self._written)
        self._waiting.append(call)
        # The timer may be an earlier call's: its count of sent bytes does not include this call.
        if self._timer is None or len(self._waiting) == 1:
            self._left, self._left_at = self._sent(call), now
        self._watch(min(call.due, now + stall_s))

    def _watch(self, at: float) -> None:
        """Check the waiting calls at a time, unless a check is due earlier."""
        if self._timer is not None:
            if self._look_at <= at:
                return
            self._timer.cancel()
        self._timer, self._look_at = self._loop.call_at(at, self._look), at

    def _sent(self, call: _Call) -> int:
        """Return how many bytes, up to the end of a call, have left the write buffer."""
        return min(self._written - self._transport.get_write_buffer_size(), call.end)

    def _look(self) -> None:
        self._timer = None
        waiting = [call for call in self._waiting if not call.future.done()]  # not those whose callers were cancelled
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
        self._heard_at = self._loop.time()
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not False:
                future = self._waiting.popleft().future
                if future.done():  # its caller was cancelled
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

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the waiting calls."""
        self.close(RedisConnectionError(f"the connection was cut ({exc or 'closed by the server'})"))

    def close(self, why: Exception | None = None) -> None:
        """End the connection; waiting calls raise the reason."""
        if self._lost is None:
            self._lost = why or RedisConnectionError("closed")
            self._transport.abort()
            if self._timer is not None:
                self._timer.cancel()
            # Or redis-py takes its connection for one that was forgotten.
            self._connection._reader = self._connection._writer = None
        while self._waiting:
            future = self._waiting.popleft().future
            if not future.done():
                future.set_exception(self._lost)
