"""Pairs of an audience that is a set of members. Each member hears all others, so no pair is stored."""

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_messaging.audiences.graph_edges import CHUNK, offsets_of
from ray_messaging.audiences.hearer_pairs import HeardRows, Pairs, places_in
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.columns import NONE, IdColumn


class MemberHearing:
    """Broadcasts as agents hear them. An agent marked in `hears` hears all of the broadcasts `rows` except its own.

    `from_ids` has the senders of all broadcasts, by row.
    """

    def __init__(self, agents: AgentSet, hears: NDArray[np.bool_], from_ids: IdColumn, rows: NDArray[np.intp]) -> None:
        said = from_ids.take(rows)
        senders = AgentSet.of(said if said.kinds is None else said.take(said.kinds != NONE))
        # The rows are sorted by sender. So the rows that a hearer has sent, and does not hear, are in one range. Also,
        # floats are added in the same order in each group, so that a sum does not depend on the hearer's group.
        places = places_in(senders, said)
        order = np.argsort(places, kind="stable")
        self._rows, places = rows[order], places[order]
        own = places_in(senders, agents.column)
        self._low = np.where(own < 0, 0, np.searchsorted(places, own))
        self._high = np.where(own < 0, 0, np.searchsorted(places, own, side="right"))
        self._hears = hears

    def counts(self) -> NDArray[np.int64]:
        """Return the number of broadcasts that each hearer hears."""
        return np.where(self._hears, len(self._rows) - (self._high - self._low), 0)

    def sums(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return, for each hearer, the sum of the values of the broadcasts that it hears, or 0 if it hears none.

        Args: `values` has a value for each broadcast.
        """
        return self._reduced(np.add, values[self._rows], values.dtype.type(0))

    def extremes(self, values: NDArray[Any], *, largest: bool) -> NDArray[Any]:
        """Return, for each hearer, the largest or (without `largest`) smallest value of the broadcasts that it hears.

        The result for a hearer that hears none is undefined. `values` has a value for each broadcast.
        """
        return self._reduced(np.maximum if largest else np.minimum, values[self._rows], -np.inf if largest else np.inf)

    def _reduced(self, ufunc: np.ufunc, heard: NDArray[Any], nothing: Any) -> NDArray[Any]:  # noqa: ANN401 - a value
        """Combine, for each hearer, the values of all broadcasts except those that the hearer has sent itself.

        To combine all values and then subtract the hearer's own would not be exact with floats.

        Args: `heard` has the values, sorted by sender. `nothing` is a value that changes no result of `ufunc`, such as
        0 for a sum. It is the result for a hearer in `hears` if the hearer has sent all the broadcasts itself. The
        result for an agent that is not marked in `hears` is 0.
        """
        before = np.append(nothing, ufunc.accumulate(heard)).astype(heard.dtype)
        after = np.append(nothing, ufunc.accumulate(heard[::-1])).astype(heard.dtype)[::-1]
        # A hearer that has sent no rows hears all rows.
        whole = self._low == self._high
        found: NDArray[Any] = np.where(whole, before[-1], ufunc(before[self._low], after[self._high]))
        return np.where(self._hears, found, heard.dtype.type(0))

    def chunks(self, some: NDArray[np.intp] | None = None) -> Iterator[HeardRows]:
        """Yield the rows of the broadcasts that each hearer hears: a few hearers at a time, in the hearers' order.

        Args: `some` has the indexes of the hearers to include, ascending (None: all hearers). With `some`, the yielded
        hearers are numbered by their positions in `some`.
        """
        lows, highs, hears = self._low, self._high, self._hears
        if some is not None:
            lows, highs, hears = lows[some], highs[some], hears[some]
        each = max(CHUNK // max(len(self._rows), 1), 1)
        places = np.arange(len(self._rows))
        for low in range(0, len(hears), each):
            part = slice(low, low + each)
            own = (places >= lows[part, None]) & (places < highs[part, None])
            kept = ~own & hears[part, None]
            rows = np.broadcast_to(self._rows, kept.shape)[kept]
            yield HeardRows(low, low + len(kept), offsets_of(kept.sum(axis=1)), rows)


class MemberEdges:
    """Pairs of each sender with each of `members` except itself.

    A sender need not be a member. `senders` are the agents that may send (None: all). `wanted` are the members to which
    the hearers are restricted (None: all).
    """

    def __init__(
        self, members: AgentSet, digest: bytes, *, senders: AgentSet | None = None, wanted: AgentSet | None = None
    ) -> None:
        self.members = members
        self.digest = digest
        self._senders = senders
        self._wanted = members if wanted is None else wanted

    @classmethod
    def among(cls, members: AgentSet) -> "MemberEdges":
        """Return the pairs of any sender with each of the members except itself."""
        digest = blake2b(b"members", digest_size=32)
        digest.update(members.ints.data)
        for name in sorted(members.strings):
            digest.update(b"\0" + name.encode())
        return cls(members, digest.digest())

    @classmethod
    def everybody(cls, agents: AgentSet) -> "MemberEdges":
        """Return the pairs of all agents with each other.

        The pairs have no digest, because the set of all agents depends on the mailbox, the subtopic and the time.
        """
        return cls(agents, b"")

    @property
    def pairs(self) -> int:
        """Return the number of pairs whose senders are members."""
        senders = self.members if self._senders is None else self.members & self._senders
        return len(senders) * len(self._wanted) - len(senders & self._wanted)

    def places(self, ids: IdColumn) -> NDArray[np.intp]:
        """Return each agent's index among the hearers, or -1 for an agent that is not a hearer."""
        return places_in(self._wanted, ids)

    def _may_send(self, from_ids: IdColumn) -> NDArray[np.bool_]:
        if self._senders is None:
            return np.ones(len(from_ids), np.bool_)
        return places_in(self._senders, from_ids) >= 0

    def counts(self, from_ids: IdColumn) -> NDArray[np.int64]:
        """Return the number of hearers of each sender, or 0 for an id that may not send."""
        counts = len(self._wanted) - (self.places(from_ids) >= 0).astype(np.int64)
        return np.where(self._may_send(from_ids), counts, 0)

    def expand(self, from_ids: IdColumn) -> Pairs:
        """Return the pairs of each sender, in the order of `from_ids`.

        One sender's pairs are ordered by hearer, ints before strs.
        """
        senders, count = np.flatnonzero(self._may_send(from_ids)), len(self._wanted)
        own = self.places(from_ids)[senders]
        rows, places = np.repeat(senders, count), np.tile(np.arange(count), len(senders))
        kept = np.ones(len(rows), np.bool_)
        kept[(np.arange(len(senders)) * count + own)[own >= 0]] = False
        return Pairs(rows[kept], self._wanted.column.take(places[kept]))

    def toward(self, hearers: AgentSet) -> "MemberEdges":
        """Return the pairs whose hearers are in a set."""
        return MemberEdges(self.members, self.digest, senders=self._senders, wanted=self._wanted & hearers)

    def of(self, senders: AgentSet) -> "MemberEdges":
        """Return the pairs whose senders are in a set."""
        both = senders if self._senders is None else senders & self._senders
        return MemberEdges(self.members, self.digest, senders=both, wanted=self._wanted)

    def hearing(self, hearers: AgentSet, from_ids: IdColumn) -> MemberHearing:
        """Return an object that computes what `hearers` hear of the broadcasts that the agents `from_ids` sent."""
        hears = places_in(self._wanted, hearers.column) >= 0
        return MemberHearing(hearers, hears, from_ids, np.flatnonzero(self._may_send(from_ids)))
