"""The port of the pairs of an audience's version, and places of ids in the order of a set of agents."""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.columns import INT, STR, IdColumn


class Pairs(NamedTuple):
    """Pairs of messages and hearers: `rows`, places in a column of senders, and `hearers`, as many ids."""

    rows: NDArray[np.intp]
    hearers: IdColumn


class HeardRows(NamedTuple):
    """Messages of the hearers `low` to `high`: hearer `low + i` has the rows `rows[offsets[i]:offsets[i + 1]]`.

    They ascend by sender (None, ints, strs); those of one sender keep their order.
    """

    low: int
    high: int
    offsets: NDArray[np.int64]
    rows: NDArray[np.intp]


class Hearing(Protocol):
    """Broadcasts, one a row, as some agents hear them: row and hearer are looked up, and no pair is kept."""

    def counts(self) -> NDArray[np.int64]:
        """Return how many rows each hearer hears."""

    def sums(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return for each hearer the sum of the values of its rows: 0 without a row."""

    def extremes(self, values: NDArray[Any], *, largest: bool) -> NDArray[Any]:
        """Return for each hearer the largest or smallest value of its rows; anything without a row."""

    def chunks(self, some: NDArray[np.intp] | None = None) -> Iterator[HeardRows]:
        """Yield the rows of all hearers, in their order, a few hearers at a time.

        Args: some are places of hearers, ascending, in place of all; `low` and `high` count these.
        """


class Edges(Protocol):
    """Pairs of sender and hearer, each once; they do not change."""

    @property
    def pairs(self) -> int:
        """Return the number of pairs."""

    @property
    def digest(self) -> bytes:
        """Return a hash of the pairs, 32 bytes; that of restricted edges is the hash of all."""

    def counts(self, from_ids: IdColumn) -> NDArray[np.int64]:
        """Return for each sender the number of its hearers, 0 where it is none."""

    def expand(self, from_ids: IdColumn) -> Pairs:
        """Return the pairs of each sender, ascending by row, then hearer (ints before strs).

        It makes 16 bytes a pair: pass as many senders at a time as `counts` allows.
        """

    def has(self, from_ids: IdColumn, to_ids: IdColumn) -> NDArray[np.bool_]:
        """Return for each of n pairs whether it is there."""

    def toward(self, hearers: AgentSet) -> "Edges":
        """Return the pairs of some hearers. The first call of `counts` or `expand` takes a pass over the pairs."""

    def of(self, senders: AgentSet) -> "Edges":
        """Return the pairs of some senders, without a copy of them."""

    def hearing(self, hearers: AgentSet, from_ids: IdColumn) -> Hearing:
        """Return the broadcasts of `from_ids`, in any order and any number a sender, as some agents hear them."""


def places_in(agents: AgentSet, ids: IdColumn) -> NDArray[np.intp]:
    """Return the place of each id in the order of a set, -1 where it is none of it."""
    found = np.full(len(ids), -1, np.intp)
    if len(agents.ints):
        places = np.minimum(np.searchsorted(agents.ints, ids.values), len(agents.ints) - 1)
        there = agents.ints[places] == ids.values
        if ids.kinds is not None:
            there &= ids.kinds == INT
        found[there] = places[there]
    if ids.kinds is not None and agents.strings:
        order = {name: len(agents.ints) + place for place, name in enumerate(sorted(agents.strings))}
        table = np.array([order.get(name, -1) for name in ids.strings] or [-1], np.intp)
        named = ids.kinds == STR
        found[named] = table[ids.values[named]]
    return found
