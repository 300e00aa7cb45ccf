"""Ban senders."""

from collections.abc import Iterable
from typing import Any

from ray_messaging.addressing.channels import AgentId, check_id
from ray_messaging.interception.rules.rule import Rule
from ray_messaging.interception.rules.support.ban import Ban
from ray_messaging.interception.rules.support.pairs import Pair, name_of


class SenderBan(Ban):
    """Block what another rule blocks, and after so many violations of a sender all that it writes to anybody.

    The user is never banned; see `Ban` for what counts.
    """

    def __init__(self, check: Rule, after: int = 3, *, name: str = "sender_ban") -> None:
        super().__init__(check, after, name)

    @property
    def banned(self) -> frozenset[AgentId]:
        """Return the agents that are banned."""
        return frozenset(self._banned())

    def forgive(self, agents: Iterable[AgentId] | AgentId | None = None) -> None:
        """Forget the violations of some agents, or of one; of all where none is given."""
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
