"""Rules with limits: on messages per second and round, on contacts and blocked messages, on the length of payloads."""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId
from ray_messaging.errors import RuleError
from ray_messaging.interception.interceptor.rule_tables import Table
from ray_messaging.interception.rules.checks import check_count, check_positive
from ray_messaging.interception.rules.pairs import blocks, name_of
from ray_messaging.interception.rules.rule import UNLIMITED, Rule, Verdict
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn

_ROUNDING = 1e-6  # the fraction of a token that a bucket may lack, because a rounding error must not block a message
_LEAST_SWEEP = 1024
_BEGUN = None  # the key in `state` which says that counts were recorded at the beginning of the round


class RowsById(NamedTuple):
    """The rows of a column, grouped by id.

    `keys` has the k distinct ids. `codes` (n,) has, for each row, the index of its id in `keys`. `counts` (k,) has the
    number of rows of each id.
    """

    keys: list[AgentId | None]
    codes: NDArray[np.intp]
    counts: NDArray[np.intp]

    def beyond(self, allowed: NDArray[np.intp]) -> NDArray[np.intp]:
        """Allow the first `allowed[i]` rows of each id `keys[i]`; return the indices of the other rows, ascending."""
        over = allowed < self.counts
        if not over.any():
            return np.zeros(0, np.intp)
        rows = np.flatnonzero(over[self.codes])
        codes = self.codes[rows]
        return rows[ranks(codes) >= allowed[codes]]


