"""Building of an audience's pairs of sender and hearer: from pairs of ids, in chunks, or from positions of agents."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import check_id
from ray_messaging.audiences.graph_edges import CHUNK, Adjacency, GraphEdges, gathered, offsets_of
from ray_messaging.common.operating_system import usable_cores
from ray_messaging.errors import AudienceTooLarge, ConfigError, InvalidColumns, UnknownName
from ray_messaging.model.agent_sets import int_places
from ray_messaging.model.columns import IdColumn

_HALF = np.int64(32)
_LOW = np.int64(2**32 - 1)
_SMALL = 2**31  # an id below this fits into half of a key
_DENSE = 2**26  # ids below this are looked up in a table that has an item for each possible id
_SPARE = 16  # a table of cells may have this many items for each agent
# Along the first axis, a radius is about as long as this many cells. More cells would save only a few comparisons.
_PARTS = 4
# The square of a much smaller radius would be 0. The square of a radius far above 1 / _LEAST_RADIUS would be infinite.
_LEAST_RADIUS = 1e-150
_BLOCK = 4096  # how many points a thread handles in one piece of work
_COUNTED = 2**26  # if there are more pairs than the limit, at most this many distances are compared to count the pairs
_THREADS = 4  # more threads would wait for each other, because some code of numpy runs in only one thread at a time


def build_edges(chunks: Iterable[object]) -> GraphEdges:
    """Build the edges from pairs (sender, hearer), which may be repeated and come in any order.

    This needs memory for one chunk, and 8 bytes for each given pair and for each pair of the result.

    Args: `chunks` are int arrays (m, 2). Each chunk is released before the next one is taken.
    Raises: InvalidColumns if a chunk has another shape, or if an id is not an int (the error then has the row of this
    id); InvalidAddress for an invalid id.
    """
    keys, ids = _packed(chunks)
    keys.sort()
    keys = _distinct(keys)
    out = _sorted_side(keys)
    # The halves of each key are swapped. Then the same sort gives the arrays by hearer.
    for low in range(0, len(keys), CHUNK):
        part = keys[low : low + CHUNK]
        part[:] = part << _HALF | part >> _HALF
    keys.sort()
    into = _sorted_side(keys)
    del keys
    replace_by_places(out.others, into.ids)
    replace_by_places(into.others, out.ids)
    if ids is not None:
        out, into = out._replace(ids=ids[out.ids]), into._replace(ids=ids[into.ids])
    digest = blake2b(digest_size=32)
    for column in (out.ids, out.lengths, into.ids, out.others):
        digest.update(len(column).to_bytes(8, "little"))
        digest.update(column.data)
    return GraphEdges(out, into, digest.digest())


def _packed(chunks: Iterable[object]) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """Return the pairs as keys, and the ids. A key has the sender in its upper half and the hearer in its lower half.

    The halves of the keys are indexes into the ids. If the ids are None, the halves are the ids themselves. The array
    of keys can grow without a copy, because the kernel moves its memory.
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
    """Write pairs into `keys`: the sender is in the upper half of a key, the hearer in the lower half."""
    for low in range(0, len(keys), CHUNK):
        part = slice(low, low + CHUNK)
        keys[part] = senders[part].astype(np.int64) << _HALF | hearers[part].astype(np.int64)


def _checked(chunk: object, first: int) -> NDArray[Any]:
    """Return a chunk of pairs as an int array (m, 2). For errors, `first` is the number of the chunk's first pair."""
    pairs = chunk if isinstance(chunk, np.ndarray) else np.array(chunk, object)
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise InvalidColumns(
            "edges must be an array of shape (m, 2), a sender and a hearer in each row, or an iterable of such "
            f"arrays; the given array has the shape {pairs.shape}"
        )
    if pairs.dtype.kind == "i":
        return pairs
    for row, ends in enumerate(pairs.tolist()):
        for end in ends:
            if not isinstance(check_id(end), int):
                raise InvalidColumns(
                    f"edge {first + row} is {tuple(ends)!r}: both ends must be int ids; agents whose ids are strs "
                    "need an audience that is made with members=",
                    row=first + row,
                )
    return pairs.astype(np.int64)


