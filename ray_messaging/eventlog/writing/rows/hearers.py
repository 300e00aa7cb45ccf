"""The hearers that each row of a broadcast stands for."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ray_messaging.audiences.edges import Edges
from ray_messaging.audiences.kept_pairs import encode_kept, kept_places
from ray_messaging.errors import FrameError
from ray_messaging.eventlog.schema import OF_BROADCASTS, SCHEMA
from ray_messaging.eventlog.writing.rows.repeated_columns import nulls, repeated
from ray_messaging.model.batch import Batch


class Hearers(NamedTuple):
    """By row: `pairs` hearers, of the agents with a digest. `kept` names them by their places among all (None: all)."""

    agents: str
    pairs: NDArray[np.int64]
    kept: dict[int, bytes]

    def take(self, rows: NDArray[np.intp]) -> "Hearers":
        """Return those of some rows."""
        kept = {at: self.kept[row] for at, row in enumerate(rows.tolist()) if row in self.kept} if self.kept else {}
        return Hearers(self.agents, self.pairs[rows], kept)


def hearers_of(broadcasts: Batch, edges: Edges) -> Hearers:
    """Return the hearers of a folded frame's rows.

    Args: edges are those of the audience's version, toward the agents that the frame names.
    Raises: FrameError where they do not give the pairs that the frame counts.
    """
    folded = broadcasts.fold
    assert folded is not None
    pairs, kept = edges.counts(broadcasts.from_ids), dict[int, bytes]()
    if folded.kept:
        starts = np.cumsum(pairs) - pairs
        places = kept_places(folded.kept, int(pairs.sum()))
        bounds = np.searchsorted(places, np.append(starts, pairs.sum()))
        whole, pairs = pairs, np.diff(bounds)
        for row in np.flatnonzero(pairs != whole).tolist():
            own = places[bounds[row] : bounds[row + 1]] - starts[row]
            kept[row] = encode_kept(own, int(whole[row]))
    if int(pairs.sum()) != folded.pairs:
        raise FrameError(f"the frame counts {folded.pairs:,} pairs, its audience has {int(pairs.sum()):,} of them")
    return Hearers(folded.agents.hex(), pairs, kept)


def hearer_columns(found: Sequence[Hearers | None], counts: Sequence[int]) -> dict[str, pa.Array]:
    """Return the columns of the hearers of all rows, by name."""
    if not any(found):
        return {name: nulls(sum(counts), SCHEMA.field(name).type) for name in OF_BROADCASTS}
    pairs = [
        np.zeros(count, np.int64) if each is None else each.pairs for each, count in zip(found, counts, strict=True)
    ]
    kept: list[bytes | None] = [None] * sum(counts)
    start = 0
    for each, count in zip(found, counts, strict=True):
        for row, places in {} if each is None else each.kept.items():
            kept[start + row] = places
        start += count
    return {
        "pairs": pa.array(np.concatenate(pairs), mask=np.repeat([each is None for each in found], counts)),
        "hearing_agents": repeated([None if each is None else each.agents for each in found], counts),
        "kept_pairs": pa.array(kept, pa.binary()),
    }
