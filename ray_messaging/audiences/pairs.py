"""The protocols of the pairs of an audience's version, and the lookup of ids in a set of agents."""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.columns import INT, STR, IdColumn


class Pairs(NamedTuple):
    """Pairs of broadcasts and hearers: `rows` are indexes into a column of senders, `hearers` are the hearers' ids."""

    rows: NDArray[np.intp]
    hearers: IdColumn


class HeardRows(NamedTuple):
    """The broadcasts that the hearers from `low` to before `high` hear, by row number.

    Hearer `low + i` hears the rows `rows[offsets[i]:offsets[i + 1]]`. They ascend by sender (None, ints, strs), and
    those of one sender keep their order.
    """

    low: int
    high: int
    offsets: NDArray[np.int64]
    rows: NDArray[np.intp]


class Hearing(Protocol):
    """Broadcasts, one per row, as some agents hear them.

    Which agent hears which row is looked up, and no pair is stored.
    """

    def counts(self) -> NDArray[np.int64]:
        """Return the number of rows that each hearer hears."""

    def sums(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return, for each hearer, the sum of the values of its rows; 0 if it hears none."""

    def extremes(self, values: NDArray[Any], *, largest: bool) -> NDArray[Any]:
        """Return, for each hearer, the largest or smallest value of its rows; without rows it is undefined."""

    def chunks(self, some: NDArray[np.intp] | None = None) -> Iterator[HeardRows]:
        """Yield the rows of all hearers, in their order, a few hearers at a time.

        Args: with `some`, ascending places of hearers, only these hearers are yielded, and `low` and `high` count only
        these.
        """


class Edges(Protocol):
    """Pairs of sender and hearer, each once. They do not change."""

    @property
    def pairs(self) -> int:
        """Return the number of pairs."""

    @property
    def digest(self) -> bytes:
        """Return a hash of the pairs, 32 bytes.

        That of a restriction, by `toward` or `of`, is the hash of all pairs.
        """

    def counts(self, from_ids: IdColumn) -> NDArray[np.int64]:
        """Return the number of hearers of each sender; 0 for an id that is not a sender."""

    def expand(self, from_ids: IdColumn) -> Pairs:
        """Return the pairs of each sender, ascending by row, then by hearer (ints before strs).

        It needs 16 bytes a pair. `counts` says how many senders can be passed at a time.
        """

    def has(self, from_ids: IdColumn, to_ids: IdColumn) -> NDArray[np.bool_]:
        """Return, for each of n pairs, whether it is among these pairs."""

    def toward(self, hearers: AgentSet) -> "Edges":
        """Return the pairs whose hearers are in a set.

        The first call of `counts` or `expand` on it passes over all its pairs.
        """

    def of(self, senders: AgentSet) -> "Edges":
        """Return the pairs whose senders are in a set, without copying them."""

    def hearing(self, hearers: AgentSet, from_ids: IdColumn) -> Hearing:
        """Return the broadcasts of `from_ids` as some agents hear them.

        A sender may have any number of rows, in any order.
        """


def int_places(ints: NDArray[np.int64], ids: IdColumn) -> NDArray[np.intp]:
    """Return the index of each id in ascending ints, or -1 if it is not there."""
    if not len(ints):
        return np.full(len(ids), -1, np.intp)
    values, low, high = ids.values, int(ints[0]), int(ints[-1])
    if high - low == len(ints) - 1:  # the ints have no gaps, so a subtraction replaces the search
        found = values - low
        missing = (values < low) | (values > high)
    else:
        found = np.searchsorted(ints, values)
        np.minimum(found, len(ints) - 1, out=found)
        missing = ints[found] != values
    if ids.kinds is not None:
        missing |= ids.kinds != INT
    found[missing] = -1
    return found


def places_in(agents: AgentSet, ids: IdColumn) -> NDArray[np.intp]:
    """Return the index of each id in the order of a set of agents, or -1 if it is not in the set."""
    found = int_places(agents.ints, ids)
    if ids.kinds is not None and agents.strings:
        order = {name: len(agents.ints) + place for place, name in enumerate(sorted(agents.strings))}
        table = np.array([order.get(name, -1) for name in ids.strings] or [-1], np.intp)
        named = ids.kinds == STR
        found[named] = table[ids.values[named]]
    return found
