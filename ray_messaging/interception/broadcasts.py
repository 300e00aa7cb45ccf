"""Broadcasts as rules see them, with a row for each hearer; and a cache of the pairs that rules block.

A pair consists of the ids of a broadcast's sender and of one of its hearers.
"""

from collections import OrderedDict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.audiences.graph_edges import gathered
from ray_messaging.interception.rules.rule import PairCheck, Rule
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import NONE, IdColumn
from ray_messaging.model.extension import AudiencePairs

KEPT_ENTRIES = 2**24  # at most this many pairs and senders are cached, over all rules and audiences (128 MiB)
_KEPT_CHECKS = 16
_NONE = np.zeros(0, np.int64)


class PairRows(NamedTuple):
    """Which rows of a batch belong to which broadcast.

    Broadcast i has rows `starts[i]` to `ends[i] - 1`, one for each hearer.
    """

    audience: AudiencePairs
    starts: NDArray[np.intp]
    ends: NDArray[np.intp]

    @property
    def counts(self) -> NDArray[np.intp]:
        """Return the number of rows of each broadcast."""
        return self.ends - self.starts

    def bounds(self, broadcast: int) -> tuple[int, int]:
        """Return the first row of a broadcast, and the row after its last row."""
        return int(self.starts[broadcast]), int(self.ends[broadcast])

    def rows_of(self, broadcasts: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the numbers of all rows of some broadcasts. `broadcasts` has the numbers of these broadcasts."""
        return gathered(self.starts[broadcasts], self.counts[broadcasts])


def pair_rows(batch: Batch) -> PairRows | None:
    """Return the rows of a batch grouped by broadcast, or None if the batch has no broadcasts."""
    extension = batch.extension
    if extension is None or extension.audience is None or not batch.rows:
        return None
    # Without `numbers`, each row is a whole broadcast: either it has a single hearer, or it is not divided into a row
    # for each hearer.
    if batch.numbers is None:
        starts = np.arange(batch.rows)
    else:
        starts = np.flatnonzero(np.diff(batch.numbers.astype(np.int64), prepend=-1))
    return PairRows(extension.audience, starts, np.append(starts[1:], batch.rows))


def once_each(batch: Batch, rows: PairRows) -> Batch:
    """Return a batch with one row for each broadcast, for rules that judge a broadcast as one message.

    In these rows, the recipient is None.
    """
    made = batch.take(rows.starts)
    made.to_ids = IdColumn(np.zeros(made.rows, np.int64), np.full(made.rows, NONE, np.uint8))
    return made


class BarredPairs:
    """A cache of the pairs of sender and hearer that a rule blocks in one version of an audience.

    An audience is a named set of pairs, which says who hears whose broadcasts.

    The rule's check judges a sender's pairs at the sender's first broadcast. If the cache has room for the blocked
    pairs, later broadcasts of the sender use the cache. A blocked pair is stored as the index of its hearer among the
    sender's hearers. If a batch has a sender whose id is not an int, the cache is not used for the batch.
    """

    def __init__(self, check: PairCheck) -> None:
        self.check = check
        self._senders = _NONE  # the senders in the cache, ascending
        self._hearers = _NONE  # the number of hearers of each sender in the cache
        # `_places[_ends[i] : _ends[i + 1]]` has the blocked hearers of sender i, as indices among the sender's hearers.
        self._ends = np.zeros(1, np.int64)
        self._places = _NONE

    @property
    def size(self) -> int:
        """Return the number of pairs and senders in the cache."""
        return len(self._places) + len(self._senders)

    def rows(self, batch: Batch, pairs: PairRows, room: int) -> NDArray[np.intp]:
        """Return the numbers of the rows that the rule blocks, in ascending order.

        New senders and their blocked pairs are added to the cache, if the cache then has at most `room` entries.
        """
        if batch.from_ids.kinds is not None:
            return np.flatnonzero(self.check.bars(batch.from_ids, batch.to_ids))
        senders = batch.from_ids.values[pairs.starts]
        known = self._known(senders, pairs.counts)
        kept, new = self._kept_rows(senders, pairs, np.flatnonzero(known)), np.flatnonzero(~known)
        if not len(new):
            return np.sort(kept)
        looked = pairs.rows_of(new)
        found = looked[self.check.bars(batch.from_ids.take(looked), batch.to_ids.take(looked))]
        self._learn(senders, pairs, found, new, room)
        return np.sort(np.concatenate([kept, found]))

    def _known(self, senders: NDArray[np.int64], counts: NDArray[np.intp]) -> NDArray[np.bool_]:
        if not len(self._senders):
            return np.zeros(len(senders), np.bool_)
        at = np.minimum(np.searchsorted(self._senders, senders), len(self._senders) - 1)
        found: NDArray[np.bool_] = (self._senders[at] == senders) & (self._hearers[at] == counts)
        return found

    def _kept_rows(self, senders: NDArray[np.int64], pairs: PairRows, chosen: NDArray[np.intp]) -> NDArray[np.intp]:
        at = np.searchsorted(self._senders, senders[chosen])
        counts = self._ends[at + 1] - self._ends[at]
        kept = self._places[gathered(self._ends[at], counts)]
        rows: NDArray[np.intp] = kept + np.repeat(pairs.starts[chosen], counts)
        return rows

    def _learn(
        self, senders: NDArray[np.int64], pairs: PairRows, found: NDArray[np.intp], new: NDArray[np.intp], room: int
    ) -> None:
        """Add senders that are not in the cache yet to the cache, with their blocked pairs.

        If there is not enough room for all new senders and their pairs, add none.

        Args: `found` has the numbers of the blocked rows, and `new` the numbers of the broadcasts on which the cache
        could not decide. Afterwards, the cache may have at most `room` entries.
        """
        new = new[np.unique(senders[new], return_index=True)[1]]
        new = new[~np.isin(senders[new], self._senders)]
        low, high = np.searchsorted(found, [pairs.starts[new], pairs.ends[new]])
        places = found[gathered(low, high - low)] - np.repeat(pairs.starts[new], high - low)
        if self.size + len(places) + len(new) > room:
            return
        every = np.concatenate([self._senders, senders[new]])
        order = np.argsort(every)
        counts = np.concatenate([np.diff(self._ends), high - low])
        starts = np.cumsum(counts) - counts
        self._places = np.concatenate([self._places, places])[gathered(starts[order], counts[order])]
        self._senders = every[order]
        self._hearers = np.concatenate([self._hearers, pairs.counts[new]])[order]
        self._ends = np.concatenate([[0], np.cumsum(counts[order])])


class Intersections:
    """A cache, limited in size, of the pairs of sender and hearer that each rule blocks in each version of an audience.

    An audience is a named set of pairs, which says who hears whose broadcasts. The pairs of a rule are dropped if the
    rule changes.
    """

    def __init__(self, most: int = KEPT_ENTRIES) -> None:
        self._most = most
        # Both caches keep a reference to the rule, because Python could give another rule the id() of a rule that no
        # longer exists. The version shows whether the rule has changed.
        self._entries: OrderedDict[tuple[AudiencePairs, int], tuple[Rule, int, BarredPairs]] = OrderedDict()
        self._checks: OrderedDict[int, tuple[Rule, int, PairCheck | None]] = OrderedDict()

    def check(self, rule: Rule) -> PairCheck | None:
        """Return the check by which a rule judges pairs by their ids, or None if the rule has no such check.

        The check is made anew if the rule's state has changed.
        """
        version = _version(rule)
        known = self._checks.pop(id(rule), None)
        if known is None or known[0] is not rule or known[1] != version:
            known = rule, version, rule.pair_check()
        self._checks[id(rule)] = known
        if len(self._checks) > _KEPT_CHECKS:
            self._checks.popitem(last=False)
        return known[2]

    def rows(self, rule: Rule, check: PairCheck, batch: Batch, pairs: PairRows) -> NDArray[np.intp]:
        """Return the numbers of the rows whose pair of sender and hearer a rule blocks by the ids, in ascending order.

        The batch must have a row for every hearer of its broadcasts.
        """
        # The audience of all agents has no version. Its pairs may change at any time, so they are not cached.
        if not pairs.audience.version:
            return np.flatnonzero(check.bars(batch.from_ids, batch.to_ids))
        key, version = (pairs.audience, id(rule)), _version(rule)
        kept = self._entries.pop(key, None)
        if kept is None or kept[0] is not rule or kept[1] != version:
            kept = rule, version, BarredPairs(check)
        found = kept[2].rows(batch, pairs, self._most)
        self._entries[key] = kept
        while len(self._entries) > 1 and self.size > self._most:
            self._entries.popitem(last=False)
        return found

    @property
    def size(self) -> int:
        """Return the number of pairs and senders in the cache."""
        return sum(barred.size for *_, barred in self._entries.values())


def _version(rule: Rule) -> int:
    return 0 if rule.state is None else rule.state.version
