"""The broadcasts to one audience that the agents of a group hear in one step."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId
from ray_messaging.audiences.edges import Edges
from ray_messaging.audiences.graph_edges import offsets_of
from ray_messaging.audiences.hearer_pairs import HeardRows, Pairs, places_in
from ray_messaging.errors import InvalidColumns
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.columns import IdColumn
from ray_messaging.model.typed.typed_table import Payloads
from ray_messaging.model.typed.typed_values import column_of, part_of

_VECTORS = 2  # the number of dimensions that a column of vectors has


class HeardColumn(NamedTuple):
    """One value from each broadcast that some agents hear: `agents[i]` hears `values[offsets[i]:offsets[i + 1]]`.

    `from_ids` has the sender of each value. The values of one hearer are ordered by sender.
    """

    agents: Sequence[AgentId]
    offsets: NDArray[np.int64]
    values: NDArray[Any]
    from_ids: IdColumn


class Heard:
    """The broadcasts to one audience, as `agents` hear them.

    Results have one value per agent, in the order of `agents`.

    If a sender has sent several broadcasts, each one counts. No method makes an array with an item for each pair of
    sender and hearer, which would be large.
    """

    def __init__(
        self,
        edges: Edges,
        agents: AgentSet,
        from_ids: IdColumn,
        payloads: Sequence[Payloads | None],
        removed: Pairs | None = None,
    ) -> None:
        """Prepare the values that agents hear.

        Args:
            edges: The pairs of senders and hearers.
            agents: The hearers.
            from_ids: The sender of each broadcast.
            payloads: The payloads of the broadcasts, with one part for each batch (None: the batch has only ids).
            removed: The pairs of hearer and broadcast that rules have blocked (None: none).
        """
        self.agents = agents
        self._order = _by_sender(from_ids)
        if self._order is not None:
            from_ids = from_ids.take(self._order)
            if removed is not None:
                removed = removed._replace(rows=np.argsort(self._order)[removed.rows])
        self._from_ids = from_ids
        self._payloads = payloads
        self._values: dict[str, NDArray[Any]] = {}
        self._hearing = edges.hearing(agents, from_ids)
        self._removed, self._affected = _keys(removed, agents, len(from_ids))

    def __len__(self) -> int:
        return len(self._from_ids)

    def __repr__(self) -> str:
        return f"Heard({len(self):,} broadcasts, {len(self.agents):,} agents)"

    def count(self) -> NDArray[np.int64]:
        """Return the number of broadcasts that each agent hears."""
        counts = self._hearing.counts()
        for chunk in self._rest():
            counts[self._affected[chunk.low : chunk.high]] = np.diff(chunk.offsets)
        return counts

    def sum(self, name: str) -> NDArray[Any]:
        """Return, for each agent, the sum of a column: int64, uint64 or float64.

        It is 0 if the agent hears no broadcast.

        Raises: InvalidColumns if a broadcast lacks the column, or if the column has no numbers.
        """
        return self._by_column(name, self._sums)

    def mean(self, name: str) -> NDArray[np.float64]:
        """Return, for each agent, the mean of a column. It is NaN if the agent hears no broadcast.

        The values are added as float64.

        Raises: InvalidColumns if a broadcast lacks the column, or if the column has no numbers.
        """
        counts = self.count()
        divisors = np.where(counts, counts, np.nan)
        return self._by_column(name, lambda values: self._sums(values.astype(np.float64)) / divisors)

    def max(self, name: str) -> NDArray[np.float64]:
        """Return, for each agent, the largest value of a column. It is NaN if the agent hears no broadcast.

        Raises: InvalidColumns if a broadcast lacks the column, or if the column has no numbers.
        """
        return self._by_column(name, lambda values: self._extremes(values, largest=True))

    def min(self, name: str) -> NDArray[np.float64]:
        """Return, for each agent, the smallest value of a column. It is NaN if the agent hears no broadcast.

        Raises: InvalidColumns if a broadcast lacks the column, or if the column has no numbers.
        """
        return self._by_column(name, lambda values: self._extremes(values, largest=False))

    def column(self, name: str) -> Iterator[HeardColumn]:
        """Yield the values of a column with their senders, for a few agents at a time, in the order of `agents`.

        Raises: InvalidColumns if a broadcast lacks the column.
        """
        values, agents = self._column(name), self.agents.column
        first, low = _first_of_range(self._from_ids), 0
        for chunk in self._hearing.chunks():
            some = np.arange(chunk.low, chunk.high)
            kept = self._without_removed(chunk, some)
            ids = agents.take(slice(low, low := chunk.high)).tolist()
            from_ids = self._from_ids.take(kept.rows) if first is None else IdColumn(kept.rows + first)
            yield HeardColumn(ids, kept.offsets, values.take(kept.rows, axis=0), from_ids)  # type: ignore[arg-type]  # no None

    # -- one number for each agent --------------------------------------------------------------------------------

    def _column(self, name: str) -> NDArray[Any]:
        if name not in self._values:
            values = column_of([*map(part_of, self._payloads)], name)
            self._values[name] = values if self._order is None else values.take(self._order, axis=0)
        return self._values[name]

    def _by_column(self, name: str, reduced: Any) -> NDArray[Any]:  # noqa: ANN401 - a function of an array
        values = self._column(name)
        if values.dtype.kind not in "biuf" or values.ndim > _VECTORS:
            example = repr(values[0])[:50] if len(values) else values.dtype
            raise InvalidColumns(
                f"column {name!r} has values such as {example}, but sums, means and extremes need numbers: read the "
                f"values by column({name!r})",
                column=name,
            )
        if values.ndim == _VECTORS:
            return np.stack([reduced(np.ascontiguousarray(part)) for part in values.T], axis=1)
        result: NDArray[Any] = reduced(values)
        return result

    def _sums(self, values: NDArray[Any]) -> NDArray[Any]:
        values = values.astype({"f": np.float64, "u": np.uint64}.get(values.dtype.kind, np.int64), copy=False)
        sums = self._hearing.sums(values)
        for chunk in self._rest():
            sums[self._affected[chunk.low : chunk.high]] = self._summed(chunk, values)
        return sums

    def _summed(self, chunk: HeardRows, values: NDArray[Any]) -> NDArray[Any]:
        """Return, for each hearer in a chunk, the sum of the values of the broadcasts that it hears.

        Args: `values` has a value for each broadcast. The values of each sender are added first, as `GraphHearing.sums`
        does.
        """
        hearers = np.repeat(np.arange(chunk.high - chunk.low), np.diff(chunk.offsets))
        kinds = 0 if self._from_ids.kinds is None else self._from_ids.kinds
        senders = (self._from_ids.values * 3 + kinds)[chunk.rows]  # the same number for the same sender only
        first = (np.diff(hearers, prepend=-1) | np.diff(senders, prepend=-1)) != 0
        begins = np.flatnonzero(first)
        by_sender = np.zeros(len(begins), values.dtype)
        np.add.at(by_sender, np.cumsum(first) - 1, values[chunk.rows])
        return _reduced_at(np.add, by_sender, hearers[begins], chunk.high - chunk.low)

    def _extremes(self, values: NDArray[Any], *, largest: bool) -> NDArray[np.float64]:
        values = values.astype(np.float64, copy=False)
        found = np.where(self._hearing.counts(), self._hearing.extremes(values, largest=largest), np.nan)
        ufunc = np.maximum if largest else np.minimum
        for chunk in self._rest():
            counts = np.diff(chunk.offsets)
            hearers = np.repeat(np.arange(len(counts)), counts)
            some = _reduced_at(ufunc, values[chunk.rows], hearers, len(counts))
            found[self._affected[chunk.low : chunk.high]] = np.where(counts, some, np.nan)
        return found

    # -- pairs that rules have blocked ----------------------------------------------------------------------------

    def _rest(self) -> Iterator[HeardRows]:
        """Yield, for each hearer for whom a rule has blocked a broadcast, the broadcasts that it still hears."""
        if len(self._affected):
            for chunk in self._hearing.chunks(self._affected):
                yield self._without_removed(chunk, self._affected[chunk.low : chunk.high])

    def _without_removed(self, chunk: HeardRows, hearers: NDArray[np.intp]) -> HeardRows:
        if not len(self._removed):
            return chunk
        counts = np.diff(chunk.offsets)
        keys = np.repeat(hearers, counts) * len(self._from_ids) + chunk.rows
        places = np.minimum(np.searchsorted(self._removed, keys), len(self._removed) - 1)
        kept = self._removed[places] != keys
        before = offsets_of(kept.astype(np.int64))
        return HeardRows(chunk.low, chunk.high, before[chunk.offsets], chunk.rows[kept])


def _by_sender(ids: IdColumn) -> NDArray[np.intp] | None:
    """Return the order of rows by sender; or None if the rows have this order, or if not all senders are ints.

    In this order, rows whose senders have near ids are near each other in memory, so that pairs are looked up faster.
    """
    if ids.kinds is not None or bool((ids.values[1:] >= ids.values[:-1]).all()):
        return None
    return np.argsort(ids.values, kind="stable")


def _first_of_range(ids: IdColumn) -> int | None:
    """Return the first id if the ids are ints that ascend by 1; otherwise None."""
    if ids.kinds is not None or not len(ids) or not bool((np.diff(ids.values) == 1).all()):
        return None
    return int(ids.values[0])


def _keys(removed: Pairs | None, agents: AgentSet, rows: int) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """Return sorted keys `hearer * rows + row`, one for each removed pair, and the hearers in these pairs.

    `row` is the number of the broadcast, and `rows` the number of all broadcasts. Hearers are given by their indexes in
    `agents`. Pairs whose hearers are not in `agents` are left out.
    """
    if removed is None:
        return np.zeros(0, np.int64), np.zeros(0, np.intp)
    hearers = places_in(agents, removed.hearers)
    here = hearers >= 0
    return np.unique(hearers[here] * rows + removed.rows[here]), np.unique(hearers[here])


def _reduced_at(ufunc: np.ufunc, values: NDArray[Any], hearers: NDArray[np.intp], count: int) -> NDArray[Any]:
    """Combine the values of each hearer into one value, by `ufunc`; return 0 for a hearer without values.

    Hearers are numbered from 0 to `count - 1`, and the result has one value for each number.

    Args: `hearers` has the hearer of each value, ascending.
    """
    found = np.zeros(count, values.dtype)
    begins = np.flatnonzero(np.diff(hearers, prepend=-1))
    if len(begins):
        found[hearers[begins]] = ufunc.reduceat(values, begins)
    return found
