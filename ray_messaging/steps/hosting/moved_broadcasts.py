"""Broadcasts to a mailbox, some of them to agents that have moved since."""

from collections.abc import Callable
from copy import copy

import numpy as np

from ray_messaging.audiences.frames.folding import agents_digest
from ray_messaging.audiences.frames.kept_pairs import encode_kept, kept_places
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.batch import Batch
from ray_messaging.model.extension import Fold
from ray_messaging.receiving.unfolder import Unfolder
from ray_messaging.steps.reading.heard_broadcasts import FoldedBatch


async def toward_agents(
    unfolder: Unfolder, broadcasts: Batch, agents: AgentSet, chosen: Callable[[AgentSet], AgentSet]
) -> FoldedBatch:
    """Return a folded batch as one toward the agents of a group in this step; only pairs of chosen hearers count.

    Args: `chosen` tells which of the agents that the frame names are to hear it here; they are among `agents`.
    Raises: FrameError, UnknownName.
    """
    folded = broadcasts.fold
    assert folded is not None
    then = unfolder.agents_of(folded.agents)
    hearers = chosen(then)
    now = await unfolder.toward(broadcasts, agents)
    if then == agents == hearers:
        return FoldedBatch(broadcasts, now)
    before = (await unfolder.edges(broadcasts)).expand(broadcasts.from_ids)
    kept = np.ones(len(before.rows), np.bool_)
    if folded.kept:
        kept[:] = False
        kept[kept_places(folded.kept, len(before.rows))] = True
    after = now.expand(broadcasts.from_ids)
    # Both have the pairs toward `hearers`, in the same order.
    places = np.flatnonzero(hearers.find(after.hearers))[kept[hearers.find(before.hearers)]]
    made = copy(broadcasts)
    made.frame, made.extension = None, copy(broadcasts.extension)
    assert made.extension is not None
    made.extension.fold = Fold(agents_digest(agents), len(places), encode_kept(places, len(after.rows)))
    return FoldedBatch(made, now)
