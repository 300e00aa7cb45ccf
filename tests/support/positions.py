"""Positions of agents in memory, which groups change in their steps, without Ray."""

import asyncio

import numpy as np

from ray_messaging.audiences.audience_kinds import AudienceFacts, AudienceKind, encode_facts
from ray_messaging.audiences.building import Positions
from ray_messaging.model.columns import IdColumn


class PlacesInMemory(dict):
    """A source of audiences in memory, which makes a version when agents have moved; `made` counts those versions."""

    def __init__(self):
        self.made = 0
        self.messager = None
        self.lock = asyncio.Lock()

    async def load(self, name, version):
        return self[name, version]

    async def place(self, name, points, radius, limit=10_000):
        """Begin an audience of agents that hear each other where they are near: agent n is at the n-th point."""
        placed = Positions.given(IdColumn(np.arange(len(points))), points, radius, limit)
        await self._publish(name, 1, placed.edges())

    async def _publish(self, name, version, edges, since=None):
        self[name, version] = edges
        facts = AudienceFacts(
            AudienceKind.POSITIONS, edges.pairs, edges.digest.hex(), -1 if since is None else since - 1
        )
        transport = self.messager.engine.transport
        assert await transport.set_audience(name, version, encode_facts(facts), since) is not None

    async def move_in_step(self, name, step, ids, points):
        async with self.lock:
            audiences = (await self.messager.engine.transport.load_directory(0)).audiences
            last = audiences[name][-1]
            if last.since < step:
                self.made += 1
                moved = self[name, last.version].positions.moved(ids, points)
                await self._publish(name, last.version + 1, moved.edges(), step)
