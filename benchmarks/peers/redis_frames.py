"""Frames the size of ours through Redis by redis-py, and nothing else.

Each frame is one XADD of 4,000 messages: two int32 columns of ids, and the payloads as lines of JSON. "redis-py frames"
encodes each payload (msgspec), as everybody has to; of "limit: redis-py frames" the bytes are ready-made. Nothing is
filtered, checked for duplicates, kept track of or decoded. Each half writes by two connections, two frames pipelined
on each; XREAD takes all that is there, its messages are counted by frame, and read frames are trimmed, as ours are.
hiredis reads the answers. The server and its settings are ours.
"""

import asyncio
import json
import time
from array import array
from typing import Any

import msgspec
import ray
import redis.asyncio as aioredis

from benchmarks.work import Half, payload

FRAME, PIPELINED = 4000, 2
BLOCK_MS, COUNT = 1000, 32


@ray.remote(num_cpus=0)
class FrameHalf(Half):
    """Write to the other half's stream, and read its own."""

    async def listen(self, server: dict[str, Any], mine: str, theirs: str, *, ready_made: bool) -> None:
        """Connect, and read from now on."""
        where = {"host": server["host"], "port": server["port"], "password": server["password"]}
        self.writer, self.second, self.reader = (aioredis.Redis(**where) for _ in range(3))
        self.mine, self.theirs = mine, theirs
        self.encode = msgspec.json.Encoder().encode
        self.payloads, self.ids = [payload(n) for n in range(FRAME)], array("i", range(FRAME))
        self.ready_made = self._frame() if ready_made else None
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

    async def send(self, to_id: int, content: dict[str, Any], from_id: int) -> bool:  # noqa: ARG002 - it has no addresses
        """Write one message."""
        await self.writer.xadd(self.theirs, {"n": 1, "lone": json.dumps(content)})
        return True

    def _frame(self) -> bytes:
        ids = self.ids.tobytes()
        return b"".join((ids, ids, b"\n".join(map(self.encode, self.payloads))))

    async def bulk(self, seconds: float) -> int:
        """Write pipelined frames."""
        end = time.perf_counter() + seconds

        async def write(client: Any) -> int:
            sent = 0
            while time.perf_counter() < end:
                pipeline = client.pipeline(transaction=False)
                for _ in range(PIPELINED):
                    pipeline.xadd(self.theirs, {"n": FRAME, "f": self.ready_made or self._frame()})
                await pipeline.execute()
                sent += PIPELINED * FRAME
            return sent

        # Two connections: while one awaits its answers, the other one writes.
        return sum(await asyncio.gather(*(write(client) for client in (self.writer, self.second))))


class Frames:
    """Start two halves on a server."""

    ready_made = False

    def __init__(self, agents: int, server: dict[str, Any]) -> None:
        west, east = range(agents // 2), range(agents // 2, agents)
        self.halves: list[Any] = [FrameHalf.remote(west, east), FrameHalf.remote(east, west)]
        streams = ["{frames}west", "{frames}east"]
        listening = zip(self.halves, (streams, reversed(streams)), strict=True)
        ray.get([half.listen.remote(server, *names, ready_made=self.ready_made) for half, names in listening])

    def close(self) -> None:
        """Stop both."""
        for half in self.halves:
            ray.kill(half)


class ReadyMade(Frames):
    """Write the same bytes again and again."""

    ready_made = True
