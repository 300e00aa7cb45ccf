"""A process of exactly-once steps: it adds up numbers and sends each running total on; and ways to end it."""

import asyncio
import json
import multiprocessing
import os
import random
import signal
from functools import partial
from typing import NamedTuple

from faults.injector import at_call
from ray_messaging import Messager
from ray_messaging.config import MessagingConfig
from ray_messaging.errors import Fenced

AGENT, SINK = 1, 2
END_S = 60.0  # for a process to end, or a message to come
FENCED = 3  # the process's exit code
POINTS = ("connect", "load_directory", "listen", "take_sender_epoch", "read", "send", "send", "send", "commit")
PHASES = ("before", "during", "after")

# One process imports the package once, and each bank is a fork of it. It finds only what is installed.
forks = multiprocessing.get_context("forkserver")
forks.set_forkserver_preload(["ray_messaging", "ray_messaging.messager"])


class Crash(NamedTuple):
    """Get a signal before, during or after the n-th call of one of the transport's methods."""

    point: str
    phase: str
    nth: int
    signal: int = signal.SIGKILL

    @classmethod
    def by(cls, chance: random.Random) -> "Crash":
        point = chance.choice(POINTS)
        often = {"send": 30, "read": 4}.get(point, 1)
        return cls(point, chance.choice(PHASES), chance.randint(1, often))


def start(config, exp_id, last, crash=None, seed=0):
    """Start a bank that ends when it has added up `last` numbers; the sink gets each total."""
    process = forks.Process(target=_main, args=(config, exp_id, last, crash, seed), daemon=True)
    process.start()
    return process


async def ended(process, after_s=None):
    """Wait for the end of a bank, or (after_s) end it by a kill -9 from outside; return its exit code."""
    if after_s is not None:
        await asyncio.to_thread(process.join, after_s)
        process.kill()
    await asyncio.to_thread(process.join, END_S)
    if process.exitcode is None:
        process.kill()
        raise AssertionError(f"{process.name} did not end")
    return process.exitcode


def _main(config, exp_id, last, crash, seed):
    asyncio.run(_run(config, exp_id, last, crash, random.Random(seed)))


async def _run(config, exp_id, last, crash, chance):
    bank = Messager(config, exp_id, name="bank", settings=MessagingConfig(frame_rows=7))
    if crash is not None:
        at_call(bank.engine.transport, crash.point, crash.phase, partial(os.kill, os.getpid(), crash.signal), crash.nth)
    try:
        async with bank:
            await bank.host_agents([AGENT], ["agent-chat"])
            while await step(bank, chance) < last:
                pass
    except Fenced:
        os._exit(FENCED)


async def step(bank, chance):
    """Add up some numbers in one transaction; return how many were added up by now."""
    async with bank.transaction() as tx:
        state = json.loads(tx.state or b'{"count": 0, "sum": 0}')
        for message in await tx.fetch_messages(limit=chance.randint(1, 9), timeout=0.05):
            state["count"] += 1
            state["sum"] += message.payload["n"]
            tx.send_message(bank.get_agent_chat_channel(SINK), dict(state), AGENT, SINK)
        tx.state = json.dumps(state).encode()
    return state["count"]
