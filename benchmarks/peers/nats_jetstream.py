"""NATS JetStream by nats-py: every message is stored in a stream on disk; each half has an ordered consumer.

Awaits: the server's acknowledgement that the message is stored (it does not flush to the disk first). In bulk
`publish_async`: 4,000 acknowledgements outstanding, all of them awaited in the end. Keeps all messages, and
filters nothing; an ordered consumer acknowledges nothing, which is the fastest, and begins anew after a gap.
"""

import asyncio
import time
from typing import Any

import msgspec
import nats
import ray
from nats.js.api import StreamConfig
from nats.js.errors import BadRequestError

from benchmarks.peers.nats_core import Connected, NatsCore
from benchmarks.work import TURN, payload

STREAM = "messages"


@ray.remote(num_cpus=0)
class JetStreamHalf(Connected):
    """Publish to the other half's agents through the stream."""

    async def listen(self, url: str, mine: str, theirs: str) -> None:
        """Connect, and consume the messages for the agents of this half."""
        self.client = await nats.connect(url, skip_subject_validation=True)
        self.stream = self.client.jetstream()
        self.subjects = {agent: f"agents.{theirs}.{agent}.agent-chat" for agent in self.others}
        try:
            await self.stream.add_stream(StreamConfig(name=STREAM, subjects=["agents.>"]))
        except BadRequestError:
            await self.stream.stream_info(STREAM)  # the other half was first
        await self.stream.subscribe(
            f"agents.{mine}.>", cb=self.came, ordered_consumer=True, pending_msgs_limit=-1, pending_bytes_limit=-1
        )

    async def send(self, to_id: int, content: dict[str, Any], from_id: int) -> bool:  # noqa: ARG002 - a subject has no sender
        """Publish one message and await that it is stored."""
        await self.stream.publish(self.subjects[to_id], msgspec.json.encode(content))
        return True

    async def bulk(self, seconds: float) -> int:
        """Publish without awaiting each, and await all in the end."""
        payloads = [payload(number) for number in range(TURN)]
        sent, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            for number, content in enumerate(payloads):
                to_id = self.others[number % len(self.others)]
                await self.stream.publish_async(self.subjects[to_id], msgspec.json.encode(content))
            sent += TURN
            await asyncio.sleep(0)
        await self.stream.publish_async_completed()
        return sent


class JetStream(NatsCore):
    """Start two halves on a server."""

    half = JetStreamHalf
