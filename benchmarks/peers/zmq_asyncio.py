"""pyzmq from asyncio: a PUSH and a PULL socket in each half, over TCP on the loopback.

Awaits: libzmq has queued the message in the sender's memory. Filters nothing, keeps nothing, knows no receipt. No
high-water mark, so that nobody ever waits for a reader. It has no bulk path: `send_multipart` makes one message of many
parts. Fast way: one coroutine sends for all agents, as a send never has to wait, and the receiver takes all there is
without waiting. Messages are encoded by msgspec, as ours are, and not decoded to be counted, as ours are not.
"""

import asyncio
from typing import Any

import msgspec
import ray
import zmq
import zmq.asyncio

from benchmarks.work import STAMP, TURN, Half

HOST = "tcp://127.0.0.1"


@ray.remote(num_cpus=0)
class ZmqHalf(Half):
    """A half with a PUSH and a PULL socket."""

    async def listen(self) -> int:
        """Open both sockets; return the port of ours."""
        self.context = zmq.asyncio.Context()
        self.pull, self.push = self.context.socket(zmq.PULL), self.context.socket(zmq.PUSH)
        for socket in (self.pull, self.push):
            socket.set_hwm(0)
        port = self.pull.bind_to_random_port(HOST)
        self.counting = asyncio.create_task(self._count())
        return int(port)

    async def meet(self, port: int) -> None:
        """Connect to the other half."""
        self.push.connect(f"{HOST}:{port}")

    async def _count(self) -> None:
        while True:
            message = await self.pull.recv()
            if STAMP in message:
                self.arrivals.time(msgspec.json.decode(message)[2])
            count = 1
            while count < TURN:
                try:
                    await self.pull.recv(zmq.NOBLOCK)
                except zmq.Again:
                    break
                count += 1
            self.arrivals.add(count)
            if count == TURN:
                await asyncio.sleep(0)

    async def send(self, to_id: int, content: dict[str, Any], from_id: int) -> bool:
        """Push one message."""
        await self.push.send(msgspec.json.encode((from_id, to_id, content)))
        return True

    async def awaited(self, seconds: float) -> int:
        """Push from one agent after the other."""
        return await self.one_by_one(seconds)


class ZmqAsyncio:
    """Start two halves that know each other."""

    half = ZmqHalf

    def __init__(self, agents: int, server: None) -> None:  # noqa: ARG002 - it needs none
        west, east = range(agents // 2), range(agents // 2, agents)
        self.halves: list[Any] = [self.half.remote(west, east), self.half.remote(east, west)]
        ports = ray.get([half.listen.remote() for half in self.halves])
        ray.get([half.meet.remote(port) for half, port in zip(self.halves, reversed(ports), strict=True)])

    def close(self) -> None:
        """Stop both."""
        for half in self.halves:
            ray.kill(half)
