"""The versions of audiences that one process uses."""

import asyncio
from collections import OrderedDict
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ray_messaging.audiences.edges import Edges
from ray_messaging.audiences.member_edges import MemberEdges
from ray_messaging.audiences.records import Audiences
from ray_messaging.audiences.source import AudienceSource
from ray_messaging.errors import ConfigError, UnknownName
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn
from ray_messaging.model.extension import Audience

UNRESOLVED = 0  # the version of an audience that is looked up later
EVERYBODY = Audience("*", 0)  # all agents of the experiment, as the directory has them
K = TypeVar("K")
_VERSIONS = 16  # that are kept in memory, or mapped


class AudienceBook:
    """Edges of audiences, each version loaded once from a source (None: there is none)."""

    def __init__(self, source: AudienceSource | None) -> None:
        self._source = source
        self._edges: OrderedDict[Audience, Edges] = OrderedDict()
        self._toward: OrderedDict[tuple[Audience, bytes], Edges] = OrderedDict()
        self._loading = asyncio.Lock()

    async def edges(self, audience: Audience) -> Edges:
        """Return the pairs of a version; raise UnknownName, FrameError where they cannot be read."""
        async with self._loading:
            found = self._edges.get(audience)
            if found is None:
                if self._source is None:
                    raise UnknownName(
                        f"this messager cannot look up audience {audience.name!r}, because it was opened without a "
                        "source of audiences: open it by messaging.open_messager, or pass audiences=",
                        kind="audience",
                        value=audience.name,
                    )
                found = await self._source.load(*audience)
                self._forget_before(audience)
            return _kept(self._edges, audience, found)

    def _forget_before(self, audience: Audience) -> None:
        """Let go of the versions that a newer one has replaced, but for the last: messages of it may still come."""
        old = {each for each in self._edges if each.name == audience.name and each.version < audience.version - 1}
        for each in old:
            del self._edges[each]
        for key in [key for key in self._toward if key[0] in old]:
            del self._toward[key]

    async def move_in_step(self, name: str, step: int, ids: IdColumn, points: NDArray[np.float64]) -> None:
        """Make the version of an audience that counts from a step on; raise AudienceTooLarge, ConfigError."""
        mover: Any = self._source
        if not hasattr(mover, "move_in_step"):
            raise ConfigError(
                f"this messager cannot move agents of audience {name!r}: open it by messaging.open_messager"
            )
        await mover.move_in_step(name, step, ids, points)

    async def toward(self, audience: Audience, agents: AgentSet, digest: bytes) -> Edges:
        """Return the pairs of a version whose hearers are some agents, with this digest; raises as `edges`."""
        key = audience, digest
        found = self._toward.get(key)
        if found is None:
            found = MemberEdges.among(agents) if audience == EVERYBODY else (await self.edges(audience)).toward(agents)
        return _kept(self._toward, key, found)


def _kept(cache: "OrderedDict[K, Edges]", key: K, value: Edges) -> Edges:
    cache[key] = value
    cache.move_to_end(key)
    while len(cache) > _VERSIONS:
        cache.popitem(last=False)
    return value


def name_of(audience: object) -> str:
    """Return the name of an audience that a user passed, by its handle or its name; raise UnknownName."""
    name = audience if isinstance(audience, str) else getattr(audience, "name", None)
    if not isinstance(name, str):
        raise UnknownName(
            f"{audience!r} is no audience: pass what messaging.create_audience or messaging.audience returned, or the "
            "name",
            kind="audience",
            value=audience,
        )
    return name


def current_audience(audiences: Audiences, given: object, step: int | None = None) -> Audience:
    """Return an audience that a user passed in the version that counts in a step (None: now); raise UnknownName."""
    name = name_of(given)
    return EVERYBODY if name == EVERYBODY.name else Audience(name, audiences.of(name, step).version)


def audience_of(batch: Batch) -> Audience:
    """Return the audience of a batch of broadcasts."""
    assert batch.extension is not None
    assert batch.extension.audience is not None
    return batch.extension.audience
