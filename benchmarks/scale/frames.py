"""One sender, whose calls reach more and more mailboxes: the work for a message as frames get fewer rows."""

import asyncio
import time

import numpy as np
import ray

from benchmarks.axes.cost.processes import client, pid_of
from benchmarks.axes.cost.processor import seconds_of
from benchmarks.reports.lines import Line
from benchmarks.work import payload
from ray_messaging import Messager, MessagingConfig, RedisConfig
from ray_messaging.embedded.redis_server import EmbeddedServer
from ray_messaging.transports.backend import RedisBackend

HOST, EXPERIMENT = "127.0.0.1", "frames"
MAILBOXES = (1, 16, 128, 512)
ROWS, AGENTS_EACH = 16_384, 32
SUBTOPICS = ["agent-chat"]


@ray.remote(num_cpus=0)
class Readers:
    """Mailboxes in one process, each with agents of its own, and the number of all that they have read."""

    def __init__(self, config: RedisConfig) -> None:
        self._config = config
        self._messagers: list[Messager] = []
        self._counting: list[asyncio.Task[None]] = []
        self._read, self._more = 0, asyncio.Condition()

    async def grow(self, count: int) -> None:
        """Have so many mailboxes."""
        for number in range(len(self._messagers), count):
            messager = Messager(self._config, EXPERIMENT, name=f"mailbox-{number}")
            await messager.init()
            await messager.host_agents(range(number * AGENTS_EACH, (number + 1) * AGENTS_EACH), SUBTOPICS)
            self._messagers.append(messager)
            self._counting.append(asyncio.create_task(self._count(messager)))

    async def _count(self, messager: Messager) -> None:
        while True:
            messages = await messager.fetch_messages(timeout=None)
            async with self._more:
                self._read += len(messages)
                self._more.notify_all()

    async def drained(self, total: int) -> float:
        """Wait until so many were read; return when that was (unix s)."""
        async with self._more:
            await self._more.wait_for(lambda: self._read >= total)
        return time.time()


@ray.remote(num_cpus=0)
class Sender:
    """A sender of columns to agents at random."""

    def __init__(self, config: RedisConfig) -> None:
        self._messager = Messager(config, EXPERIMENT)
        self._payloads = [payload(number) for number in range(ROWS)]

    async def bulk(self, mailboxes: int, seconds: float) -> int:
        """Send for some seconds; return how many were delivered."""
        await self._messager.init()
        rng, sent, over = np.random.default_rng(7), 0, time.perf_counter() + seconds
        receivers = rng.integers(0, mailboxes * AGENTS_EACH, ROWS)
        while time.perf_counter() < over:
            receipts = await self._messager.send_columns(receivers, receivers, self._payloads)
            sent += int(receipts.sent.sum())
        return sent


def measure(seconds: float, rounds: int) -> list[Line]:
    """Let the mailboxes become more, and measure at each number of them, after a turn to warm up."""
    lines: list[Line] = []
    with EmbeddedServer(HOST) as server:
        ends = Ends(server.start(), server.pid or 0)
        for mailboxes in MAILBOXES:
            ray.get(ends.readers.grow.remote(mailboxes))
            ends.turn(mailboxes, seconds / 2)
            turns = [ends.turn(mailboxes, seconds) | ends.look() for _ in range(rounds)]
            part = f"{mailboxes} mailboxes, {ROWS // mailboxes:,} rows a frame"
            lines += [Line(part, name, unit, [turn[name, unit] for turn in turns]) for name, unit in turns[0]]
    return lines


class Ends:
    """The sender, the readers, and their server."""

    def __init__(self, config: RedisConfig, server_pid: int) -> None:
        self._config = config
        self.readers, self._sender = Readers.remote(config), Sender.remote(config)
        self._pids = {"sender": pid_of(self._sender), "readers": pid_of(self.readers), "server": server_pid}
        self._sent = 0

    def turn(self, mailboxes: int, seconds: float) -> dict[tuple[str, str], float]:
        """Send; return the rate, and what each process did for a message, by name and unit."""
        began, scripts = time.time(), self._in_scripts()
        before = {name: seconds_of(pid) for name, pid in self._pids.items()}
        sent: int = ray.get(self._sender.bulk.remote(mailboxes, seconds))
        self._sent += sent
        ended = ray.get(self.readers.drained.remote(self._sent))
        found = {("in bulk", "million/s"): sent / (ended - began) / 1e6}
        for name, pid in self._pids.items():
            found[f"{name}: processor", "us a message"] = 1e6 * (seconds_of(pid) - before[name]) / sent
        frames = sent * mailboxes / ROWS
        found["server: in its script", "us a frame"] = (self._in_scripts() - scripts) / frames
        return found

    def look(self) -> dict[tuple[str, str], float]:
        """Return how long the server takes to tell a process all of the directory, and that nothing has changed."""

        async def loads() -> dict[tuple[str, str], float]:
            transport = RedisBackend(self._config).transport(EXPERIMENT, MessagingConfig())
            await transport.connect()
            found, since = {}, -1
            for name in ("the whole directory", "no change of it"):
                began = self._in_scripts()
                since = (await transport.load_directory(since)).version
                found[f"server: {name}", "us"] = self._in_scripts() - began
            await transport.close()
            return found

        return asyncio.run(loads())

    def _in_scripts(self) -> float:
        """Return the microseconds that the server has spent in scripts."""
        with client(self._config) as asked:
            told = asked.info("commandstats")
        return float(sum((told.get(f"cmdstat_{name}") or {"usec": 0})["usec"] for name in ("eval", "evalsha")))
