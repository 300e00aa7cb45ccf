"""Building of edges: from pairs of ids, chunk by chunk, or from positions of agents, which hear each other if near."""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import check_id
from ray_messaging.audiences.edges import places_in
from ray_messaging.audiences.graph_edges import CHUNK, Adjacency, GraphEdges, offsets_of
from ray_messaging.errors import AudienceTooLarge, ConfigError, InvalidColumns, UnknownName
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.columns import IdColumn

_HALF = np.int64(32)
_LOW = np.int64(2**32 - 1)
_SMALL = 2**31  # ids below it fit into half a key
_DENSE = 2**26  # ids up to it are looked up in a table with a place for each
_SAMPLE = 1000  # about so many agents are looked at, to estimate whether all pairs must be counted first


def build_edges(chunks: Iterable[object]) -> GraphEdges:
    """Build the edges from pairs (sender, hearer), which may be repeated and come in any order.

    It needs 8 bytes a pair in addition to a chunk, and 8 bytes a pair for the result.

    Args: chunks are int arrays (m, 2); each is released before the next one is taken.

    Raises: InvalidColumns for a chunk of another shape or type, with the row if one id is not an int; InvalidAddress
    for an invalid id.
    """
    keys, ids = _packed(chunks)
    keys.sort()
    keys = _distinct(keys)
    senders, out_lengths, heard = sorted_side(keys)
    # Swap the halves, so that the same sort gives the side of the hearers.
    for low in range(0, len(keys), CHUNK):
        part = keys[low : low + CHUNK]
        part[:] = part << _HALF | part >> _HALF
    keys.sort()
    hearers, into_lengths, said = sorted_side(keys)
    del keys
    replace_by_places(heard, hearers)
    replace_by_places(said, senders)
    if ids is not None:
        senders, hearers = ids[senders], ids[hearers]
    return joined_edges(senders, out_lengths, heard, hearers, into_lengths, said)


def joined_edges(
    senders: NDArray[np.int64],
    out_lengths: NDArray[np.int64],
    heard: NDArray[np.int32],
    hearers: NDArray[np.int64],
    into_lengths: NDArray[np.int64],
    said: NDArray[np.int32],
) -> GraphEdges:
    """Build the edges from both of their sides, with their hash.

    `heard` are the hearers of all senders, `said` the senders of all hearers, both as indexes.
    """
    digest = blake2b(digest_size=32)
    for column in (senders, out_lengths, hearers, heard):
        digest.update(len(column).to_bytes(8, "little"))
        digest.update(column.data)
    return GraphEdges(
        Adjacency(senders, offsets_of(out_lengths)[:-1], out_lengths, heard),
        Adjacency(hearers, offsets_of(into_lengths)[:-1], into_lengths, said),
        digest.digest(),
    )


