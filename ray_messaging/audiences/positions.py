"""Positions of agents, and the pairs of those that are near each other."""

from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.audiences.adjacency import Adjacency, offsets_of
from ray_messaging.audiences.building import pack, replace_by_places, sorted_side
from ray_messaging.audiences.graph_edges import GraphEdges
from ray_messaging.audiences.places import places_in
from ray_messaging.errors import AudienceTooLarge, ConfigError, InvalidColumns, UnknownName
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.columns import IdColumn

_SAMPLE = 1000  # of how many agents one is looked at, to see whether all pairs must be counted first


class Positions(NamedTuple):
    """Agents, `ids` (ascending int64), at `points`, float64 (n, d); those within `radius` of each other are pairs."""

    ids: NDArray[np.int64]
    points: NDArray[np.float64]
    radius: float
    limit: int

    @classmethod
    def given(cls, ids: IdColumn, points: object, radius: object, limit: int) -> "Positions":
        """Check positions that a user passed; raise InvalidColumns, ConfigError."""
        if isinstance(radius, bool) or not isinstance(radius, int | float | np.number) or not 0 < radius < np.inf:
            raise ConfigError(f"radius={radius!r} must be a number above 0")
        checked = checked_points(points, len(ids))
        if ids.kinds is not None:
            named = next(agent for agent in ids.tolist() if not isinstance(agent, int))
            raise InvalidColumns(f"agents with positions have int ids, not {named!r}")
        order = np.argsort(ids.values, kind="stable")
        return cls(ids.values[order], checked[order], float(radius), limit)

    def moved(self, ids: IdColumn, points: object) -> "Positions":
        """Return the positions after some agents have moved; raise InvalidColumns, UnknownName."""
        checked = checked_points(points, len(ids), self.points.shape[1])
        places = places_in(AgentSet(self.ids), ids)
        if bool((places < 0).any()):
            stranger = ids[int(np.flatnonzero(places < 0)[0])]
            raise UnknownName(f"agent {stranger!r} has no position in this audience", kind="agent", value=stranger)
        after = self.points.copy()
        after[places] = checked
        return self._replace(points=after)

    def edges(self) -> GraphEdges:
        """Return the pairs, both ways, without those of an agent and itself.

        Raises: AudienceTooLarge above the limit, ConfigError without scipy.
        """
        pairs = self._near()
        keys = np.empty(2 * len(pairs), np.int64)
        pack(pairs[:, 0], pairs[:, 1], keys[: len(pairs)])
        pack(pairs[:, 1], pairs[:, 0], keys[len(pairs) :])
        del pairs
        keys.sort()
        present, lengths, others = sorted_side(keys)
        replace_by_places(others, present)
        side = Adjacency(self.ids[present], offsets_of(lengths)[:-1], lengths, others)
        return GraphEdges(side, side, self.digest, positions=self)

    @property
    def digest(self) -> bytes:
        """Return a hash, 32 bytes."""
        digest = blake2b(repr((self.points.shape, self.radius)).encode(), digest_size=32)
        digest.update(self.ids.data)
        digest.update(np.ascontiguousarray(self.points).data)
        return digest.digest()

    def _near(self) -> NDArray[np.int64]:
        try:
            from scipy.spatial import cKDTree  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise ConfigError("audiences of positions need scipy: pip install 'ray-messaging[spatial]'") from error
        tree: Any = cKDTree(self.points, balanced_tree=False, compact_nodes=False)
        few = cKDTree(self.points[:: max(len(self.ids) // _SAMPLE, 1)])
        # An agent is near itself, too.
        about = (few.count_neighbors(tree, self.radius) - few.n) * (len(self.ids) / max(few.n, 1))
        if about > self.limit / 2:
            self._check(int(tree.count_neighbors(tree, self.radius)) - len(self.ids))
        found: NDArray[np.int64] = tree.query_pairs(self.radius, output_type="ndarray")
        self._check(2 * len(found))
        return found

    def _check(self, pairs: int) -> None:
        if pairs > self.limit:
            raise AudienceTooLarge(
                f"radius {self.radius:g} makes {pairs:,} pairs of {len(self.ids):,} agents, the limit is {self.limit:,}"
                ": take a smaller radius, or raise most_pairs=",
                pairs=pairs,
                limit=self.limit,
            )


def checked_points(points: object, rows: int, dimensions: int | None = None) -> NDArray[np.float64]:
    """Return positions that a user passed, float64 (rows, d); raise InvalidColumns."""
    try:
        found = np.array(points, np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidColumns(f"positions must be numbers, an array (n, 2) or (n, 3): {error}") from error
    if found.ndim != 2 or len(found) != rows or found.shape[1] != (dimensions or found.shape[1]) or not found.shape[1]:
        wanted = f"({rows}, {dimensions or 2})"
        raise InvalidColumns(f"positions must have the shape {wanted}, a row for each agent; these have {found.shape}")
    bad = np.flatnonzero(~np.isfinite(found).all(axis=1))
    if len(bad):
        row = int(bad[0])
        where = f"row {row} of the positions is {found[row].tolist()}"
        raise InvalidColumns(f"{where}: each must be a finite number", row=row)
    return found
