"""The broadcasts of a step, in the form in which they are written to boxes.

A broadcast is written as one row for each mailbox if no rule judges it before the step ends, and if each hearer is an
agent of a group. Otherwise it is written as one row for each hearer.
"""

from collections.abc import Sequence

from ray_messaging.addressing.directory import Routes
from ray_messaging.audiences.cache import EVERYBODY, current_audience
from ray_messaging.audiences.folding import spread
from ray_messaging.messager_engine import Engine
from ray_messaging.model.batch import Batch
from ray_messaging.model.extension import AudiencePairs
from ray_messaging.sending.bulk_input import edges_of, within_pairs
from ray_messaging.sending.destination import Destination
from ray_messaging.sending.pending_batch import PendingBatch, Reaches
from ray_messaging.steps.agent_places import AgentPlaces


class StepBroadcasts:
    """The audiences to which a group broadcasts in its steps, with the pairs whose senders are the group's agents.

    A pair is a sender and one agent that hears the sender.
    """

    def __init__(self, engine: Engine, destination: Destination) -> None:
        self._engine = engine
        self._destination = destination
        self._reaches: dict[tuple[AudiencePairs, str], tuple[AgentPlaces, Routes | None, Reaches]] = {}
        self.digests: dict[AudiencePairs, bytes] = {}

    async def prepared(self, batches: Sequence[Batch], senders: AgentPlaces, step: int) -> list[PendingBatch]:
        """Return batches in a form that can be sent. Batches of broadcasts have the number of hearers of each sender.

        Raises: UnknownName if an audience does not exist; FrameError if its pairs are damaged.
        """
        made: list[PendingBatch] = []
        for batch in batches:
            audience = None if batch.extension is None else batch.extension.audience
            if audience is None:
                made.append(PendingBatch.of(batch))
                continue
            if batch.unspread and batch.extension is not None:
                audience = current_audience(self._engine.directory.audiences, audience.name, step)
                batch.extension.audience = audience
            reaches = await self._reach(audience, batch.topics[0], senders)
            made += await self._sendable(batch, reaches)
        return made

    async def _sendable(self, broadcasts: Batch, reaches: Reaches) -> list[PendingBatch]:
        records = self._destination.routes.records.values()
        # If no group hosts a hearer, there must be a row for that hearer, because its message is published and gets a
        # note for the log.
        whole = not any(record.globs for record in records) and reaches.are_all_in(records, broadcasts.from_ids)
        if whole and await self._engine.verdict_client.pass_whole(broadcasts) is not None:
            return [PendingBatch.of(broadcasts, reaches=reaches)]
        parts = within_pairs(broadcasts, reaches.edges)
        return [PendingBatch.of(spread(part, reaches.edges)) for part in parts]

    async def _reach(self, audience: AudiencePairs, topic: str, senders: AgentPlaces) -> Reaches:
        """Return how many agents hear each sender in an audience.

        The result is cached until senders or audience change.
        """
        routes = self._destination.routes
        # A move of agents may count only from a later step on, although it is in the directory already. So the routes
        # of two steps may differ, although the version of the directory is the same.
        key, everybody = (audience, topic), routes if audience == EVERYBODY else None
        found = self._reaches.get(key)
        if found is None or found[0] is not senders or found[1] is not everybody:
            edges = await edges_of(audience, topic, routes, self._engine.audiences)
            self.digests[audience] = edges.digest
            self._reaches = {
                (each, name): kept for (each, name), kept in self._reaches.items() if each.name != audience.name
            }
            reaches = Reaches(edges.of(senders.agents), senders.column, senders.find, topic)
            found = self._reaches[key] = senders, everybody, reaches
        return found[2]
