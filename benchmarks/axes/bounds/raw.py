"""The bare server, by redis-py: the baseline of everything above it."""

import asyncio
import time
from typing import Any

import ray
import redis.asyncio as aioredis

from benchmarks.work import PING_GAP_S
from ray_messaging import RedisConfig

WAITING_BYTES = 64 * 2**20
READ_FRAMES = 32
PINGS_S = 10.0
WINDOW = 2  # so many frames of each half under way: more gain nothing


@ray.remote(num_cpus=0)
class RawHalf:
    """An actor that only writes frames by XADD, reads its own stream by XREAD and trims the read entries."""

    async def __init__(self, config: RedisConfig, mine: str, theirs: str) -> None:  # type: ignore[misc]
        where = {"host": config.server, "port": config.port, "password": config.password}
        self.client, self.reader = aioredis.Redis(**where), aioredis.Redis(**where)
        self.mine, self.theirs = mine, theirs
        self.frames, self.latencies, self.rested = 0, list[float](), False
        self.arrived = asyncio.Event()
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        last = b"0"
        while True:
            reply: Any = await self.reader.xread({self.mine: last}, count=READ_FRAMES, block=4000)
            now = time.perf_counter()
            for _, entries in reply or ():
                for last, fields in entries:  # noqa: B007 - the last one counts
                    if b"at" in fields:
                        self.latencies.append(1000 * (now - float(fields[b"at"])))
                self.frames += len(entries)
                self.arrived.set()
                await self.client.xtrim(self.mine, minid=last, approximate=False)

    async def bulk(self, seconds: float, nbytes: int, window: int = 1) -> int:
        """Write frames of so many bytes, at most `window` of them under way; return how many were written."""
        frame, end, self.rested = b"x" * nbytes, time.perf_counter() + seconds, False
        most_waiting = max(2 * window, WAITING_BYTES // nbytes)
        every = min(32, most_waiting)  # asking costs a round trip

        async def write() -> int:
            written = 0
            while time.perf_counter() < end and not self.rested:
                await self.client.xadd(self.theirs, {"f": frame})
                written += 1
                while written % every == 0 and await self.client.xlen(self.theirs) > most_waiting:  # noqa: ASYNC110 - theirs
                    await asyncio.sleep(PING_GAP_S)
            return written

        return sum(await asyncio.gather(*(write() for _ in range(window))))

    async def rest(self) -> None:
        """Write no more frames."""
        self.rested = True

    async def ping(self, count: int, nbytes: int = 100) -> int:
        """Write lone entries, one every 2 ms, as many as there is time for; return how many."""
        end = time.perf_counter() + PINGS_S
        for number in range(count):
            if time.perf_counter() > end:
                return number
            await self.client.xadd(self.theirs, {"at": repr(time.perf_counter()), "f": b"x" * nbytes})
            await asyncio.sleep(PING_GAP_S)
        return count

    async def drained(self, frames: int) -> float:
        """Wait until so many frames have arrived in all; return the time (unix s)."""
        while self.frames < frames:
            self.arrived.clear()
            await self.arrived.wait()
        return time.time()

    async def take_latencies(self) -> list[float]:
        """Return how long lone entries took since the last call, in ms."""
        found, self.latencies = self.latencies, []
        return found


class RawPair:
    """Two such halves on one server."""

    def __init__(self, config: RedisConfig, name: str = "raw") -> None:
        west, east = f"{name}-west", f"{name}-east"
        self.halves: list[Any] = [RawHalf.remote(config, west, east), RawHalf.remote(config, east, west)]
        self._expected = [0, 0]

    def close(self) -> None:
        """End both."""
        for half in self.halves:
            ray.kill(half)

    def rate(self, seconds: float, nbytes: int, window: int = 1) -> float:
        """Have both write; return frames per second, until the last has arrived."""
        begun = time.time()
        sent = ray.get([half.bulk.remote(seconds, nbytes, window) for half in self.halves])
        self._expected = [before + count for before, count in zip(self._expected, reversed(sent), strict=True)]
        pairs = zip(self.halves, self._expected, strict=True)
        return sum(sent) / (max(ray.get([half.drained.remote(count) for half, count in pairs])) - begun)

    def lone(self, pings: int) -> list[float]:
        """Write lone entries one way; return how long each took to the reader, in ms."""
        west, east = self.halves
        ray.get(east.take_latencies.remote())
        self._expected[1] += ray.get(west.ping.remote(pings))
        ray.get(east.drained.remote(self._expected[1]))
        found: list[float] = ray.get(east.take_latencies.remote())
        return found
