"""Connecting by redis-py, which drops some cancellations."""

import asyncio

import pytest

from ray_messaging.transports.redis.connection.opening.takeover import connect


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
