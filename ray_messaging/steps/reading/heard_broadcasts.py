"""The broadcasts that a group reads in one step."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.audiences.book import audience_of
from ray_messaging.audiences.edges import Edges, Pairs
from ray_messaging.audiences.folding import kept_places, unfold
from ray_messaging.audiences.heard import Heard
from ray_messaging.audiences.member_edges import MemberEdges
from ray_messaging.errors import ConfigError
from ray_messaging.model.agent_sets import NO_AGENTS, AgentSet
from ray_messaging.model.batch import Batch
from ray_messaging.model.joining import joined_ids
from ray_messaging.model.typed.values import PayloadPart


class FoldedBatch(NamedTuple):
    """A folded batch, and the pairs of its audience toward the group's agents."""

    batch: Batch
    edges: Edges


class HeardBroadcasts:
    """The folded batches of one step, for the group's agents."""

    def __init__(self, folded: Sequence[FoldedBatch] = ()) -> None:
        self._folded = folded

    def __len__(self) -> int:
        return len(self._folded)

    def messages(self) -> list[Batch]:
        """Return all as messages, one for each pair."""
        return [unfold(*each) for each in self._folded]

    def of(self, name: str, agents: AgentSet) -> Heard:
        """Return the broadcasts to one audience, as agents hear them; raise ConfigError for several versions."""
        found = [each for each in self._folded if audience_of(each.batch).name == name]
        versions = sorted({audience_of(each.batch).version for each in found})
        if len(versions) > 1:
            listed = ", ".join(map(str, versions))
            raise ConfigError(
                f"audience {name!r} has changed between the broadcasts that are read in this step (versions {listed}): "
                "read them by step.messages"
            )
        if not found:
            return Heard(MemberEdges.among(NO_AGENTS), agents, NO_AGENTS.column, [])
        parts = [PayloadPart(each.batch.lines, 0, each.batch.rows) for each in found]
        return Heard(
            found[0].edges, agents, joined_ids([each.batch.from_ids for each in found]), parts, _removed(found)
        )


def _removed(folded: Sequence[FoldedBatch]) -> Pairs | None:
    """Return the pairs that do not count; None: all do."""
    rows: list[NDArray[np.intp]] = []
    hearers, low = [], 0
    for batch, edges in folded:
        assert batch.fold is not None
        if batch.fold.kept:
            pairs = edges.expand(batch.from_ids)
            lost = np.ones(len(pairs.rows), np.bool_)
            lost[kept_places(batch.fold.kept, len(pairs.rows))] = False
            rows.append(pairs.rows[lost] + low)
            hearers.append(pairs.hearers.take(lost))
        low += batch.rows
    return Pairs(np.concatenate(rows), joined_ids(hearers)) if rows else None
