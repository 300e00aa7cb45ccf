"""A rule that limits messages per second and per round."""

import math
import time
from collections.abc import Callable, Mapping
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId
from ray_messaging.errors import RuleError
from ray_messaging.interception.rules.rule import Rule, Verdict
from ray_messaging.interception.rules.support.grouping import Groups, group
from ray_messaging.interception.rules.support.pairs import blocks, name_of
from ray_messaging.interception.server.state.table import Table
from ray_messaging.model.batch import Batch

_ROUNDING = 1e-6  # of a token: rounding in sums of seconds must not cost a message
_LEAST_SWEEP = 1024


class RateLimit(Rule):
    """Limit the messages of each agent per second, and per round.

    Per second, each agent has a token bucket. It fills with `per_second` tokens a second and holds one second's tokens,
    at least one; a message takes one. So an agent may send `per_second` messages at once after a pause. Time is the
    interceptor's. Buckets are not kept in `state`: they mean nothing on another process's clock, and fill in a second.

    Per round, each agent's count is kept in `state` until `new_round`.

    A message that this rule blocks takes no token. One that a later rule blocks does: to count only messages that pass,
    put this rule last. The user is not limited. A broadcast is one message.

    Args:
        per_second: messages per second.
        per_round: messages per round.
        name: the rule's name.
        clock: returns the time in seconds, for tests.

    Raises: RuleError.
    """

    judges_broadcasts = "message"

    def __init__(
        self,
        per_second: float | None = None,
        per_round: int | None = None,
        *,
        name: str = "rate_limit",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        _check_limits(per_second, per_round, name)
        self.name = name
        self.per_second = per_second
        self.per_round = per_round
        self.state: Table[int] | None = None if per_round is None else Table()
        self._clock = clock
        self._reset()

    def _reset(self) -> None:
        self._empty_at: dict[AgentId | None, float] = {}  # when the bucket was empty, or would have been
        self._sweep_at = _LEAST_SWEEP

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_empty_at", "_sweep_at")}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self.__dict__.update(kept)
        self._reset()

    @property
    def has_rounds(self) -> bool:
        """Tell whether it counts by rounds."""
        return self.per_round is not None

    def new_round(self) -> None:
        """Reset the counts of the round."""
        if self.state:
            self.state.clear()

    def check_batch(self, batch: Batch, exp_id: str) -> Mapping[int, Verdict]:  # noqa: ARG002 - a Rule's
        """Return blocks for the rows above a limit."""
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

    def _left_of_round(self, senders: Groups) -> NDArray[np.intp]:
        if self.per_round is None or self.state is None:
            return np.full(len(senders.keys), np.iinfo(np.intp).max)
        sent = np.fromiter((self.state.get(key, 0) for key in senders.keys), np.intp, len(senders.keys))
        return np.maximum(self.per_round - sent, 0)

    def _tokens(self, senders: Groups) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """Return for each sender the time at which its bucket was empty, and its whole tokens now."""
        if self.per_second is None:
            return np.zeros(0), np.full(len(senders.keys), np.iinfo(np.intp).max - 1)
        now, fills_in = self._clock(), max(1.0, self.per_second) / self.per_second
        known = map(self._empty_at.get, senders.keys, repeat(-math.inf))
        empty_at = np.maximum(np.fromiter(known, np.float64, len(senders.keys)), now - fills_in)
        if len(self._empty_at) > self._sweep_at:
            # A full bucket needs no entry.
            self._empty_at = {key: at for key, at in self._empty_at.items() if at > now - fills_in}
            self._sweep_at = max(_LEAST_SWEEP, 2 * len(self._empty_at))
        return empty_at, np.clip((now - empty_at) * self.per_second + _ROUNDING, 0, 2**62).astype(np.intp)

    def _take(self, senders: Groups, passed: NDArray[np.intp], empty_at: NDArray[np.float64]) -> None:
        if self.per_second is not None:
            self._empty_at.update(zip(senders.keys, (empty_at + passed / self.per_second).tolist(), strict=True))
            self._empty_at.pop(None, None)
        if self.state is not None:
            for key, count in zip(senders.keys, passed.tolist(), strict=True):
                if key is not None and count:
                    self.state[key] = self.state.get(key, 0) + count

    def _reason(self, sender: AgentId | None, *, by_round: bool) -> str:
        limit = f"{self.per_round} a round" if by_round else f"{self.per_second:g} a second"
        return f"{name_of(sender)} writes more messages than it may: the limit is {limit}"

    def describe(self) -> dict[str, Any]:
        """Return name, kind and the limits."""
        return {**super().describe(), "per_second": self.per_second, "per_round": self.per_round}


def _check_limits(per_second: object, per_round: object, name: str) -> None:
    if per_second is None and per_round is None:
        raise RuleError("a rate limit needs per_second, per_round, or both: give a number", rule=name)
    if per_second is not None and not (
        isinstance(per_second, int | float) and not isinstance(per_second, bool) and 0 < per_second < math.inf
    ):
        raise RuleError(f"per_second={per_second!r} is no rate: give a number above 0, such as 0.5", rule=name)
    if per_round is not None and not (
        isinstance(per_round, int) and not isinstance(per_round, bool) and 0 < per_round < 2**62
    ):
        raise RuleError(f"per_round={per_round!r} is no number of messages: give an int of at least 1", rule=name)
