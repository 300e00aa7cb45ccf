"""The versions of audiences that this process has loaded."""

import asyncio
from collections import OrderedDict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_messaging.audiences.audience_kinds import Audiences
from ray_messaging.audiences.edges import Edges
from ray_messaging.audiences.member_edges import MemberEdges
from ray_messaging.audiences.source import AudienceSource
from ray_messaging.errors import ConfigError, UnknownName
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn
from ray_messaging.model.extension import AudiencePairs

EVERYBODY = AudiencePairs("*", 0)  # the audience of all agents that are in the server's list of mailboxes
_KEPT = 32  # at most this many sets of pairs are kept: whole versions, and versions restricted to some hearers


class AudienceCache:
    """A cache of the edges of audiences. It loads missing versions from a source (None: there is no source)."""

    def __init__(self, source: AudienceSource | None) -> None:
        self._source = source
        # All pairs of a version are under the key b"". The pairs with some hearers are under the digest of these
        # hearers.
        self._edges: OrderedDict[tuple[AudiencePairs, bytes], Edges] = OrderedDict()
        self._loading = asyncio.Lock()

    async def edges(self, audience: AudiencePairs) -> Edges:
        """Return the pairs (sender, hearer) of a version of an audience.

        Raises: UnknownName if there is no source, or if the source does not have the version; FrameError if the version
        is damaged.
        """
        async with self._loading:
            found = self._edges.get((audience, b""))
            if found is None:
                if self._source is None:
                    raise UnknownName(
                        f"this messager cannot look up audience {audience.name!r}, because it was opened without a "
                        "source of audiences: use a messager from messaging.open_messager, or pass audiences=",
                        kind="audience",
                        value=audience.name,
                    )
                found = await self._source.load(*audience)
                # Messages that were sent to the previous version may still arrive, but none to an earlier version.
                for each, digest in [*self._edges]:
                    if each.name == audience.name and each.version < audience.version - 1:
                        del self._edges[each, digest]
            return self._keep(audience, b"", found)

    async def move_in_step(self, name: str, step: int, ids: IdColumn, points: NDArray[np.float64]) -> None:
        """Make the version of an audience that is used from step `step` on, after agents have moved to new positions.

        Raises: AudienceTooLarge if there are too many pairs, ConfigError if this messager cannot move agents.
        """
        mover: Any = self._source
        if not hasattr(mover, "move_in_step"):
            raise ConfigError(
                f"this messager cannot move agents of audience {name!r}: use a messager from messaging.open_messager"
            )
        await mover.move_in_step(name, step, ids, points)

    async def toward(self, audience: AudiencePairs, agents: AgentSet, digest: bytes) -> Edges:
        """Return those pairs of a version of an audience whose hearers are in `agents`.

        Args: `digest` is the digest of `agents`. The result is cached under this digest.
        Raises: the same errors as `edges`.
        """
        found = self._edges.get((audience, digest))
        if found is None:
            found = (
                MemberEdges.everybody(agents) if audience == EVERYBODY else (await self.edges(audience)).toward(agents)
            )
        return self._keep(audience, digest, found)

    def _keep(self, audience: AudiencePairs, digest: bytes, edges: Edges) -> Edges:
        self._edges[audience, digest] = edges
        self._edges.move_to_end((audience, digest))
        while len(self._edges) > _KEPT:
            self._edges.popitem(last=False)
        return edges


def name_of(audience: object) -> str:
    """Return the name of an audience that a user passed as a handle or a name; raise UnknownName if it is neither."""
    name = audience if isinstance(audience, str) else getattr(audience, "name", None)
    if not isinstance(name, str):
        raise UnknownName(
            f"{audience!r} is not an audience: pass the result of messaging.create_audience or messaging.audience, or "
            "the name of an audience",
            kind="audience",
            value=audience,
        )
    return name


def current_audience(audiences: Audiences, given: object, step: int | None = None) -> AudiencePairs:
    """Return an audience that a user passed, in the version that is used in a step (None: the newest version).

    Raises: UnknownName if there is no such audience, or if it does not exist in that step.
    """
    name = name_of(given)
    return EVERYBODY if name == EVERYBODY.name else AudiencePairs(name, audiences.of(name, step).version)


def audience_of(batch: Batch) -> AudiencePairs:
    """Return the audience to which a batch of broadcasts was sent."""
    assert batch.extension is not None
    assert batch.extension.audience is not None
    return batch.extension.audience