def ranks(codes: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return, for each row, how many earlier rows have the same code, which stands for an id."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    found = np.empty(len(codes), np.intp)
    found[order] = np.arange(len(codes)) - np.searchsorted(ordered, ordered)
    return found


def group(ids: IdColumn) -> RowsById:
    """Return the distinct ids of a column, the index of each row's id among them, and how many rows each id has."""
    if ids.kinds is None:
        values, codes, counts = np.unique(ids.values, return_inverse=True, return_counts=True)
        return RowsById(values.tolist(), codes, counts)
    places: dict[AgentId | None, int] = {}
    listed = ids.tolist()
    codes = np.fromiter((places.setdefault(key, len(places)) for key in listed), np.intp, len(listed))
    return RowsById(list(places), codes, np.bincount(codes, minlength=len(places)))


class RateLimit(Rule):
    """Limit the messages of each agent per second, and per round.

    Per second, each agent has a token bucket. It fills with `per_second` tokens a second and holds one second's tokens,
    but at least one token. A message takes one token. So after a pause an agent may send the messages of one second at
    once, and at least one message. Buckets are not kept in `state`, so they are full after a restart of the rule's
    process. Per round, each agent's count is kept in `state` until `new_round`.

    A message that this rule blocks takes no token. A message that passes this rule takes one, even if a later rule
    blocks it. So put this rule last to count only messages that pass all rules. The user is not limited. A broadcast is
    one message.

    Args:
        per_second: messages per second; None: no limit.
        per_round: messages per round; None: no limit.
        name: the rule's name.
        clock: a function that returns the time in seconds, for tests.

    Raises: RuleError if both limits are None, or if one is not valid.
    """

    judges_broadcasts = "message"
    _described = ("per_second", "per_round")

    def __init__(
        self,
        per_second: float | None = None,
        per_round: int | None = None,
        *,
        name: str = "rate_limit",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if per_second is None and per_round is None:
            raise RuleError("a RateLimit needs per_second= or per_round=, or both: pass a number", rule=name)
        self.name = name
        self.per_second = None if per_second is None else check_positive("per_second", per_second, name)
        self.per_round = None if per_round is None else check_count("per_round", per_round, 1, name)
        self.state: Table[int] | None = None if per_round is None else Table()
        self._clock = clock
        # By sender: a time. A bucket that was empty at this time, and has only filled since then, would have as many
        # tokens as the sender's bucket has now.
        self._empty_at: dict[AgentId | None, float] = {}
        self._sweep_at = _LEAST_SWEEP

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_empty_at": {}}

    @property
    def has_rounds(self) -> bool:
        """Return whether the rule has a limit per round."""
        return self.per_round is not None

    def new_round(self) -> None:
        """Begin a new round: forget how many messages each sender has sent."""
        if self.state:
            self.state.clear()

    def check_batch(self, batch: Batch, exp_id: str) -> Mapping[int, Verdict]:  # noqa: ARG002 - every rule gets it
        """Return verdicts that block the rows that exceed a limit."""
        senders = group(batch.from_ids)
        left = self._left_of_round(senders)
        empty_at, tokens = self._tokens(senders)
        passed = np.minimum(senders.counts, np.minimum(left, tokens))
        if None in senders.keys:
            user = senders.keys.index(None)
            passed[user] = senders.counts[user]
        self._take(senders, passed, empty_at)
        rows = senders.beyond(passed)
        if not len(rows):
            return {}
        codes = senders.codes[rows].tolist()
        by_round = (left <= tokens).tolist()
        return blocks(rows.tolist(), (self._reason(senders.keys[code], by_round=by_round[code]) for code in codes))

    def _left_of_round(self, senders: RowsById) -> NDArray[np.intp]:
        if self.per_round is None or self.state is None:
            return np.full(len(senders.keys), np.iinfo(np.intp).max)
        sent = np.fromiter((self.state.get(key, 0) for key in senders.keys), np.intp, len(senders.keys))
        return np.maximum(self.per_round - sent, 0)

    def _tokens(self, senders: RowsById) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """Return, for each sender, what its time in `_empty_at` is now, and how many whole tokens its bucket has.

        Without `per_second`, the array of times is empty, and each bucket has more tokens than a batch has messages.
        """
        if self.per_second is None:
            return np.zeros(0), np.full(len(senders.keys), np.iinfo(np.intp).max - 1)
        now, fills_in = self._clock(), max(1.0, self.per_second) / self.per_second
        known = map(self._empty_at.get, senders.keys, repeat(-math.inf))
        empty_at = np.maximum(np.fromiter(known, np.float64, len(senders.keys)), now - fills_in)
        if len(self._empty_at) > self._sweep_at:
            # A full bucket needs no entry, because a bucket without an entry counts as full.
            self._empty_at = {key: at for key, at in self._empty_at.items() if at > now - fills_in}
            self._sweep_at = max(_LEAST_SWEEP, 2 * len(self._empty_at))
        return empty_at, np.clip((now - empty_at) * self.per_second + _ROUNDING, 0, 2**62).astype(np.intp)

    def _take(self, senders: RowsById, passed: NDArray[np.intp], empty_at: NDArray[np.float64]) -> None:
        if self.per_second is not None:
            self._empty_at.update(zip(senders.keys, (empty_at + passed / self.per_second).tolist(), strict=True))
            self._empty_at.pop(None, None)
        if self.state is not None:
            for key, count in zip(senders.keys, passed.tolist(), strict=True):
                if key is not None and count:
                    self.state[key] = self.state.get(key, 0) + count

    def _reason(self, sender: AgentId | None, *, by_round: bool) -> str:
        limit = f"{self.per_round} a round" if by_round else f"{self.per_second:g} a second"
        return f"{name_of(sender)} sends too many messages: the limit is {limit}"


class RoundQuota(Rule):
    """Limit how many agents each agent may write to in a round, and how many of its messages may be blocked.

    The user (from_id None) has no quota. The rule's attribute `state` has an entry with the key (from_id, to_id) for
    each contact of the round, and an entry with the key from_id that says how many of the agent's messages had been
    blocked when the round began.

    Args:
        contacts: the number of agents that one agent may write to in a round (None: no limit). Further messages to
            the same agent do not count. Plain channels, which belong to no agent, are not contacts. Each hearer of a
            broadcast is a contact.
        blocked: how many messages of an agent may be blocked in a round, by any rule. From this number on, all its
            messages, also those to plain channels, are blocked until `new_round` (None: no limit). In an
            experiment with steps, a blocked message or broadcast counts from the agent's next message on. Without
            steps, it counts from the agent's next batch (messages that are sent together) on.
        name: the rule's name.

    Raises: RuleError if both quotas are None, or if one is not valid.
    """

    state: Table[int]
    _described = ("contacts", "blocked")

    def __init__(self, contacts: int | None = None, blocked: int | None = None, *, name: str = "round_quota") -> None:
        if contacts is None and blocked is None:
            raise RuleError("a RoundQuota needs contacts= or blocked=, or both: pass a number", rule=name)
        self.name = name
        self.contacts = None if contacts is None else check_count("contacts", contacts, 0, name)
        self.blocked = None if blocked is None else check_count("blocked", blocked, 1, name)
        self.judges_broadcasts = "message" if contacts is None else "pair"
        self.state = Table()
        self.restored()

    def restored(self) -> None:
        """Count, from `state`, how many contacts each agent has."""
        self._met = Counter(key[0] for key in self.state if isinstance(key, tuple))

    def new_round(self) -> None:
        """Begin a new round: forget the contacts and the blocked messages."""
        self.state.clear()
        self.restored()
        self._begin()

    @property
    def counts_blocked(self) -> bool:
        """Return whether the rule has a quota of blocked messages."""
        return self.blocked is not None

    def room(self, senders: Sequence[AgentId | None]) -> Sequence[int]:
        """Return how many more messages of each sender may be blocked before its quota is used up.

        Return UNLIMITED for a sender whose quota is used up, because further blocked messages change no verdict on this
        sender.
        """
        if self.blocked is None:
            return super().room(senders)
        if _BEGUN not in self.state:
            self._begin()
        left = [0 if sender is None else self.blocked - self._since(sender) for sender in senders]
        return [count if count > 0 else UNLIMITED for count in left]

    def check_batch(self, batch: Batch, exp_id: str) -> Mapping[int, Verdict]:  # noqa: ARG002 - every rule gets it
        """Return verdicts that block the rows that exceed a quota."""
        found = {} if self.blocked is None else self._silenced(batch, self.blocked)
        if self.contacts is not None:
            found |= self._strangers(batch, self.contacts, found)
        return blocks(found, found.values())

    def _begin(self) -> None:
        """Record how many messages of each agent had been blocked when the round began."""
        if self.blocked is None or self.context is None:
            return
        self.state[_BEGUN] = 1
        for agent, count in self.context.violations.items():
            if agent is not None:
                self.state[agent] = count

    def _silenced(self, batch: Batch, quota: int) -> dict[int, str]:
        if _BEGUN not in self.state:
            self._begin()
        if self.context is None or not self.context.violations:
            return {}
        senders = group(batch.from_ids)
        over = {code for code, sender in enumerate(senders.keys) if sender is not None and self._since(sender) >= quota}
        if not over:
            return {}
        return {
            row: (
                f"{quota} messages of {name_of(senders.keys[code])} were blocked in this round: wait for the next round"
            )
            for row, code in enumerate(senders.codes.tolist())
            if code in over
        }

    def _since(self, sender: AgentId) -> int:
        if self.context is None:
            return 0
        count, before = self.context.violations.get(sender, 0), self.state.get(sender, 0)
        if count < before:  # the counts of blocked messages were reset
            before = self.state[sender] = 0
        return count - before

    def _strangers(self, batch: Batch, quota: int, silenced: Mapping[int, str]) -> dict[int, str]:
        """Record new contacts of each sender in the round, until the number of the sender's contacts is `quota`.

        Return, by row, why a message to a further agent is blocked. Rows in `silenced` are ignored, because they are
        blocked for another reason.
        """
        found: dict[int, str] = {}
        known, met = self.state.keys(), self._met
        pairs = zip(batch.from_ids.tolist(), batch.to_ids.tolist(), strict=True)
        for row, pair in [(row, pair) for row, pair in enumerate(pairs) if pair not in known]:
            sender, receiver = pair
            if sender is None or receiver is None or row in silenced or pair in known:
                continue
            if met[sender] >= quota:
                found[row] = f"{name_of(sender)} has written to {quota} agents in this round: wait for the next round"
                continue
            met[sender] += 1
            self.state[pair] = 1
        return found


class MaxLength(Rule):
    """Block payloads whose JSON text is longer than `limit_bytes`.

    Messages from the user (from_id None) are checked, too.

    Args:
        limit_bytes: the longest payload that passes, in bytes of JSON.
        name: the rule's name.

    Raises: RuleError if `limit_bytes` is not an int of at least 2.
    """

    needs_payload = True
    judges_broadcasts = "message"
    _described = ("limit_bytes",)

    def __init__(self, limit_bytes: int, *, name: str = "max_length") -> None:
        why = ", because a smaller limit blocks every payload: even {} takes 2 bytes"
        self.limit_bytes = check_count("limit_bytes", limit_bytes, 2, name, why)
        self.name = name

    def check_batch(self, batch: Batch, exp_id: str) -> Mapping[int, Verdict]:  # noqa: ARG002 - every rule gets it
        """Return verdicts that block the rows whose payloads are too long."""
        assert batch.lines is not None
        sizes = [len(line) for line in batch.lines.list]
        if max(sizes, default=0) <= self.limit_bytes:
            return {}
        index = range(len(sizes)) if batch.lines.index is None else batch.lines.index.tolist()
        over = {row: sizes[line] for row, line in enumerate(index) if sizes[line] > self.limit_bytes}
        return blocks(over, (f"payload of {size} bytes, the limit is {self.limit_bytes}" for size in over.values()))
