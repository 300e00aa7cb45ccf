"""A counter is right, and each total is sent once and in order, over deaths of its process and server."""

import asyncio
import json
import os
import random
import signal
from itertools import accumulate

import pytest
from support.cluster import states

from faults import bank
from ray_messaging import Messager

pytestmark = pytest.mark.faults

BACKLOG = 400  # numbers that wait for a bank when it starts


class Town:
    """Feed a bank with numbers, and read its totals."""

    def __init__(self, server, exp_id, seed):
        self.server = server
        self.exp_id = exp_id
        self.chance = random.Random(seed)
        self.numbers = []
        self.ends = []

    async def __aenter__(self):
        self.source = Messager(self.server.config, self.exp_id, name="source")
        self.sink = Messager(self.server.config, self.exp_id, name="sink")
        await self.source.init()
        await self.sink.init()
        await self.sink.host_agents([bank.SINK], ["agent-chat"])
        # The bank's mailbox must be there before the first number is sent.
        assert await self.run(bank.Crash("send", "before", 1, signal.SIGKILL), last=1) == -signal.SIGKILL
        return self

    async def __aexit__(self, *error):
        await self.source.close()
        await self.sink.close()

    async def feed(self):
        """Send numbers until so many wait."""
        waiting = (await self.source.engine.transport.waiting())["bank"]
        fresh = [self.chance.randint(-1000, 1000) for _ in range(BACKLOG - waiting)]
        if fresh:
            self.numbers += fresh
            receipts = await self.source.send_columns(9, [bank.AGENT] * len(fresh), [{"n": n} for n in fresh])
            assert receipts.counts()["delivered"] == len(fresh)

    async def run(self, crash=None, last=10**9, after_s=None):
        """Run a bank to its end, or to a kill -9 from outside; return its exit code."""
        return await bank.ended(bank.start(self.server.config, self.exp_id, last, crash, self.chance.random()), after_s)

    async def kill_one(self, at):
        """End one bank: by its own hand at a named point, from outside at any time, or with the server."""
        await self.feed()
        if at % 10 == 9:
            process = bank.start(self.server.config, self.exp_id, 10**9, None, at)
            await asyncio.to_thread(process.join, self.chance.uniform(0.0, 0.3))
            self.server.kill()
            if at % 20 == 9:
                process.kill()
            self.server.start()
            await asyncio.to_thread(process.join, self.chance.uniform(0.0, 0.3))
            process.kill()
            await asyncio.to_thread(process.join, bank.END_S)
            self.ends.append("server")
        elif at % 2:
            self.ends.append(await self.run(after_s=self.chance.uniform(0.0, 0.25)))
        else:
            crash = bank.Crash.by(self.chance)
            # A point that is not reached again (a mailbox is listened on once) needs a kill from outside.
            self.ends.append(await self.run(crash, after_s=1.0))

    async def settle(self):
        """Let a bank come to its end, and compare."""
        assert await self.run(last=len(self.numbers)) == 0
        expected = [(count, total) for count, total in enumerate(accumulate(self.numbers), 1)]
        found = []
        async with asyncio.timeout(bank.END_S):
            while len(found) < len(expected):
                found += await self.sink.fetch_messages(timeout=bank.END_S)
        await self.sink.ack()
        found += await self.sink.fetch_messages(timeout=0.2)
        assert [(message.payload["count"], message.payload["sum"]) for message in found] == expected
        state = json.loads(await self.state())
        assert state == {"count": len(self.numbers), "sum": sum(self.numbers)}

    async def state(self):
        async with Messager(self.server.config, self.exp_id, name="bank") as successor:
            await successor.host_agents([bank.AGENT], ["agent-chat"])
            async with successor.transaction() as tx:
                assert len(await tx.fetch_messages(timeout=0.1)) == 0
                return tx.state


@pytest.mark.parametrize("own_server", ["valkey"], indirect=True)
async def test_a_few_kills(own_server, exp_id):
    async with Town(own_server, exp_id, 5) as town:
        for at in (6, 7, 8, 9, 10, 11):
            await town.kill_one(at)
        await town.settle()


@pytest.mark.long
async def test_a_hundred_kills_at_random_points(own_server, exp_id):
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - shown where it fails
    async with Town(own_server, exp_id, seed) as town:
        for at in range(100):
            await town.kill_one(at)
        await town.settle()
        by_kill = sum(end in {-signal.SIGKILL, "server"} for end in town.ends)
        assert by_kill == 100, town.ends
        told = f"{len(town.numbers)} numbers, {town.ends.count('server')} kills with the server"
        print(told)  # noqa: T201 - see above


@pytest.mark.parametrize("own_server", ["valkey"], indirect=True)
@pytest.mark.parametrize("phase", ["before", pytest.param("after", marks=pytest.mark.long)])
async def test_a_stopped_process_beside_its_successor_does_nothing_more(own_server, exp_id, phase):
    async with Town(own_server, exp_id, 1) as town:
        await town.feed()
        old = bank.start(own_server.config, exp_id, 10**9, bank.Crash("send", phase, 7, signal.SIGSTOP))
        async with asyncio.timeout(bank.END_S):
            while states(old.pid) != {"T"}:  # noqa: ASYNC110 - the kernel tells nobody but its parent
                await asyncio.sleep(0.01)
        await town.run(bank.Crash("send", "after", 5))
        await town.feed()
        os.kill(old.pid, signal.SIGCONT)
        await asyncio.to_thread(old.join, bank.END_S)
        assert old.exitcode == bank.FENCED
        await town.settle()
