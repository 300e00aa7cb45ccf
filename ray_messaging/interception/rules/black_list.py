"""A rule that blocks listed pairs of agents."""

from collections.abc import Iterable, Mapping
from typing import Any

from ray_messaging.addressing.channels import AgentId
from ray_messaging.interception.interceptor.rule_tables import Table
from ray_messaging.interception.rules.pairs import FEW_ROWS, Pair, PairIndex, PairTable, blocks, check_pairs, name_of
from ray_messaging.interception.rules.rule import PairCheck, Rule, Verdict
from ray_messaging.model.batch import Batch

__all__ = ["BlackList", "Pair"]


class BlackList(Rule):
    """Block listed (from_id, to_id) pairs.

    None as from_id stands for any agent, but not for the user, whose messages are never blocked. None as to_id stands
    for any agent and any plain channel, which belongs to no agent. Large lists are fast, too. The pairs are stored in
    `state`.

    Args:
        pairs: (from_id, to_id) pairs, or a single pair. A single pair of ids that are tuples must be in a list, as in
            `[((0, 0), (0, 1))]`.
        name: the rule's name.
    Raises: RuleError if `pairs` is not a list of pairs, InvalidAddress if an id is not valid.
    """

    state: Table[int]

    def __init__(self, pairs: Iterable[Pair] | Pair = (), *, name: str = "black_list") -> None:
        self.name = name
        self.state = Table()
        self.set(pairs)

    @property
    def pairs(self) -> frozenset[Pair]:
        """Return the blocked pairs, each as (from_id, to_id)."""
        return frozenset(self.state)

    def set(self, pairs: Iterable[Pair] | Pair) -> None:
        """Replace all pairs. A single pair may be given instead of a list, as in `add` and `remove`."""
        wanted = check_pairs(pairs, self.name)
        self.state.clear()
        self.state.update(dict.fromkeys(wanted, 1))
        self.restored()

    def add(self, pairs: Iterable[Pair] | Pair) -> None:
        """Block more pairs of sender and receiver."""
        for pair in check_pairs(pairs, self.name):
            if pair not in self.state:
                self.state[pair] = 1
                if not self._index.add(pair):
                    self.restored()

    def remove(self, pairs: Iterable[Pair] | Pair) -> None:
        """Remove pairs; ignore pairs that are not listed."""
        for pair in check_pairs(pairs, self.name):
            self.state.pop(pair, None)

    def restored(self) -> None:
        """Build the index of the pairs, after `state` was loaded."""
        self._index = PairIndex(self.state)
        self._listed = self.state.keys()  # a view of the table, in which a lookup is faster than in the table itself

    def __getstate__(self) -> dict[str, Any]:
        # The index is left out, because it is larger than the pairs, and is quickly built again.
        return {key: value for key, value in self.__dict__.items() if key not in ("_index", "_listed")}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self.__dict__.update(kept)
        self.restored()

    def check_batch(self, batch: Batch, exp_id: str) -> Mapping[int, Verdict]:  # noqa: ARG002 - every rule gets it
        """Return verdicts that block the rows whose pair is listed."""
        if not self._listed:
            return {}
        found: dict[int, str] = {}
        few = batch.rows <= FEW_ROWS
        for row in range(batch.rows) if few else self._index.candidates(batch.from_ids, batch.to_ids):
            pair = self._hit(batch.from_ids[row], batch.to_ids[row])
            if pair is not None:
                found[row] = _reason(*pair)
        return blocks(found, found.values()) if found else {}

    def pair_check(self) -> PairCheck | None:
        """Return an object that judges many pairs of sender and hearer of a broadcast at once, by their ids.

        Return None if a subclass overrides `check_batch`, because that method must then judge the pairs.
        """
        if type(self).check_batch is not BlackList.check_batch:
            return None
        return PairCheck(PairTable(self.state).has, "this sender may not write to this hearer")

    def _hit(self, from_id: AgentId | None, to_id: AgentId | None) -> Pair | None:
        if from_id is None:
            return None
        pairs = self._listed
        for pair in ((from_id, to_id), (from_id, None), (None, None), (None, to_id)):
            if pair in pairs:
                return pair
        return None

    def describe(self) -> dict[str, Any]:
        """Return the rule's name and kind, and the number of its pairs."""
        return {**super().describe(), "pairs": len(self.state)}


def _reason(from_id: AgentId | None, to_id: AgentId | None) -> str:
    receiver = "any agent" if to_id is None else name_of(to_id)
    return f"no agent may write to {receiver}" if from_id is None else f"{name_of(from_id)} may not write to {receiver}"
