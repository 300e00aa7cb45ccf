"""Ban pairs of agents."""

from collections.abc import Iterable
from typing import Any

from ray_messaging.addressing.channels import AgentId
from ray_messaging.interception.rules.rule import Rule
from ray_messaging.interception.rules.support.ban import Ban
from ray_messaging.interception.rules.support.pairs import Pair, check_pairs, name_of


class EdgeBan(Ban):
    """Block what another rule blocks, and after so many violations of a pair all that its one writes to its other.

    All plain channels count as one receiver. The user is never banned; see `Ban` for what counts.
    """

    def __init__(self, check: Rule, after: int = 3, *, name: str = "edge_ban") -> None:
        super().__init__(check, after, name)

    @property
    def banned(self) -> frozenset[Pair]:
        """Return the (from_id, to_id) pairs that are banned; None: plain channels."""
        return frozenset(self._banned())

    def forgive(self, pairs: Iterable[Pair] | Pair | None = None) -> None:
        """Forget the violations of some pairs, or of one; of all where none is given."""
        self._forgive(None if pairs is None else check_pairs(pairs, self.name))

    def _key(self, from_id: AgentId, to_id: AgentId | None) -> Pair:
        return from_id, to_id

    def _pair(self, key: Any) -> Pair:  # noqa: ANN401 - as Ban's
        return key[0], key[1]

    def _reason(self, key: Any) -> str:  # noqa: ANN401 - as Ban's
        whom = "plain channels" if key[1] is None else name_of(key[1])
        return f"{name_of(key[0])} may no longer write to {whom}: it is banned after {self.after} violation(s)"
