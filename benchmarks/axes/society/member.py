"""A group of the measured society, in an actor of its own: it sends in every way that an axis asks for, and counts."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import cycle, pairwise, repeat
from typing import Any

import numpy as np
import ray

from benchmarks.peers.ours import CALL_ROWS, send_columns
from benchmarks.work import PING_GAP_S, SUBTOPICS, Half, Send, payload, talk
from ray_messaging import Messager, Messaging, MessagingConfig, Outgoing, RedisConfig

CALL_BYTES = 16 * 2**20
LONE = 32  # of so few messages in one fetch each may be a lone one: those that came late come together
TALKERS = 10_000  # so many of a group await at the same time: half a million tasks would measure asyncio
PAST_TALKERS_BYTES = 64 * 2**20
PACE_S = 0.002
PINGS_S = 10.0  # beside a load that takes the whole machine, some hundred lone messages could take minutes
# Stages of a lone message: the user's call, the interceptor, the script's call, the reader, the user's fetch.
AT_SENDER, AT_RECEIVER = ("sent", "asked", "judged", "called"), ("read", "handed over")


def content_of(number: int, nbytes: int) -> dict[str, Any]:
    """Build a payload of so many bytes of JSON, about; 100: the same as everybody's."""
    return payload(number) if nbytes == 100 else {"n": number, "content": "x" * (nbytes - 24)}


