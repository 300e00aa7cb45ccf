"""NATS core by nats-py: one publish per message to a subject per agent; a half subscribes to its agents by a wildcard.

Awaits: the message is in the client's buffer (`publish`); the buffer is flushed at the end, and a publisher that gets
ahead of the socket waits. Filters nothing, keeps nothing: messages without a subscriber, or too fast for
a subscriber's buffer, are lost; those buffers are unlimited here. It has no bulk path. Fast way: one coroutine
publishes for all agents, as a publish does not wait; subjects are not validated. Messages are encoded by msgspec, as
ours are, and not decoded to be counted, as ours are not.
"""

from typing import Any

import msgspec
import nats
import ray

from benchmarks.work import STAMP, Half


class Connected(Half):
    """A connection to a server."""

    client: Any
    subjects: dict[int, str]

    async def came(self, message: Any) -> None:
        """Count a message."""
        if STAMP in message.data:
            self.arrivals.time(msgspec.json.decode(message.data))
        self.arrivals.add(1)


@ray.remote(num_cpus=0)
class NatsHalf(Connected):
    """Publish to the other half's agents, and listen for its own."""

    async def listen(self, url: str, mine: str, theirs: str) -> None:
        """Connect, and subscribe to all agents of this half."""
        self.client = await nats.connect(url, skip_subject_validation=True)
        self.subjects = {agent: f"agents.{theirs}.{agent}.agent-chat" for agent in self.others}
        await self.client.subscribe(f"agents.{mine}.>", cb=self.came, pending_msgs_limit=-1, pending_bytes_limit=-1)
        await self.client.flush()

    async def send(self, to_id: int, content: dict[str, Any], from_id: int) -> bool:  # noqa: ARG002 - a subject has no sender
        """Publish one message."""
        await self.client.publish(self.subjects[to_id], msgspec.json.encode(content))
        return True

    async def awaited(self, seconds: float) -> int:
        """Publish from one agent after the other, and flush."""
        sent = await self.one_by_one(seconds)
        await self.client.flush()
        return sent


class NatsCore:
    """Start two halves on a server."""

    half = NatsHalf

    def __init__(self, agents: int, server: dict[str, Any]) -> None:
        url = f"nats://{server['host']}:{server['port']}"
        west, east = range(agents // 2), range(agents // 2, agents)
        self.halves: list[Any] = [self.half.remote(west, east), self.half.remote(east, west)]
        names = ("west", "east")
        ray.get(
            [
                half.listen.remote(url, mine, theirs)
                for half, mine, theirs in zip(self.halves, names, reversed(names), strict=True)
            ]
        )

    def close(self) -> None:
        """Stop both."""
        for half in self.halves:
            ray.kill(half)
