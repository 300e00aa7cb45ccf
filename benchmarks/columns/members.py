"""Two actors that pass messages, or only their bytes."""

import asyncio
import time
from typing import Any

import numpy as np
import ray
import redis

from ray_messaging import Messaging, RedisConfig, columns
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn
from ray_messaging.model.typed.typed_table import TypedColumns
from ray_messaging.wire.frames import encode

AGENTS = 100_000  # of each actor
CHUNK = 500_000  # messages of one call of send_columns
IN_FLIGHT = 2  # such calls at a time
_STREAM, _PIPELINED = "bench:columns", 8


def table_of(rows: int) -> TypedColumns:
    """Return two numeric columns."""
    return columns(price=np.linspace(0.0, 1.0, rows), volume=np.arange(rows))


def ids_of(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the senders and the recipients: each hears from another one."""
    places = np.arange(rows) % AGENTS
    return places, AGENTS + (places * 7 + 1) % AGENTS


@ray.remote(num_cpus=0)
class Member:
    """An actor with a messager: it sends to the other one, or fetches what that one sends."""

    async def open(self, messaging: Messaging, name: str, agents: range) -> None:
        """Host the agents, and make the payloads ready."""
        self._messager = await messaging.open_messager(name, agents)
        self._from_ids, self._to_ids = ids_of(CHUNK)
        self._payloads: dict[str, Any] = {"columns": table_of(CHUNK)}
        self._payloads["JSON"] = self._payloads["columns"].payloads()

    async def send(self, kind: str, calls: int) -> float:
        """Send in so many calls; return when the first began."""
        began, free = time.perf_counter(), asyncio.Semaphore(IN_FLIGHT)

        async def one() -> None:
            async with free:
                receipts = await self._messager.send_columns(self._from_ids, self._to_ids, self._payloads[kind])
                if not receipts.sent.all():
                    raise RuntimeError(f"not all were delivered: {receipts.counts()}")

        async with asyncio.TaskGroup() as tasks:
            for _ in range(calls):
                tasks.create_task(one())
        return began

    async def receive(self, kind: str, calls: int) -> float:
        """Fetch all messages, and add up their volumes where they are columns; return when the last was there."""
        left, total = calls * CHUNK, 0
        while left:
            messages = await self._messager.fetch_messages(timeout=30)
            left -= len(messages)
            if kind == "columns":
                total += int(messages.column("volume").sum())
        if kind == "columns" and total != calls * (CHUNK * (CHUNK - 1) // 2):
            raise RuntimeError("the volumes are not those that were sent")
        return time.perf_counter()


@ray.remote(num_cpus=0)
class Bare:
    """An actor that writes frames into a stream, or reads them, by redis-py."""

    def open(self, config: RedisConfig, rows: int) -> int:
        """Connect, and encode a frame of so many messages; return its bytes."""
        path = f"{config.socket_dir}/{config.port}.sock"
        self._client = redis.Redis(unix_socket_path=path, password=config.password)
        ids, table = ids_of(rows), table_of(rows)
        batch = Batch(
            sender="bare",
            epoch=1,
            first=0,
            from_ids=IdColumn(ids[0]),
            to_ids=IdColumn(ids[1]),
            topics=("agent-chat",),
            rows=rows,
            sent_at=time.time(),
            lines=table,
        )
        self._frame = encode(batch)
        return len(self._frame)

    def send(self, frames: int) -> float:
        """Write so many frames; return when the first began."""
        began = time.perf_counter()
        for _ in range(frames):
            self._client.xadd(_STREAM, {"f": self._frame})
        return began

    def receive(self, frames: int) -> float:
        """Read so many frames, and delete them; return when the last was there."""
        last = b"0"
        while frames:
            for _, entries in self._client.xread({_STREAM: last}, count=_PIPELINED, block=30_000):
                frames -= len(entries)
                last = entries[-1][0]
                self._client.xtrim(_STREAM, minid=last)
        ended = time.perf_counter()
        self._client.unlink(_STREAM)
        return ended
