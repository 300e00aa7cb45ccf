"""The work of all peers: two halves of a society that write to each other, counted at the receiver.

Payloads are JSON objects of about 100 bytes. A half is a Ray actor; every peer implements the same few methods, and the
runner drives them alike: `bulk` and `awaited` send for some seconds and return how many were sent, `drained` waits
until that many have arrived, `settled` until no more will come, `ping` sends lone messages, whose `latencies` the other
half returns. Standard library only: peers' environments hold nothing of ours.
"""

import asyncio
import gc
import inspect
import itertools
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from types import MethodType
from typing import Any

SUBTOPICS = ("agent-chat", "user-chat", "user-survey")
PING_GAP_S = 0.002
FEW = 4  # lone messages that may have come together
TURN = 256  # messages after which a loop that never waits lets the other tasks run
STAMP = b'"at":'  # in the JSON of lone messages only
# Send a message to somebody, as `Half.addresses` names them, from an agent; true where it was taken.
Send = Callable[[Any, dict[str, Any], int], Awaitable[object]]
QUIET_S, LOOK_S = 2.0, 0.05  # a message that has not come after so long is lost; interval of the checks


def payload(number: int) -> dict[str, Any]:
    """Build a payload of about 100 bytes of JSON."""
    return {"n": number, "type": "chat", "content": "a message of about a hundred bytes in all, as people write"}


class Arrivals:
    """Count of arrived messages, and latencies of lone messages, which carry their send time (perf_counter, s)."""

    def __init__(self) -> None:
        self.count = 0
        self.latencies: list[float] = []
        self._changed = asyncio.Event()

    def add(self, messages: int) -> None:
        """Count messages."""
        self.count += messages
        self._changed.set()

    def time(self, content: dict[str, Any]) -> None:
        """Note how long a lone message took."""
        if "at" in content:
            self.latencies.append(time.perf_counter() - content["at"])

    async def reached(self, count: int) -> float:
        """Wait until so many have arrived; return the time (unix s)."""
        while self.count < count:
            self._changed.clear()
            await self._changed.wait()
        return time.time()

    async def settled(self, count: int) -> tuple[int, float]:
        """Wait for so many, or until nothing came for 2 s; return how many came in all, and when the last did."""
        seen, at = self.count, time.time()
        while True:
            try:
                at = await asyncio.wait_for(self.reached(count), LOOK_S)
            except TimeoutError:
                if self.count != seen:
                    seen, at = self.count, time.time()
                elif time.time() - at > QUIET_S:
                    return seen, at
            else:
                return self.count, at


async def talk(
    send: Send,
    pairs: Iterable[tuple[Iterator[int], Iterator[Any]]],
    seconds: float,
    make: Callable[[int], dict[str, Any]] = payload,
) -> int:
    """Have talkers send at the same time, each one message after the other; return the number of sent messages.

    Args: pairs are, for each talker, senders and receivers of its messages, without end (several talkers may share the
    receivers); make builds its payload.
    """
    over: list[bool] = []  # a test of its truth is the cheapest check
    asyncio.get_running_loop().call_later(seconds, over.append, True)

    async def one(number: int, agents: Iterator[int], others: Iterator[Any]) -> int:
        sent, content = 0, make(number)
        for other in others:  # not zipped: a zip per talker would fall out of the cache before its next turn
            if await send(other, content, next(agents)):
                sent += 1
            if over:
                break
        return sent

    return sum(await asyncio.gather(*(one(number, *pair) for number, pair in enumerate(pairs))))


class Half:
    """One half of the society; subclasses implement how one message and a bulk are sent."""

    at_once: int | None = None  # agents that talk at the same time, by turns; None: all of them

    def __init__(self, agents: range, others: range) -> None:
        self.agents, self.others = agents, others
        self.arrivals = Arrivals()

    async def send(self, to_id: int, content: dict[str, Any], from_id: int) -> bool:
        """Send one message and await that it was taken."""
        raise NotImplementedError

    async def ready(self) -> None:
        """Return once all is set up. The garbage collector runs less often from then on, as in our own actors."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 1000)

    def addresses(self) -> Sequence[Any]:
        """Return the others, as `plain_send` takes them."""
        return self.others

    def plain_send(self) -> Send:
        """Return `send` as it was written: Ray wraps an actor's methods, which takes as long as a fast peer's send."""
        return MethodType(inspect.unwrap(type(self).send), self)

    async def awaited(self, seconds: float) -> int:
        """Have every agent await one message after the other; return the number of sent messages."""
        talkers = min(self.at_once or len(self.agents), len(self.agents))
        turns = (self.agents[place::talkers] for place in range(talkers))
        agents = (itertools.cycle(turn) if len(turn) > 1 else itertools.repeat(turn[0]) for turn in turns)
        # All talkers share one iterator: a row of receivers for each would take more time than a fast send.
        others = itertools.cycle(self.addresses())
        return await talk(self.plain_send(), ((each, others) for each in agents), seconds)

    async def awaited_by(self, seconds: float, talkers: int) -> int:
        """Measure as `awaited` does, with so many agents that talk at the same time."""
        self.at_once = talkers
        return await self.awaited(seconds)

    async def one_by_one(self, seconds: float) -> int:
        """Send for one agent after the other: the `awaited` of peers with sends that never wait."""
        agents, others = itertools.cycle(self.agents), itertools.cycle(self.addresses())
        send, content, sent, end = self.plain_send(), payload(0), 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            for agent, other in itertools.islice(zip(agents, others, strict=False), TURN):
                sent += await send(other, content, agent)
            await asyncio.sleep(0)
        return sent

    async def ping(self, count: int, gap_s: float = PING_GAP_S) -> int:
        """Send lone messages, one after each pause."""
        send, other, agent = self.plain_send(), self.addresses()[0], self.agents[0]
        for _ in range(count):
            content = payload(0)
            content["at"] = time.perf_counter()
            await send(other, content, agent)
            await asyncio.sleep(gap_s)
        return count

    async def drained(self, count: int) -> float:
        """Wait until so many have arrived in all; return the time (unix s)."""
        return await self.arrivals.reached(count)

    async def settled(self, count: int) -> tuple[int, float]:
        """Wait until so many have arrived, or no more come; return how many did, and when the last one (unix s)."""
        return await self.arrivals.settled(count)

    async def latencies(self) -> list[float]:
        """Return the latencies of lone messages since the last call, in seconds."""
        found, self.arrivals.latencies = self.arrivals.latencies, []
        return found
