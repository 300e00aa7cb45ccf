"""Mailbox contents after its receiver is killed with waiting and fetched messages."""

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import ray

from benchmarks.axes.cost.processes import pid_of
from benchmarks.axes.society.society import BLACK_LIST, cluster
from benchmarks.figures import OURS, Figure, Plan
from benchmarks.work import payload
from ray_messaging import Messaging

MESSAGES, IN_HAND, COMMITTED, PART = 200_000, 10_000, 5_000, 20_000
AGENTS = 1_000
QUIET_S = 1.0  # nothing more comes once so much time has passed without a message


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1, max_concurrency=100)
class Receiver:
    """Host some agents; Ray starts it again when it is killed, and it goes on with its mailbox."""

    async def __init__(self, messaging: Messaging, agents: range) -> None:  # type: ignore[misc]
        self.messager = await messaging.open_messager("receiver", agents)

    async def take(self, limit: int) -> list[int]:
        """Fetch `limit` messages, which commits the previous ones; return their numbers."""
        found: list[int] = []
        while len(found) < limit:
            messages = await self.messager.fetch_messages(limit=limit - len(found), timeout=None)
            found += [message.payload["n"] for message in messages]
        return found

    async def rest(self) -> list[int]:
        """Fetch all there is; return the numbers, and commit."""
        found: list[int] = []
        while messages := await self.messager.fetch_messages(timeout=QUIET_S):
            found += [message.payload["n"] for message in messages]
        await self.messager.ack()
        return found

    async def first(self) -> int:
        """Wait for a message, commit nothing; return its number."""
        return int((await self.messager.fetch_messages(limit=1, timeout=None))[0].payload["n"])


def measure(plan: Plan) -> Iterator[Figure]:
    """Kill a receiver, as often as is asked for."""
    with cluster():
        found = [_crash(f"crash-{number}") for number in range(plan.repeats)]
    note = f"{COMMITTED:,} committed before, {IN_HAND:,} fetched and not committed, the rest in its mailbox"
    for case in ("acknowledged", "lost", "twice"):
        yield Figure("crash", case, OURS, "messages", [float(each[case]) for each in found], note=note)
    note = "from kill -9 to the first fetched message of the successor; Ray starts the process"
    yield Figure("crash", "first message after the crash", OURS, "s", [each["first"] for each in found], note=note)


def _crash(exp_id: str) -> dict[str, float]:
    """Send, have some fetched, kill the receiver; return the counts."""
    with Messaging.start(exp_id, rules=[BLACK_LIST]) as messaging:
        sender = messaging.create_group("sender", range(AGENTS))
        receiver: Any = Receiver.remote(messaging, range(AGENTS, 2 * AGENTS))
        pid = pid_of(receiver)
        acknowledged = _send(sender)
        committed = ray.get(receiver.take.remote(COMMITTED))
        ray.get(receiver.take.remote(IN_HAND))
        begun = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        first = ray.get(receiver.first.remote())
        took = time.perf_counter() - begun
        seen = np.array([*committed, first, *ray.get(receiver.rest.remote())])
        ray.kill(receiver)
    different = len(np.unique(seen))
    return {
        "acknowledged": acknowledged,
        "lost": acknowledged - different,
        "twice": len(seen) - different,
        "first": took,
    }


def _send(sender: Any) -> int:
    """Send all; return how many were acknowledged."""
    rng, acknowledged = np.random.default_rng(7), 0
    for low in range(0, MESSAGES, PART):
        ids = rng.integers(0, AGENTS, (2, PART))
        payloads = [payload(number) for number in range(low, low + PART)]
        acknowledged += int(sender.send_columns(ids[0], AGENTS + ids[1], payloads).sent.sum())
    return acknowledged
