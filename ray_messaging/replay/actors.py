"""One Ray actor per group of a replay: a thin shell, as Ray wraps every method of an actor class."""

from collections.abc import Sequence

from ray_messaging.addressing.channels import AgentId
from ray_messaging.cluster.messaging import Messaging
from ray_messaging.common.process_tuning import tune_process
from ray_messaging.messager import Messager
from ray_messaging.replay.checker import Tally
from ray_messaging.replay.plan import Reference, Share
from ray_messaging.replay.worker import Sent, Worker


class ReplayActor:
    """Host one group's agents in this process, without an extra hop."""

    def __init__(self, messaging: Messaging, share: Share) -> None:
        self._messaging = messaging
        self._share = share
        self._messager: Messager | None = None
        self._worker: Worker

    async def open(self, reference: Reference, guests: Sequence[AgentId]) -> None:
        """Listen for the group's agents, and for guests that are not part of the traffic."""
        self._messager = await self._messaging.open_messager(
            self._share.name, [*self._share.agents, *guests], subtopics=("agent-chat",)
        )
        self._worker = Worker(self._messager, reference, self._share)
        tune_process()

    async def send(self) -> Sent:
        """Send the group's share."""
        return await self._worker.send()

    async def receive(self) -> Tally:
        """Check what arrives until all is here."""
        return await self._worker.receive()

    async def expect(self, messages: int) -> None:
        """Say how many messages are to arrive."""
        self._worker.expect(messages)

    async def progress(self) -> tuple[int, int]:
        """Return how many messages were sent and received."""
        return self._worker.progress

    async def exchange(self, own: AgentId, other: AgentId, rounds: int, *, first: bool) -> list[float]:
        """Measure the latency of lone messages."""
        return await self._worker.exchange(own, other, rounds, first=first)

    async def close(self) -> None:
        """Commit what was received, and leave."""
        if self._messager is not None:
            await self._messager.close()
