"""A counter is right, and each total comes once and in order to three servers, while they and its process die."""

import asyncio
import json
import os
import random
import signal
from itertools import accumulate

import pytest
from support.servers import RedisProcess

from faults import bank
from ray_messaging import Messager
from ray_messaging.transports.sharded.config import ShardsConfig

pytestmark = pytest.mark.faults

SINKS = (2, 3, 4)  # on shard 1, as the bank is, on shard 2 and shard 0
BACKLOG = 200  # numbers that wait for a bank when it starts
UNKNOWN = 1  # exit code of a process that ends with OutcomeUnknown


class Town:
    """Feed a bank with numbers, and read its totals at three servers."""

    def __init__(self, servers, exp_id, seed):
        self.servers = servers
        self.config = ShardsConfig(servers=tuple(server.config for server in servers))
        self.exp_id = exp_id
        self.chance = random.Random(seed)
        self.numbers = []
        self.ends = []

    async def __aenter__(self):
        self.source = Messager(self.config, self.exp_id, name="source")
        await self.source.init()
        self.sinks = []
        for agent in SINKS:
            sink = Messager(self.config, self.exp_id, name=f"sink-{agent}")
            await sink.init()
            await sink.host_agents([agent], ["agent-chat"])
            self.sinks.append(sink)
        # The bank's mailbox must be there before the first number is sent.
        assert await self.run(bank.Crash("send", "before", 1), last=1) == -signal.SIGKILL
        await self.source.engine.frame_sender.reload()
        homes = [self.source.engine.transport.home(name) for name in ("bank", *(sink.name for sink in self.sinks))]
        assert homes == [1, 1, 2, 0]
        return self

    async def __aexit__(self, *error):
        for messager in (self.source, *self.sinks):
            await messager.close()

    async def feed(self):
        """Send numbers until so many wait."""
        waiting = (await self.source.engine.transport.waiting())["bank"]
        fresh = [self.chance.randint(-1000, 1000) for _ in range(BACKLOG - waiting)]
        if fresh:
            self.numbers += fresh
            receipts = await self.source.send_columns(9, [bank.AGENT] * len(fresh), [{"n": n} for n in fresh])
            assert receipts.counts()["delivered"] == len(fresh)

    def start(self, crash=None, last=10**9):
        return bank.start(self.config, self.exp_id, last, crash, self.chance.random(), SINKS)

    async def run(self, crash=None, last=10**9, after_s=None):
        """Run a bank to its end, or to a kill -9 from outside; return its exit code."""
        return await bank.ended(self.start(crash, last), after_s)

    async def kill_one(self, at):
        """End one bank: by its own hand at a call of a shard, from outside at any time, or with a server."""
        await self.feed()
        if at % 5 == 4:
            victim = self.servers[at // 5 % 3]
            process = self.start()
            await asyncio.to_thread(process.join, self.chance.uniform(0.0, 0.4))
            victim.kill()
            if at % 2:
                process.kill()
            await asyncio.to_thread(victim.start)
            await asyncio.to_thread(process.join, self.chance.uniform(0.0, 0.4))
            process.kill()
            await asyncio.to_thread(process.join, bank.END_S)
            self.ends.append("server")
        elif at % 5 == 2:
            self.ends.append(await self.run(after_s=self.chance.uniform(0.1, 0.5)))
        else:
            # A point that is not reached again needs a kill from outside.
            self.ends.append(await self.run(bank.Crash.on_a_shard(self.chance, 3), after_s=1.0))

    async def settle(self):
        """Let a bank come to its end, and compare."""
        assert await self.run(last=len(self.numbers)) == 0
        expected = [(count, total) for count, total in enumerate(accumulate(self.numbers), 1)]
        for sink in self.sinks:
            found = []
            async with asyncio.timeout(bank.END_S):
                while len(found) < len(expected):
                    found += await sink.fetch_messages(timeout=bank.END_S)
            await sink.ack()
            found += await sink.fetch_messages(timeout=0.2)
            assert [(message.payload["count"], message.payload["sum"]) for message in found] == expected
        async with Messager(self.config, self.exp_id, name="bank") as successor:
            await successor.host_agents([bank.AGENT], ["agent-chat"])
            async with successor.transaction() as tx:
                assert len(await tx.fetch_messages(timeout=0.1)) == 0
                assert json.loads(tx.state) == {"count": len(self.numbers), "sum": sum(self.numbers)}


@pytest.fixture
def servers(tmp_path):
    started = []
    try:
        for shard in range(3):
            (tmp_path / str(shard)).mkdir()
            started.append(RedisProcess(tmp_path / str(shard), binary="valkey").start())
        yield started
    finally:
        for process in started:
            process.kill()


@pytest.mark.parametrize("point", ["ask", "send", "relay", "empty_outbox"])
async def test_kills_at_a_point_of_commit_and_relay(servers, exp_id, point):
    async with Town(servers, exp_id, 7) as town:
        shards = {"ask": (0, 2), "send": (1,), "relay": (0, 2), "empty_outbox": (1,)}[point]
        for shard in shards:
            for phase in bank.PHASES:
                await town.feed()
                crash = bank.Crash(point, phase, 2, shard=shard)
                assert await town.run(crash, after_s=bank.END_S) == -signal.SIGKILL
        await town.settle()


@pytest.mark.parametrize("phase", bank.PHASES)
@pytest.mark.parametrize("victim", [0, 1, 2])
async def test_a_server_and_the_process_are_killed_between_commit_and_relay(servers, exp_id, victim, phase):
    """The successor begins while the server is not back yet."""
    async with Town(servers, exp_id, 8) as town:
        await town.feed()
        town.ends.append(await town.run(bank.Crash("relay", phase, 2, shard=2), after_s=bank.END_S))
        servers[victim].kill()
        successor = town.start()
        await asyncio.to_thread(servers[victim].start)
        await asyncio.to_thread(successor.join, 0.5)
        successor.kill()
        await asyncio.to_thread(successor.join, bank.END_S)
        await town.settle()


@pytest.mark.long
async def test_sixty_kills_at_random_points(servers, exp_id):
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - shown where it fails
    async with Town(servers, exp_id, seed) as town:
        for at in range(60):
            await town.kill_one(at)
        await town.settle()
        told = f"{len(town.numbers)} numbers, {town.ends.count('server')} kills of a server"
        print(told)  # noqa: T201 - see above


@pytest.mark.parametrize("point", ["send", "relay"])
async def test_a_stopped_process_beside_its_successor_does_nothing_more(servers, exp_id, point):
    async with Town(servers, exp_id, 1) as town:
        await town.feed()
        shard = {"send": 1, "relay": 2}[point]
        old = town.start(bank.Crash(point, "before", 4, signal.SIGSTOP, shard=shard))
        async with asyncio.timeout(bank.END_S):
            while bank.state_of(old) != "T":  # noqa: ASYNC110 - the kernel tells nobody but its parent
                await asyncio.sleep(0.01)
        await town.run(bank.Crash("relay", "after", 5, shard=2))
        await town.feed()
        os.kill(old.pid, signal.SIGCONT)
        await asyncio.to_thread(old.join, bank.END_S)
        # Its transaction was committed, and its successor has relayed it: it cannot tell.
        assert old.exitcode == {"send": bank.FENCED, "relay": UNKNOWN}[point]
        await town.settle()