def _distinct(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return sorted keys without the repeated ones. The result is the first part of `keys`, which is overwritten."""
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


def _sorted_side(keys: NDArray[np.int64]) -> Adjacency:
    """Build an adjacency from sorted keys: the upper half of a key is an agent's id, the lower half a neighbour."""
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
    return Adjacency(keys[starts] >> _HALF, starts, np.diff(starts, append=len(keys)), others)


def replace_by_places(others: NDArray[np.int32], ids: NDArray[np.int64]) -> None:
    """Replace the ids in `others` by their indexes in the sorted `ids`, in place."""
    if not len(ids) or int(ids[-1]) == len(ids) - 1:
        return  # the ids have no gaps, so each id is its own index
    table = None
    if int(ids[-1]) < max(_DENSE, 8 * len(ids)):
        table = np.zeros(int(ids[-1]) + 1, np.int32)
        table[ids] = np.arange(len(ids), dtype=np.int32)
    for low in range(0, len(others), CHUNK):
        part = others[low : low + CHUNK]
        part[:] = np.searchsorted(ids, part) if table is None else table[part]


class Positions(NamedTuple):
    """The positions of agents: `ids` (ascending int64) are at `points`, float64 (n, d).

    Two agents that are at most `radius` apart are a pair. There may be at most `limit` pairs.
    """

    ids: NDArray[np.int64]
    points: NDArray[np.float64]
    radius: float
    limit: int

    @classmethod
    def given(cls, ids: IdColumn, points: object, radius: object, limit: int) -> "Positions":
        """Check positions of agents that a user passed, and return them.

        Raises: InvalidColumns if positions or ids are not valid, ConfigError if the radius is not valid.
        """
        if isinstance(radius, bool) or not isinstance(radius, int | float | np.number) or not 0 < radius < np.inf:
            raise ConfigError(f"radius={radius!r} must be a finite number above 0")
        if not _LEAST_RADIUS <= radius <= 1 / _LEAST_RADIUS:
            raise ConfigError(
                f"radius={radius!r} must be between {_LEAST_RADIUS:g} and {1 / _LEAST_RADIUS:g}, because floats "
                "cannot hold the square of a smaller or larger radius exactly enough: use another unit of length"
            )
        checked = checked_points(points, len(ids))
        if ids.kinds is not None:
            named = next(agent for agent in ids.tolist() if not isinstance(agent, int))
            raise InvalidColumns(
                f"agents with positions must have int ids, but one has the id {named!r}: give these agents numbers "
                "as ids"
            )
        order = np.argsort(ids.values, kind="stable")
        return cls(ids.values[order], checked[order], float(radius), limit)

    def moved(self, ids: IdColumn, points: object) -> "Positions":
        """Return the positions after some agents have moved.

        Raises: InvalidColumns if the new positions are not valid, UnknownName if an agent has no position yet.
        """
        checked = checked_points(points, len(ids), self.points.shape[1])
        places = int_places(self.ids, ids)
        if bool((places < 0).any()):
            stranger = ids[int(np.flatnonzero(places < 0)[0])]
            raise UnknownName(
                f"agent {stranger!r} has no position in this audience, so it cannot be moved: only agents whose "
                "positions were passed to create_audience can be moved",
                kind="agent",
                value=stranger,
            )
        after = self.points.copy()
        after[places] = checked
        return self._replace(points=after)

    def edges(self) -> GraphEdges:
        """Return the pairs of agents near each other, each in both directions. An agent is not paired with itself.

        Raises: AudienceTooLarge if there are more pairs than the limit.
        """
        lengths, others = self._near()
        present = np.flatnonzero(lengths)
        replace_by_places(others, present)
        lengths = lengths[present]
        side = Adjacency.of(self.ids[present], lengths, others)
        return GraphEdges(side, side, self.digest, positions=self)

    @property
    def digest(self) -> bytes:
        """Return a hash, 32 bytes, of the agents, their positions and the radius."""
        digest = blake2b(repr((self.points.shape, self.radius)).encode(), digest_size=32)
        digest.update(self.ids.data)
        digest.update(np.ascontiguousarray(self.points).data)
        return digest.digest()

    def _near(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return the number of neighbours of each agent, and all neighbours' indexes, ascending for each agent."""
        lengths, found, parts = np.zeros(len(self.ids), np.int64), 0, list[_Neighbours]()
        if not len(lengths):
            return lengths, np.zeros(0, np.int32)
        grid = _Grid(self.points, self.radius, self.limit)
        with ThreadPoolExecutor(min(_THREADS, usable_cores())) as pool:
            for some in pool.map(grid.near, grid.blocks()):
                for part in some:
                    lengths[part.agents] = part.lengths
                    found += len(part.others)
                parts += some
            if found > self.limit:
                raise self._too_large(grid)
            starts, others = offsets_of(lengths), np.empty(found, np.int32)

            def put(part: _Neighbours) -> None:
                others[gathered(starts[part.agents], part.lengths)] = part.others

            for _ in pool.map(put, parts):
                pass
        return lengths, others

    def _too_large(self, grid: "_Grid") -> AudienceTooLarge:
        pairs, exact = grid.count()
        number = f"{'' if exact else 'about '}{pairs:,}"
        return AudienceTooLarge(
            f"radius {self.radius:g} makes {number} pairs of {len(self.ids):,} agents, the limit is {self.limit:,}"
            ": take a smaller radius, or raise most_pairs=",
            pairs=pairs,
            limit=self.limit,
        )


class _Neighbours(NamedTuple):
    """Some agents, each with the number of its neighbours (`lengths`), and the neighbours of all of them (`others`).

    Agents and neighbours are given as indexes. `others` has the first agent's neighbours, ascending, then the second
    agent's, and so on.
    """

    agents: NDArray[np.intp]
    lengths: NDArray[np.int64]
    others: NDArray[np.uint32]


class _Grid:
    """Points, sorted by the cells of a grid, so that the points near each point can be found fast.

    In this order, all points that could be near a given point are in a few ranges. The place of a point is its index in
    this order. Cells form rows along the first axis, and only rows with points have a number. The search ends when more
    pairs than the limit were found.
    """

    def __init__(self, points: NDArray[np.float64], radius: float, limit: int) -> None:
        # `side` is the length of a cell. Only along the first axis, a cell has the length `side / _PARTS`. `side` is a
        # little longer than the radius, so that despite rounding errors the search reaches the cells of all points
        # within the radius.
        side = max(radius * (1 + 2.0**-16), 2.0**-1000)
        first, *others = (_cells(column, side, 1 if axis else _PARTS) for axis, column in enumerate(points.T[:3]))
        rows, around = np.zeros(len(points), np.int64), np.zeros(1, np.int64)
        for cells in others:
            # An empty cell separates the last cell of a row from the first cell of the next row.
            width = int(cells.max()) + 2
            rows = rows * width + cells
            around = np.add.outer(around * width, np.arange(-1, 2)).ravel()
        distinct, rows = np.unique(rows, return_inverse=True)
        wanted = distinct[:, None] + around
        self._around = np.searchsorted(distinct, wanted)  # for each row of cells, the row itself and the rows near it
        # A nearby row without points gets the number `len(distinct)`. It stands for an empty row after all others.
        self._around[distinct.take(self._around, mode="clip") != wanted] = len(distinct)
        self._own = len(around) // 2
        # Each row of cells ends with as many empty cells as are searched on each side of a point.
        self._width = int(first.max()) + 1 + _PARTS
        keys = rows * self._width + first + _PARTS
        self._order = np.argsort(keys)
        self._keys, self._rows = keys[self._order], rows[self._order]
        self._columns = [column[self._order] for column in points.T]
        self._square, self._limit, self._found = radius * radius, limit, 0
        self._begins: NDArray[np.intp] | None = None
        last = (len(distinct) + 1) * self._width + _PARTS
        if last < _SPARE * (len(points) + CHUNK):
            self._begins = offsets_of(np.bincount(self._keys, minlength=last))

    def _before(self, keys: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return, for each key of a cell, how many points are in cells with smaller keys."""
        return np.searchsorted(self._keys, keys) if self._begins is None else self._begins.take(keys)

    def blocks(self, step: int = 1) -> Iterator[range]:
        """Return the places of every `step`-th point, cut into blocks."""
        places = range(0, len(self._keys), step)
        return (places[low : low + _BLOCK] for low in range(0, len(places), _BLOCK))

    def near(self, block: range) -> list[_Neighbours]:
        """Return the neighbours of the points at the places `block` in the grid's order.

        If more pairs than the limit are found, the search ends, so that some or all neighbours are missing.
        """
        found, size = list[_Neighbours](), len(self._keys)
        for piece, places, ends, near in self._compared(block):
            if self._found > self._limit:
                break
            kept = np.flatnonzero(near)
            lengths = np.diff(np.searchsorted(kept, ends), prepend=0)
            others = self._order.take(places.take(kept)).astype(np.uint32)
            firsts = np.repeat((np.arange(len(piece)) * size).astype(np.uint32), lengths)
            others += firsts
            others.sort()
            others -= firsts
            # Another thread may change this count at the same time, so that some pairs are not counted. This does no
            # harm: the search ends a little later.
            self._found += len(others)
            found.append(_Neighbours(self._order[piece.start : piece.stop], lengths, others))
        return found

    def count(self) -> tuple[int, bool]:
        """Return the number of pairs, and whether it is exact. If points are crowded, the number is an estimate."""
        distances = sum(int(self._candidates(block)[1].sum()) for block in self.blocks())
        step = -(-distances // _COUNTED)
        seen = pairs = 0
        for block in self.blocks(step):
            seen += len(block)
            pairs += sum(int(np.count_nonzero(near)) for *_, near in self._compared(block))
        return pairs * len(self._keys) // seen, step == 1

    def _candidates(self, block: range) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the begins and the lengths of the ranges of points that may be near the points of a block.

        Both arrays have one row for each point of the block, and one column for each row of cells near the point.
        """
        of = slice(block.start, block.stop, block.step)
        keys = self._around[self._rows[of]] * self._width + (self._keys[of] % self._width)[:, None]
        begins = self._before(keys - _PARTS)
        return begins, self._before(keys + (_PARTS + 1)) - begins

    def _compared(self, block: range) -> Iterator[tuple[range, NDArray[np.intp], NDArray[np.int64], NDArray[np.bool_]]]:
        """Compare the points of a block with the points around them, in pieces.

        For each piece of the block, yield the piece's points as a range, and three arrays `places`, `ends` and `near`.
        `places` has the points with which the first point of the piece is compared, then those for the second point,
        and so on. For each point of the piece, `ends` has the index in `places` at which its part ends. `near` says for
        each item of `places` whether the two compared points are near each other.
        """
        begins, counts = (side.ravel() for side in self._candidates(block))
        ends = np.cumsum(counts)
        # The arrays of one piece must fit into the processor's cache. `_Grid.near` sorts 32-bit numbers that are below
        # `len(piece) * len(self._keys)`, so this product may be at most 2**32.
        pieces = min(max(-(-int(ends[-1]) // CHUNK), -(-len(block) * len(self._keys) >> 32)), len(block))
        if pieces > 1:
            bounds = np.linspace(0, len(block), pieces + 1).astype(int).tolist()
            for low, high in pairwise(bounds):
                yield from self._compared(block[low:high])
            return
        begins -= ends - counts
        places = np.repeat(begins, counts)
        places += np.arange(len(places))
        ranges = len(counts) // len(block)
        ends = ends[ranges - 1 :: ranges]
        near = self._squares(places, block, np.diff(ends, prepend=0)) <= self._square
        # A point is not a neighbour of itself.
        near[np.arange(block.start, block.stop, block.step) - begins[self._own :: ranges]] = False
        yield block, places, ends, near

    def _squares(self, places: NDArray[np.intp], block: range, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the squared distances between the points of a block and other points.

        Args: `places` has the indexes of the other points: first `counts[0]` indexes for point 0 of the block, and so
        on.
        """
        squares, of = np.zeros(1), slice(block.start, block.stop, block.step)
        with np.errstate(over="ignore"):  # for a point that is very far away, the square is infinite
            for column in self._columns:
                ways = column.take(places)
                ways -= np.repeat(column[of], counts)
                ways *= ways
                squares = np.add(squares, ways, out=ways)
        return squares


def _cells(values: NDArray[np.float64], side: float, parts: int) -> NDArray[np.int64]:
    """Divide the range of values into cells, which are numbered from 0; return the cell of each value.

    If two values differ by less than `side`, their cells differ by at most `parts`.
    """
    # Values are halved, because the difference of two halves is always finite.
    halves, scale = values / 2, parts / (side / 2)
    low = halves.min()
    cells: NDArray[np.int64]
    if halves.max() - low < side / 2 * len(values):
        cells = ((halves - low) * scale).astype(np.int64)
        return cells
    # Large gaps between values are closed, so that there are not many more cells than values.
    order = np.argsort(halves)
    halves = halves[order]
    begins = np.flatnonzero(np.diff(halves, prepend=-np.inf) > side / 2)
    counts = np.diff(begins, append=len(values))
    sorted_ = ((halves - np.repeat(halves[begins], counts)) * scale).astype(np.int64)
    sorted_ += np.repeat(offsets_of(sorted_[begins + counts - 1] + parts + 1)[:-1], counts)
    cells = np.empty(len(values), np.int64)
    cells[order] = sorted_
    return cells


def checked_points(points: object, rows: int, dimensions: int | None = None) -> NDArray[np.float64]:
    """Check positions that a user passed, and return them as float64 (rows, d).

    Args: `dimensions` is the d that the positions must have; None: any d.
    Raises: InvalidColumns if the positions have another shape, or are not finite numbers.
    """
    try:
        found = np.array(points, np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidColumns(
            f"positions must be numbers, in an array of shape (n, d), such as (n, 2) ({error})"
        ) from error
    if found.ndim != 2 or len(found) != rows or found.shape[1] != (dimensions or found.shape[1]) or not found.shape[1]:
        raise InvalidColumns(
            f"positions must have the shape ({rows}, {dimensions or 'd'}), a row for each agent and a column for each "
            f"coordinate; the given positions have the shape {found.shape}"
        )
    bad = np.flatnonzero(~np.isfinite(found).all(axis=1))
    if len(bad):
        row = int(bad[0])
        where = f"row {row} of the positions is {found[row].tolist()}"
        raise InvalidColumns(f"{where}: each coordinate must be a finite number", row=row)
    return found
