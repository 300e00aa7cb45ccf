"""A rule that limits contacts and blocked messages per round."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ray_messaging.addressing.channels import AgentId
from ray_messaging.errors import RuleError
from ray_messaging.interception.rules.rule import Rule, Verdict
from ray_messaging.interception.rules.support.grouping import group
from ray_messaging.interception.rules.support.pairs import blocks, name_of
from ray_messaging.interception.server.state.table import Table
from ray_messaging.model.batch import Batch

_BEGUN = None  # the key in `state` that marks a begun round


class RoundQuota(Rule):
    """Limit, for each agent and round, the agents that it writes to, and its blocked messages.

    The user has no quota. `state` holds the round's contacts under (from_id, to_id), and under from_id the number of an
    agent's blocked messages when the round began.

    Args:
        contacts: most agents that one agent may write to in a round; to these it may write again. Plain channels are
            no contacts. Each hearer of a broadcast is one.
        blocked: once this many messages of an agent were blocked in a round, by any rule, all its messages are blocked
            until `new_round`, also to plain channels. Messages blocked in the current batch count from the next one on.
        name: the rule's name.

    Raises: RuleError.
    """

    state: Table[int]

    def __init__(self, contacts: int | None = None, blocked: int | None = None, *, name: str = "round_quota") -> None:
        if contacts is None and blocked is None:
            raise RuleError("a quota needs contacts, blocked, or both: give a number", rule=name)
        for what, value, least in (("contacts", contacts, 0), ("blocked", blocked, 1)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise RuleError(f"{what}={value!r} cannot be a quota: give an int of at least {least}", rule=name)
        self.name = name
        self.contacts = contacts
        self.blocked = blocked
        self.judges_broadcasts = "message" if contacts is None else "pair"
        self.state = Table()
        self.restored()

    def restored(self) -> None:
        """Count the contacts of each agent."""
        self._met = Counter(key[0] for key in self.state if isinstance(key, tuple))

    def new_round(self) -> None:
        """Reset contacts and blocked messages."""
        self.state.clear()
        self.restored()
        self._begin()

    def check_batch(self, batch: Batch, exp_id: str) -> Mapping[int, Verdict]:  # noqa: ARG002 - a Rule's
        """Return blocks for the rows above a quota."""
        found = {} if self.blocked is None else self._silenced(batch, self.blocked)
        if self.contacts is not None:
            found |= self._strangers(batch, self.contacts, found)
        return blocks(found, found.values())

    def _begin(self) -> None:
        """Record each agent's number of blocked messages at the beginning of a round."""
        if self.blocked is None or self.context is None:
            return
        self.state[_BEGUN] = 1
        for agent, count in self.context.violations.items():
            if agent is not None:
                self.state[agent] = count

    def _silenced(self, batch: Batch, quota: int) -> dict[int, str]:
        """Return the rows of agents with too many blocked messages."""
        if _BEGUN not in self.state:
            self._begin()
        if self.context is None or not self.context.violations:
            return {}
        senders = group(batch.from_ids)
        over = {code for code, sender in enumerate(senders.keys) if sender is not None and self._since(sender) >= quota}
        if not over:
            return {}
        return {
            row: f"{quota} messages of {name_of(senders.keys[code])} were blocked in this round: wait for the next"
            for row, code in enumerate(senders.codes.tolist())
            if code in over
        }

    def _since(self, sender: AgentId) -> int:
        assert self.context is not None
        count, before = self.context.violations.get(sender, 0), self.state.get(sender, 0)
        if count < before:  # the counts were reset
            before = self.state[sender] = 0
        return count - before

    def _strangers(self, batch: Batch, quota: int, silenced: Mapping[int, str]) -> dict[int, str]:
        """Record new contacts; return the rows with one too many."""
        found: dict[int, str] = {}
        known, met = self.state.keys(), self._met
        pairs = zip(batch.from_ids.tolist(), batch.to_ids.tolist(), strict=True)
        for row, pair in [(row, pair) for row, pair in enumerate(pairs) if pair not in known]:
            sender, receiver = pair
            if sender is None or receiver is None or row in silenced or pair in known:
                continue
            if met[sender] >= quota:
                found[row] = f"{name_of(sender)} has written to {quota} agents in this round: wait for the next"
                continue
            met[sender] += 1
            self.state[pair] = 1
        return found

    def describe(self) -> dict[str, Any]:
        """Return name, kind and the quotas."""
        return {**super().describe(), "contacts": self.contacts, "blocked": self.blocked}
