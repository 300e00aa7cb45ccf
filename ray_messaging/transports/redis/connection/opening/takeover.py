"""Take over the socket of a connection that redis-py has made: it connects, authenticates and speaks TLS."""

import asyncio
from contextlib import suppress
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError

from ray_messaging.common.limits import CONNECT_TIMEOUT_S


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
