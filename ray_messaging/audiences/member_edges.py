"""Pairs of an audience of members: each hears all others, and no pair is kept."""

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from ray_messaging.audiences.edges import Hearing, Pairs
from ray_messaging.audiences.member_hearing import MemberHearing
from ray_messaging.audiences.places import places_in
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.columns import IdColumn


class MemberEdges:
    """Pairs of any sender, or one of `senders`, with each of `members` but itself.

    `wanted` are the members that count (None: all).
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
        """Return the pairs of all members."""
        digest = blake2b(b"members", digest_size=32)
        digest.update(members.ints.data)
        for name in sorted(members.strings):
            digest.update(b"\0" + name.encode())
        return cls(members, digest.digest())

    @property
    def pairs(self) -> int:
        """Return the number of pairs of senders that are members, too."""
        senders = self.members if self._senders is None else self.members & self._senders
        return len(senders) * len(self._wanted) - len(senders & self._wanted)

    def places(self, ids: IdColumn) -> NDArray[np.intp]:
        """Return the place of each agent among the members that count, -1 where it is none of them."""
        return places_in(self._wanted, ids)

    def _may_send(self, from_ids: IdColumn) -> NDArray[np.bool_]:
        if self._senders is None:
            return np.ones(len(from_ids), np.bool_)
        return places_in(self._senders, from_ids) >= 0

    def counts(self, from_ids: IdColumn) -> NDArray[np.int64]:
        """Return for each sender the number of its hearers, 0 where it is none."""
        counts = len(self._wanted) - (self.places(from_ids) >= 0).astype(np.int64)
        return np.where(self._may_send(from_ids), counts, 0)

    def expand(self, from_ids: IdColumn) -> Pairs:
        """Return the pairs of each sender, ascending by row, then hearer (ints before strs)."""
        senders, count = np.flatnonzero(self._may_send(from_ids)), len(self._wanted)
        own = self.places(from_ids)[senders]
        rows, places = np.repeat(senders, count), np.tile(np.arange(count), len(senders))
        kept = np.ones(len(rows), np.bool_)
        kept[(np.arange(len(senders)) * count + own)[own >= 0]] = False
        return Pairs(rows[kept], self._wanted.column.take(places[kept]))

    def has(self, from_ids: IdColumn, to_ids: IdColumn) -> NDArray[np.bool_]:
        """Return for each of n pairs whether it is there."""
        hearers, senders = self.places(to_ids), self.places(from_ids)
        found: NDArray[np.bool_] = (hearers >= 0) & (hearers != senders) & self._may_send(from_ids)
        return found

    def toward(self, hearers: AgentSet) -> "MemberEdges":
        """Return the pairs of some hearers."""
        return MemberEdges(self.members, self.digest, senders=self._senders, wanted=self._wanted & hearers)

    def of(self, senders: AgentSet) -> "MemberEdges":
        """Return the pairs of some senders."""
        both = senders if self._senders is None else senders & self._senders
        return MemberEdges(self.members, self.digest, senders=both, wanted=self._wanted)

    def hearing(self, hearers: AgentSet, from_ids: IdColumn) -> Hearing:
        """Return the broadcasts of `from_ids`, in any order and any number a sender, as some agents hear them."""
        hears = places_in(self._wanted, hearers.column) >= 0
        return MemberHearing(hearers, hears, from_ids, np.flatnonzero(self._may_send(from_ids)))
