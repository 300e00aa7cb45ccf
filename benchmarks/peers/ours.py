"""ray_messaging: a group in each half's own actor, the interceptor on with a black list, dedup on, no log.

Awaits the receipt of each message: it is durable in the receiver's mailbox then, on the embedded server that starts
with the experiment. In bulk, four calls of 32,768 messages are under way, and their receipts are awaited. Counted as
`fetch_messages` hands them out.
"""

import asyncio
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import ray

from benchmarks.work import FEW, SUBTOPICS, Half, Send, payload
from ray_messaging import Messager, Messaging, rules
from ray_messaging.common.process_tuning import tune_process

CALL_ROWS = 32_768
UNDER_WAY = 4  # calls at once, as other peers keep several frames under way: each would wait for a round trip


async def send_columns(
    messager: Messager, columns: tuple[Any, Any, Any], seconds: float, *, calls_at_once: int = 1
) -> int:
    """Send the same columns again and again for some time; return how many messages were delivered."""
    delivered, end = 0, time.perf_counter() + seconds
    under_way = deque[asyncio.Task[Any]]()
    while True:
        if len(under_way) < calls_at_once and time.perf_counter() < end:
            under_way.append(asyncio.create_task(messager.send_columns(*columns)))
        elif under_way:
            delivered += int((await under_way.popleft()).sent.sum())
        else:
            return delivered


class MessagerHalf(Half):
    """Send by a messager: columns in bulk, or one awaited call per message."""

    def __init__(self, messager: Messager, agents: range, others: range) -> None:
        super().__init__(agents, others)
        self.messager = messager
        self.channels = {agent: messager.get_agent_chat_channel(agent) for agent in others}
        rng = np.random.default_rng(7)
        self.senders, self.receivers = rng.choice(np.array(agents), CALL_ROWS), rng.choice(np.array(others), CALL_ROWS)
        self.payloads = [payload(number) for number in range(CALL_ROWS)]
        self.counting = asyncio.create_task(self._count())
        tune_process()

    async def _count(self) -> None:
        while True:
            messages = await self.messager.fetch_messages(timeout=None)
            if len(messages) <= FEW:
                for message in messages:
                    self.arrivals.time(message.payload)
            self.arrivals.add(len(messages))

    async def send(self, to_id: int, content: dict[str, Any], from_id: int) -> bool:
        """Send one message and await its receipt."""
        return (await self.messager.send_message(self.channels[to_id], content, from_id)).sent

    def addresses(self) -> list[str]:
        """Return the others' channels."""
        return list(self.channels.values())

    def plain_send(self) -> Send:
        """Return the very call that a user's agent makes; a receipt is true where it was sent."""
        return self.messager.send_message

    async def bulk(self, seconds: float) -> int:
        """Send columns; return how many were delivered."""
        columns = self.senders, self.receivers, self.payloads
        return await send_columns(self.messager, columns, seconds, calls_at_once=UNDER_WAY)

    async def paced(self, seconds: float, rows: int, gap_s: float) -> int:
        """Send so many rows every so often; return how many were delivered."""
        delivered, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            part = slice(0, rows)
            receipts = await self.messager.send_columns(self.senders[part], self.receivers[part], self.payloads[part])
            delivered += int(receipts.sent.sum())
            await asyncio.sleep(gap_s)
        return delivered


@ray.remote(num_cpus=0)
class OurHalf(MessagerHalf):
    """A group of the experiment."""

    async def __init__(self, messaging: Messaging, name: str, agents: range, others: range) -> None:  # type: ignore[misc]
        super().__init__(await messaging.open_messager(name, agents, subtopics=SUBTOPICS), agents, others)


class Ours:
    """Start an experiment and its two halves."""

    name = "ray_messaging"

    def __init__(self, agents: int, server: None = None, *, log_dir: Path | None = None) -> None:  # noqa: ARG002 - it has its own
        self.messaging = Messaging.start(
            f"bench-{agents}", rules=[rules.BlackList([(-1, -2), (-3, None)])], log_dir=log_dir
        )
        west, east = range(agents // 2), range(agents // 2, agents)
        self.halves: list[Any] = [
            OurHalf.remote(self.messaging, "west", west, east),
            OurHalf.remote(self.messaging, "east", east, west),
        ]

    def close(self) -> None:
        """Stop both."""
        for half in self.halves:
            ray.kill(half)
        self.messaging.shutdown()
