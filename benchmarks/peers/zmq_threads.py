"""pyzmq from threads: the sockets of `pyzmq asyncio`, each used by a thread of its own, blocking.

Awaits: libzmq has queued the message in the sender's memory. Filters nothing, keeps nothing, knows no receipt, and its
caller is a thread that asyncio code cannot await: so there is no awaited figure.
"""

import asyncio
import threading
import time
from typing import Any

import msgspec
import ray
import zmq

from benchmarks.peers.zmq_asyncio import HOST, ZmqAsyncio
from benchmarks.work import STAMP, Half, payload

COUNTED, SENT = 256, 256  # messages between looks at the clock, and between two words to the event loop


@ray.remote(num_cpus=0)
class ThreadHalf(Half):
    """A half with both sockets in threads beside the actor's event loop."""

    async def listen(self) -> int:
        """Open both sockets; return the port of ours."""
        self.loop, context = asyncio.get_running_loop(), zmq.Context()
        self.pull, self.push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
        for socket in (self.pull, self.push):
            socket.set_hwm(0)
        port = self.pull.bind_to_random_port(HOST)
        threading.Thread(target=self._count, daemon=True).start()
        return int(port)

    async def meet(self, port: int) -> None:
        """Connect to the other half."""
        self.push.connect(f"{HOST}:{port}")

    def _count(self) -> None:
        while True:
            message, count = self.pull.recv(), 1
            if STAMP in message:
                self.arrivals.time(msgspec.json.decode(message)[2])
            try:
                while count < COUNTED:
                    self.pull.recv(zmq.NOBLOCK)
                    count += 1
            except zmq.Again:
                pass  # that is all for now
            self.loop.call_soon_threadsafe(self.arrivals.add, count)

    async def send(self, to_id: int, content: dict[str, Any], from_id: int) -> bool:
        """Push one message."""
        self.push.send(msgspec.json.encode((from_id, to_id, content)))
        return True

    async def bulk(self, seconds: float) -> int:
        """Push one message after the other in a thread."""
        return await asyncio.to_thread(self._push, seconds)

    def _push(self, seconds: float) -> int:
        payloads = [payload(number) for number in range(SENT)]
        sent, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            for content in payloads:
                self.push.send(msgspec.json.encode((0, 1, content)))
            sent += SENT
        return sent


class ZmqThreads(ZmqAsyncio):
    """Start two halves that know each other."""

    half = ThreadHalf
