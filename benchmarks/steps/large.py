"""Steps with very many messages to one group: whole, or refused at once with the figures."""

import asyncio
import resource
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import ray

from ray_messaging import Messaging, Steps
from ray_messaging.errors import StepTooLarge

SENDERS, HEARERS = 4, 1_000
CHUNK = 50_000  # messages of one call of send_columns


class Part(NamedTuple):
    """What a group did: when its steps began and the last ended, what it read, why it was refused, its most memory."""

    stamps: list[float]
    read: int
    refused: str
    megabytes: float


class Outcome(NamedTuple):
    """Milliseconds until all is read, or refused; the words of a refusal; the hearer's most memory in MB."""

    ms: float
    refused: str = ""
    megabytes: float = 0.0


@ray.remote(num_cpus=0)
class Member:
    """A group in an actor of one's own: it sends its part of the messages in step 0, and the hearer reads them in 1."""

    async def open(self, messaging: Messaging, name: str, agents: range) -> None:
        """Host the agents."""
        self._messager = await messaging.open_messager(name, agents)
        self._agents = np.asarray(agents)

    async def run(self, count: int, *, small: bool) -> Part:
        """Drive two steps."""
        stamps, read, refused = [], 0, ""
        to_ids = np.arange(count) % HEARERS
        from_ids = self._agents[np.arange(count) % len(self._agents)]
        try:
            async for step in self._messager.steps(until=2):
                stamps.append(time.perf_counter())
                if step.number:
                    read = len(step.messages.to_ids)
                elif small:
                    for from_id, to_id in zip(from_ids.tolist(), to_ids.tolist(), strict=True):
                        step.send(from_id, to_id, {"mood": 0.5})
                else:
                    for low in range(0, count, CHUNK):
                        step.send_columns(from_ids[low : low + CHUNK], to_ids[low : low + CHUNK], {"mood": 0.5})
        except StepTooLarge as error:
            refused = str(error)
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return Part([*stamps, time.perf_counter()], read, refused, most)

    async def unsynchronised(self, count: int, expected: int) -> list[float]:
        """Send the same without steps, and fetch what is expected; return when it began and ended."""
        begun, fetched = time.perf_counter(), 0
        to_ids = np.arange(count) % HEARERS
        from_ids = self._agents[np.arange(count) % len(self._agents)]

        async def send() -> None:
            for low in range(0, count, CHUNK):
                await self._messager.send_columns(from_ids[low : low + CHUNK], to_ids[low : low + CHUNK], {"mood": 0.5})

        sending = asyncio.create_task(send())
        while fetched < expected:
            messages = await self._messager.fetch_messages(timeout=30)
            fetched += len(messages.to_ids)
        await sending
        return [begun, time.perf_counter()]


def measure(count: int, *, small: bool = False, stepped: bool = True) -> Outcome:
    """Send so many messages to one group, from four others.

    Raises: RuntimeError where some are missing.
    """
    exp_id = f"large-{count}-{'small' if small else 'columns'}-{'steps' if stepped else 'free'}"
    with Messaging.start(exp_id, steps=Steps(groups=SENDERS + 1) if stepped else None) as messaging:
        members = [Member.remote() for _ in range(SENDERS + 1)]
        try:
            places = [range(n * HEARERS, (n + 1) * HEARERS) for n in range(SENDERS + 1)]
            each = [0] + [count // SENDERS] * SENDERS
            ray.get([m.open.remote(messaging, f"member{n}", places[n]) for n, m in enumerate(members)])
            if not stepped:
                calls = [
                    m.unsynchronised.remote(part, 0 if part else count) for m, part in zip(members, each, strict=True)
                ]
                return Outcome(_took(ray.get(calls)))
            calls = [m.run.remote(part, small=small) for m, part in zip(members, each, strict=True)]
            return _result(calls, count)
        finally:
            for member in members:
                ray.kill(member)


def _result(calls: Sequence, count: int) -> Outcome:
    """Wait for all groups, or for a refusal: then the others wait at the barrier, and are ended."""
    waiting, found = list(calls), []
    while waiting:
        done, waiting = ray.wait(waiting, num_returns=1, timeout=300)
        if not done:
            raise RuntimeError("the step neither passes nor is refused")
        found += ray.get(done)
        if found[-1].refused:
            return Outcome(_took([found[-1].stamps]), found[-1].refused)
    read = sum(part.read for part in found)
    if read != count:
        raise RuntimeError(f"{read:,} of {count:,} messages were read")
    return Outcome(_took([part.stamps for part in found]), megabytes=max(part.megabytes for part in found if part.read))


def _took(stamps: Sequence[Sequence[float]]) -> float:
    """Return the ms from the first begin to the last end."""
    return 1e3 * (max(each[-1] for each in stamps) - min(each[0] for each in stamps))