class Member(Half):
    """A group of agents with a messager of its own; `aim` sets the receivers."""

    async def __init__(  # type: ignore[misc]
        self, where: Messaging | RedisConfig, name: str, agents: range, settings: MessagingConfig | None = None
    ) -> None:
        super().__init__(agents, agents)
        if isinstance(where, Messaging):
            self.messager = await where.open_messager(name, agents, subtopics=SUBTOPICS)
        else:  # a server without an interceptor
            self.messager = Messager(where, "bare", name=name, settings=settings)
            await self.messager.init()
            await self.messager.host_agents(agents, SUBTOPICS)
        self.ids, self.channels = np.array(agents), [""]
        self.marks: dict[str, list[float]] | None = None
        self.rested = asyncio.Event()
        self.reading = asyncio.Event()
        self.reading.set()
        self.counting = asyncio.create_task(self._count())
        await self.ready()

    async def aim(self, others: range, nbytes: int = 100) -> None:
        """Send to these from now on, payloads of so many bytes."""
        self.others, self.nbytes, self.channels = others, nbytes, []
        rows = max(1, min(CALL_ROWS, CALL_BYTES // nbytes))
        rng = np.random.default_rng(7)
        self.senders, self.receivers = rng.choice(self.ids, rows), rng.choice(np.array(others), rows)
        self.payloads = [content_of(number, nbytes) for number in range(rows)]

    # -- receiving ------------------------------------------------------------------------------------------------

    async def _count(self) -> None:
        while True:
            await self.reading.wait()
            messages = await self.messager.fetch_messages(timeout=None)
            for message in messages if len(messages) < LONE else ():
                self.arrivals.time(message.payload)
                self._mark("handed over")
            self.arrivals.add(len(messages))

    async def fetch_no_more(self) -> None:
        """Stop fetching after the next message."""
        self.reading.clear()

    async def fetch_again(self) -> None:
        """Go on fetching."""
        self.reading.set()

    async def inbox(self) -> int:
        """Return how many messages wait in our inbox."""
        return int(self.messager.stats()["inbox"])

    # -- sending --------------------------------------------------------------------------------------------------

    def addresses(self) -> list[str]:
        """Return the others' channels."""
        return self.channels or self._open_channels()

    def plain_send(self) -> Send:
        """Return the very call that a user's agent makes; a receipt is true where it was sent."""
        return self.messager.send_message

    async def ping(self, count: int) -> int:
        """Send lone messages, one every 2 ms, as many as there is time for; return how many."""
        send, other, agent, end = self.plain_send(), self.addresses()[0], self.agents[0], time.perf_counter() + PINGS_S
        for number in range(count):
            if time.perf_counter() > end:
                return number
            content = payload(0)
            content["at"] = time.perf_counter()
            await send(other, content, agent)
            await asyncio.sleep(PING_GAP_S)
        return count

    def _open_channels(self) -> list[str]:
        self.channels = [self.messager.get_agent_chat_channel(agent) for agent in self.others]
        return self.channels

    async def awaited(self, seconds: float) -> int:
        """Have every agent await one message after the other, or as many as fit; return how many were taken."""
        talkers = self.agents[: max(1, min(TALKERS, PAST_TALKERS_BYTES // self.nbytes))]
        others = cycle(self.addresses())
        pairs = ((repeat(agent), others) for agent in talkers)
        return await talk(self.plain_send(), pairs, seconds, lambda agent: content_of(agent, self.nbytes))

    async def bulk(self, seconds: float) -> int:
        """Send columns; return how many were delivered."""
        return await send_columns(self.messager, (self.senders, self.receivers, self.payloads), seconds)

    async def steady(self, rate: float) -> int:
        """Send so many messages a second at an even pace until told to rest; return how many were delivered."""
        part = slice(0, max(1, min(len(self.payloads), round(rate * PACE_S))))
        self.rested.clear()
        delivered, begun, calls = 0, time.perf_counter(), 0
        while not self.rested.is_set():
            receipts = await self.messager.send_columns(self.senders[part], self.receivers[part], self.payloads[part])
            delivered += int(receipts.sent.sum())
            calls += 1
            await asyncio.sleep(max(0.0, begun + calls * PACE_S - time.perf_counter()))
        return delivered

    async def rest(self) -> None:
        """Send no more at a pace."""
        self.rested.set()

    async def step(self, number: int) -> int:
        """Have every agent send one message, each to another agent of the others; return how many were delivered."""
        delivered, self.messager.step = 0, number
        for low in range(0, len(self.ids), len(self.payloads)):
            senders = self.ids[low : low + len(self.payloads)]
            receivers = self.others.start + (np.arange(low, low + len(senders)) + 7919 * number) % len(self.others)
            receipts = await self.messager.send_columns(senders, receivers, self.payloads[: len(senders)])
            delivered += int(receipts.sent.sum())
        return delivered

    async def send_rows(self, rows: int) -> int:
        """Send at least so many messages; return how many were delivered."""
        delivered = 0
        while delivered < rows:
            receipts = await self.messager.send_columns(self.senders, self.receivers, self.payloads)
            delivered += int(receipts.sent.sum())
        return delivered

    async def fan_out(self, seconds: float, recipients: int) -> int:
        """Send payloads to so many recipients each; return how many messages were delivered."""
        rng = np.random.default_rng(7)
        rows = [rng.choice(np.array(self.others), recipients, replace=False).tolist() for _ in range(8)]
        delivered, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            messages = [
                Outgoing.to_agents(rows[number % 8], payload(number), self.agents[0])
                for number in range(max(1, CALL_ROWS // recipients))
            ]
            delivered += int((await self.messager.send_messages(messages)).sent.sum())
        return delivered

    # -- stages of lone messages ----------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Note from now on when lone messages pass from one stage to the next."""
        engine, self.marks = self.messager.engine, {}
        for owner, name, before, after in (
            (self.messager, "send_message", "sent", ""),
            (engine.sending.verdict_client, "judge", "asked", "judged"),
            (engine.transport, "send", "called", ""),
            (engine.transport, "read", "", "read"),
        ):
            setattr(owner, name, self._watched(getattr(owner, name), before, after))

    def _watched(self, call: Callable[..., Awaitable[Any]], before: str, after: str) -> Callable[..., Awaitable[Any]]:
        async def watched(*args: Any, **kwargs: Any) -> Any:
            self._mark(before)
            found = await call(*args, **kwargs)
            for _ in found if isinstance(found, list) else [found]:  # frames that were read
                self._mark(after)
            return found

        return watched

    def _mark(self, name: str) -> None:
        if name and self.marks is not None:
            self.marks.setdefault(name, []).append(time.perf_counter())

    async def take_marks(self) -> dict[str, list[float]]:
        """Return when lone messages passed the stages since the last call (perf_counter, s)."""
        found, self.marks = self.marks or {}, {}
        return found


def stages_of(sender: dict[str, list[float]], receiver: dict[str, list[float]]) -> dict[str, list[float]]:
    """Return by stage how long each lone message took to pass it, in ms; one that not all messages pass is left out."""
    count = len(sender.get("sent", []))
    passed = [(name, sender.get(name, [])) for name in AT_SENDER] + [
        (name, receiver.get(name, [])) for name in AT_RECEIVER
    ]
    whole = [(name, times) for name, times in passed if count and len(times) == count]
    return {
        f"until {name}": [1000 * (end - begun) for begun, end in zip(before, times, strict=True)]
        for (_, before), (name, times) in pairwise(whole)
    }


MemberActor: Any = ray.remote(num_cpus=0)(Member)
