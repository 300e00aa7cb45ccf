"""Sends to audiences."""

from collections.abc import Sequence

from ray_messaging.addressing.directory import Directory
from ray_messaging.audiences.cache import (
    EVERYBODY,
    UNRESOLVED,
    AudienceCache,
    audience_of,
    current_audience,
    name_of,
)
from ray_messaging.audiences.edges import Edges
from ray_messaging.audiences.member_edges import MemberEdges
from ray_messaging.model.agent_sets import NO_AGENTS
from ray_messaging.model.batch import Batch
from ray_messaging.model.extension import Audience
from ray_messaging.receipt import Receipts
from ray_messaging.sending.bulk_input import ColumnChunk, unspread_batches, within_pairs
from ray_messaging.sending.bulk_sender import BulkSender
from ray_messaging.sending.frame_sender import FrameSender


class Broadcaster:
    """The sender of one messager's broadcasts. Each call uses the audiences that the directory has then."""

    def __init__(
        self, frames: FrameSender, directory: Directory, audiences: AudienceCache, bulk_sender: BulkSender
    ) -> None:
        self._frames = frames
        self._directory = directory
        self._audiences = audiences
        self._bulk_sender = bulk_sender

    async def send(self, audience: object, chunks: list[ColumnChunk], topic: str, step: int | None) -> Receipts:
        """Send the message in each row to its sender's hearers; return a receipt for each pair, by row, then hearer.

        Raises: UnknownName for an audience that does not exist; PayloadMismatch for a payload that a schema refuses.
        """
        return await self.relay(unspread_batches(chunks, Audience(name_of(audience), UNRESOLVED), topic, step))

    async def relay(self, broadcasts: Sequence[Batch]) -> Receipts:
        """Send broadcasts that another process has collected; raises as `send`."""
        if not broadcasts:
            return Receipts([])
        await self._frames.refresh()  # after a change of the audience has returned, no broadcast uses its old version
        found = current_audience(self._directory.audiences, audience_of(broadcasts[0]).name)
        edges = await edges_of(found, broadcasts[0].topics[0], self._directory, self._audiences)
        for batch in broadcasts:
            assert batch.extension is not None
            batch.extension.audience = found
        parts = [part for batch in broadcasts for part in within_pairs(batch, edges)]
        return await self._bulk_sender.broadcast(parts, edges)


async def edges_of(audience: Audience, topic: str, directory: Directory, audiences: AudienceCache) -> Edges:
    """Return the pairs of an audience. The audience EVERYBODY has all agents that listen on a subtopic."""
    if audience != EVERYBODY:
        return await audiences.edges(audience)
    everybody = NO_AGENTS
    for record in directory.records.values():
        everybody |= record.agents(topic)
    return MemberEdges.among(everybody)
