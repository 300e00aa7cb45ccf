"""A rule that bans pairs of agents after repeated violations."""

from collections.abc import Iterable
from typing import Any

from ray_messaging.addressing.channels import AgentId
from ray_messaging.interception.rules.rule import PairCheck, Rule
from ray_messaging.interception.rules.support.ban import Ban
from ray_messaging.interception.rules.support.pair_table import PairTable
from ray_messaging.interception.rules.support.pairs import Pair, check_pairs, name_of


class EdgeBan(Ban):
    """Block all messages between a sender and a receiver after repeated violations.

    A message that the rule `check` blocks is a violation by its pair. After the first `after` violations, all further
    messages from that sender to that receiver are blocked. All plain channels count as one receiver. The user is never
    banned. See `Ban` for the details of counting. Banned pairs do not hear broadcasts. A broadcast that the check
    blocks as one message is a violation like one to a plain channel.

    Args:
        check: the rule that finds violations; any but a slow one.
        after: violations before the ban.
        name: the rule's name.

    Raises: RuleError.
    """

    def __init__(self, check: Rule, after: int = 3, *, name: str = "edge_ban") -> None:
        super().__init__(check, after, name)

    @property
    def banned(self) -> frozenset[Pair]:
        """Return the banned (from_id, to_id) pairs; None stands for plain channels."""
        return frozenset(self._banned())

    def forgive(self, pairs: Iterable[Pair] | Pair | None = None) -> None:
        """Forget the violations of pairs, or of a single pair; by default of all."""
        self._forgive(None if pairs is None else check_pairs(pairs, self.name))

    def pair_check(self) -> PairCheck | None:
        """Return the check of banned pairs, where the rule's own check judges a broadcast as one message."""
        if self.judges_broadcasts == "pair":
            return None
        heard = (pair for pair in self._banned() if pair[1] is not None)
        return PairCheck(PairTable(heard).has, f"this pair is banned after {self.after} violation(s)")

    def _key(self, from_id: AgentId, to_id: AgentId | None) -> Pair:
        return from_id, to_id

    def _pair(self, key: Any) -> Pair:  # noqa: ANN401 - as Ban's
        return key[0], key[1]

    def _reason(self, key: Any) -> str:  # noqa: ANN401 - as Ban's
        receiver = "plain channels" if key[1] is None else name_of(key[1])
        return f"{name_of(key[0])} may no longer write to {receiver}: it is banned after {self.after} violation(s)"