def _packed(chunks: Iterable[object]) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """Return the pairs as keys, with the sender in the upper half, and the ids to which the halves are indexes.

    None instead of the ids: the halves are the ids themselves. An array that grows is moved by the kernel, without a
    copy.
    """
    keys, used = np.empty(CHUNK, np.int64), 0
    large: list[NDArray[Any]] = []
    row = 0
    for chunk in chunks:
        pairs = _checked(chunk, row)
        row += len(pairs)
        if large or (len(pairs) and (int(pairs.min()) < 0 or int(pairs.max()) >= _SMALL)):
            large.append(pairs.astype(np.int64))
            continue
        if used + len(pairs) > len(keys):
            keys.resize(max(used + len(pairs), len(keys) * 3 // 2), refcheck=False)
        pack(pairs[:, 0], pairs[:, 1], keys[used : used + len(pairs)])
        used += len(pairs)
    keys.resize(used, refcheck=False)
    if not large:
        return keys, None
    large.append(np.stack((keys >> _HALF, keys & _LOW), axis=1))
    pairs = np.concatenate(large)
    ids, places = np.unique(pairs, return_inverse=True)
    places = places.reshape(-1, 2)
    keys = np.empty(len(pairs), np.int64)
    pack(places[:, 0], places[:, 1], keys)
    return keys, ids


def pack(senders: NDArray[Any], hearers: NDArray[Any], keys: NDArray[np.int64]) -> None:
    """Write pairs into keys, with the sender in the upper half."""
    for low in range(0, len(keys), CHUNK):
        part = slice(low, low + CHUNK)
        keys[part] = senders[part].astype(np.int64) << _HALF | hearers[part].astype(np.int64)


def _checked(chunk: object, first: int) -> NDArray[Any]:
    """Return a chunk as an int array (m, 2)."""
    pairs = chunk if isinstance(chunk, np.ndarray) else np.array(chunk, object)
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise InvalidColumns(
            f"edges must be an array (m, 2) of sender and hearer, or chunks of it; this one has the shape {pairs.shape}"
        )
    if pairs.dtype.kind == "i":
        return pairs
    for row, ends in enumerate(pairs.tolist()):
        for end in ends:
            if not isinstance(check_id(end), int):
                raise InvalidColumns(
                    f"edge {first + row} is {tuple(ends)!r}: both ends must be int ids; agents with other ids "
                    "join an audience of members=",
                    row=first + row,
                )
    return pairs.astype(np.int64)


def _distinct(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Drop repeated keys from sorted keys, in place."""
    used = 0
    for low in range(0, len(keys), CHUNK):
        part = keys[low : low + CHUNK]
        fresh = np.empty(len(part), np.bool_)
        np.not_equal(part[1:], part[:-1], out=fresh[1:])
        fresh[0] = used == 0 or part[0] != keys[used - 1]
        kept = part if bool(fresh.all()) else part[fresh]
        if used != low or len(kept) != len(part):
            keys[used : used + len(kept)] = kept.copy()
        used += len(kept)
    return keys[:used]


def sorted_side(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
    """Return the distinct upper halves of sorted keys, how many keys each has, and the lower halves of all keys."""
    firsts, others = [], np.empty(len(keys), np.int32)
    before = -1
    for low in range(0, len(keys), CHUNK):
        part = keys[low : low + CHUNK]
        others[low : low + len(part)] = part & _LOW
        upper = part >> _HALF
        begins = np.flatnonzero(np.diff(upper, prepend=before))
        firsts.append(low + begins)
        before = int(upper[-1])
    starts = np.concatenate(firsts) if firsts else np.zeros(0, np.int64)
    return keys[starts] >> _HALF, np.diff(starts, append=len(keys)), others


def replace_by_places(others: NDArray[np.int32], ids: NDArray[np.int64]) -> None:
    """Replace ids by their indexes in the sorted `ids`, in place."""
    if not len(ids) or int(ids[-1]) == len(ids) - 1:
        return  # the ids are the places
    table = None
    if int(ids[-1]) < max(_DENSE, 8 * len(ids)):
        table = np.zeros(int(ids[-1]) + 1, np.int32)
        table[ids] = np.arange(len(ids), dtype=np.int32)
    for low in range(0, len(others), CHUNK):
        part = others[low : low + CHUNK]
        part[:] = np.searchsorted(ids, part) if table is None else table[part]


class Positions(NamedTuple):
    """Agents, `ids` (ascending int64), at `points`, float64 (n, d). Agents within `radius` of each other are pairs."""

    ids: NDArray[np.int64]
    points: NDArray[np.float64]
    radius: float
    limit: int

    @classmethod
    def given(cls, ids: IdColumn, points: object, radius: object, limit: int) -> "Positions":
        """Check positions that a user passed.

        Raises: InvalidColumns if positions or ids are not valid, ConfigError if the radius is not.
        """
        if isinstance(radius, bool) or not isinstance(radius, int | float | np.number) or not 0 < radius < np.inf:
            raise ConfigError(f"radius={radius!r} must be a number above 0")
        checked = checked_points(points, len(ids))
        if ids.kinds is not None:
            named = next(agent for agent in ids.tolist() if not isinstance(agent, int))
            raise InvalidColumns(f"agents with positions have int ids, not {named!r}")
        order = np.argsort(ids.values, kind="stable")
        return cls(ids.values[order], checked[order], float(radius), limit)

    def moved(self, ids: IdColumn, points: object) -> "Positions":
        """Return the positions after some agents have moved.

        Raises: InvalidColumns if the new positions are not valid, UnknownName if an agent has no position yet.
        """
        checked = checked_points(points, len(ids), self.points.shape[1])
        places = places_in(AgentSet(self.ids), ids)
        if bool((places < 0).any()):
            stranger = ids[int(np.flatnonzero(places < 0)[0])]
            raise UnknownName(f"agent {stranger!r} has no position in this audience", kind="agent", value=stranger)
        after = self.points.copy()
        after[places] = checked
        return self._replace(points=after)

    def edges(self) -> GraphEdges:
        """Return the pairs, in both directions, without pairs of an agent with itself.

        Raises: AudienceTooLarge if there are more pairs than the limit, ConfigError if scipy is not installed.
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
        """Return a hash of the positions, 32 bytes."""
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
        # `few.n` is subtracted because each agent is near itself.
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
    """Return positions that a user passed as float64 (rows, d).

    Args: dimensions is the number d that they must have; None: any.

    Raises: InvalidColumns if they have another shape, or are not finite numbers.
    """
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
