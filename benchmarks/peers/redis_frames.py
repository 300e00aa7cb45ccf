"""Frames the size of ours through Redis by redis-py, and nothing else: the limit of what our way of storing allows.

Each frame is one XADD of 4,000 messages, ready-made bytes: nothing is encoded, filtered, checked for duplicates, kept
track of or decoded. Each half writes by two connections, two frames pipelined on each; XREAD takes what is there, its
messages are counted by frame, and read frames are trimmed, as ours are. hiredis reads the answers. The server and its
settings are ours.
"""

import asyncio
import json
import time
from typing import Any

import ray
import redis.asyncio as aioredis

from benchmarks.work import Half, payload

FRAME, PIPELINED = 4000, 2
ID_BYTES = 8  # of sender and receiver, as ours: two int32 columns
BLOCK_MS, COUNT = 1000, 32


@ray.remote(num_cpus=0)
class FrameHalf(Half):
    """Write to the other half's stream, and read its own."""

    async def listen(self, server: dict[str, Any], mine: str, theirs: str) -> None:
        """Connect, and read from now on."""
        where = {"host": server["host"], "port": server["port"], "password": server["password"]}
        self.writer, self.second, self.reader = (aioredis.Redis(**where) for _ in range(3))
        self.mine, self.theirs = mine, theirs
        lines = b"\n".join(json.dumps(payload(n), separators=(",", ":")).encode() for n in range(FRAME))
        self.frame = bytes(ID_BYTES * FRAME) + lines
        self.counting = asyncio.create_task(self._count())

    async def _count(self) -> None:
        last = b"0-0"
        while True:
            answer = await self.reader.xread({self.mine: last}, count=COUNT, block=BLOCK_MS)
            if not answer:
                continue
            entries = answer[self.mine.encode()][0] if isinstance(answer, dict) else answer[0][1]
            for _, fields in entries:
                if b"lone" in fields:
                    self.arrivals.time(json.loads(fields[b"lone"]))
                self.arrivals.add(int(fields[b"n"]))
            last = entries[-1][0]
            await self.reader.xtrim(self.mine, minid=last, approximate=False)

    async def send(self, from_id: int, to_id: int, content: dict[str, Any]) -> bool:  # noqa: ARG002 - it has no addresses
        """Write one message."""
        await self.writer.xadd(self.theirs, {"n": 1, "lone": json.dumps(content)})
        return True

    async def bulk(self, seconds: float) -> int:
        """Write pipelined frames."""
        end = time.perf_counter() + seconds

        async def write(client: Any) -> int:
            sent = 0
            while time.perf_counter() < end:
                pipeline = client.pipeline(transaction=False)
                for _ in range(PIPELINED):
                    pipeline.xadd(self.theirs, {"n": FRAME, "f": self.frame})
                await pipeline.execute()
                sent += PIPELINED * FRAME
            return sent

        # Two connections: while one awaits its answers, the other one writes.
        return sum(await asyncio.gather(*(write(client) for client in (self.writer, self.second))))


class Frames:
    """Start two halves on a server."""

    def __init__(self, agents: int, server: dict[str, Any]) -> None:
        west, east = range(agents // 2), range(agents // 2, agents)
        self.halves: list[Any] = [FrameHalf.remote(west, east), FrameHalf.remote(east, west)]
        ray.get(
            [
                self.halves[0].listen.remote(server, "{frames}west", "{frames}east"),
                self.halves[1].listen.remote(server, "{frames}east", "{frames}west"),
            ]
        )

    def close(self) -> None:
        """Stop both."""
        for half in self.halves:
            ray.kill(half)
