"""A rule that bans senders after repeated violations."""

from collections.abc import Iterable
from typing import Any

from ray_messaging.addressing.channels import AgentId, check_id
from ray_messaging.interception.rules.rule import Rule
from ray_messaging.interception.rules.support.ban import Ban
from ray_messaging.interception.rules.support.pairs import Pair, name_of


class SenderBan(Ban):
    """Block all messages of a sender after repeated violations.

    A message that the rule `check` blocks is a violation by its sender. After the first `after` violations, all further
    messages of that sender are blocked. The user is never banned. See `Ban` for the details of counting.

    Args:
        check: the rule that finds violations; any but a slow one.
        after: violations before the ban.
        name: the rule's name.

    Raises: RuleError.
    """

    def __init__(self, check: Rule, after: int = 3, *, name: str = "sender_ban") -> None:
        super().__init__(check, after, name)

    @property
    def banned(self) -> frozenset[AgentId]:
        """Return the banned agents."""
        return frozenset(self._banned())

    def forgive(self, agents: Iterable[AgentId] | AgentId | None = None) -> None:
        """Forget the violations of agents, or of a single agent; by default of all."""
        if agents is None:
            self._forgive(None)
        elif isinstance(agents, Iterable) and not isinstance(agents, str):
            self._forgive({check_id(agent) for agent in agents})
        else:
            self._forgive({check_id(agents)})

    def _key(self, from_id: AgentId, to_id: AgentId | None) -> AgentId:  # noqa: ARG002 - as Ban's
        return from_id

    def _pair(self, key: Any) -> Pair:  # noqa: ANN401 - as Ban's
        return key, None

    def _reason(self, key: Any) -> str:  # noqa: ANN401 - as Ban's
        return f"{name_of(key)} may no longer write to anybody: it is banned after {self.after} violation(s)"
