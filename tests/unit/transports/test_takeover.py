"""Connecting by redis-py, which drops some cancellations, and does not know how uvloop says that a connection ended."""

import asyncio
import socket
import struct

import pytest
import uvloop
from redis.asyncio.connection import Connection
from redis.exceptions import ConnectionError as RedisConnectionError

from ray_messaging.transports.connection.protocol import connect


class Forgetful:
    """A connection that is made although its task was cancelled meanwhile."""

    def __init__(self):
        self.connecting = asyncio.Event()
        self.is_connected = False

    async def connect(self):
        self.connecting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.is_connected = True

    async def disconnect(self, *, nowait):
        self.is_connected = False


async def test_a_cancellation_during_the_connect_is_kept():
    connection = Forgetful()
    task = asyncio.create_task(connect(connection))
    await connection.connecting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not connection.is_connected


class Late(Connection):
    """A connection that introduces itself only once the server has ended it."""

    async def on_connect(self):
        closed = self._writer.transport.get_protocol()._closed  # of asyncio's streams
        await asyncio.wait([closed])
        await super().on_connect()


def cut(_, writer):
    """End a connection as the end of a machine does: by a reset."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_server_that_ends_while_it_is_connected_to_is_a_lost_connection(loop):
    async def main():
        server = await asyncio.start_server(cut, "127.0.0.1", 0)
        async with server:
            with pytest.raises(RedisConnectionError):
                await connect(Late(host="127.0.0.1", port=server.sockets[0].getsockname()[1], password="secret"))

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())
