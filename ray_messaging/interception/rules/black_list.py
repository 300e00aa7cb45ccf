"""Block pairs of agents."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_messaging.channels import AgentId, check_id
from ray_messaging.errors import RuleError
from ray_messaging.frames import Batch
from ray_messaging.ids import INT, Ids
from ray_messaging.interception.rules.rule import Rule

Pair = tuple[AgentId | None, AgentId | None]

# Odd 64-bit constants that spread ids over the table (the golden ratio's, and a prime).
_SPREAD_FROM, _SPREAD_TO = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
_SLOTS_PER_PAIR = 16
_FEW = 8  # rows: looking them up is quicker than the arithmetic on columns that would rule them out


class BlackList(Rule):
    """Block (from_id, to_id) pairs; None on either side stands for any agent (the user is not one).

    A batch is first held against a table of hashes, so that only rows that may be hit are looked up.
    """

    def __init__(self, pairs: Iterable[Pair] = (), *, name: str = "black_list") -> None:
        self.name = name
        self._pairs: set[Pair] = set()
        self.set(pairs)

    @property
    def pairs(self) -> frozenset[Pair]:
        """Return the blocked pairs."""
        return frozenset(self._pairs)

    def set(self, pairs: Iterable[Pair]) -> None:
        """Replace the list."""
        self._pairs = {self._checked(pair) for pair in pairs}
        self._build()

    def add(self, pairs: Iterable[Pair]) -> None:
        """Block more pairs."""
        self._pairs |= {self._checked(pair) for pair in pairs}
        self._build()

    def remove(self, pairs: Iterable[Pair]) -> None:
        """Let pairs pass again; those that were not blocked do no harm."""
        self._pairs -= {self._checked(pair) for pair in pairs}
        self._build()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self._pairs, self.name)  # the tables are larger than the pairs, and quickly made

    def dump(self) -> Any:  # noqa: ANN401 - JSON
        """Return the pairs as JSON."""
        return sorted(self._pairs, key=repr)

    def load(self, state: Any) -> None:  # noqa: ANN401 - JSON
        """Take over the pairs."""
        self.set((pair[0], pair[1]) for pair in state)

    def merge(self, state: Any) -> None:  # noqa: ANN401 - JSON
        """Block what either list blocks."""
        self.add((pair[0], pair[1]) for pair in state)

    def check_batch(self, batch: Batch, exp_id: str) -> Mapping[int, str]:  # noqa: ARG002 - a Rule's
        """Judge a batch; return the rows of blocked pairs."""
        if not self._pairs:
            return {}
        found: dict[int, str] = {}
        few = len(batch) <= _FEW
        for row in range(len(batch)) if few else self._candidates(batch.from_ids, batch.to_ids).tolist():
            pair = self._hit(batch.from_ids[row], batch.to_ids[row])
            if pair is not None:
                found[row] = f"{_name(pair[0])} may not write to {_name(pair[1])}"
        return found

    def _checked(self, pair: Pair) -> Pair:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise RuleError(f"{pair!r} is no pair: write (from_id, to_id), None for any agent", rule=self.name)
        return (None if pair[0] is None else check_id(pair[0]), None if pair[1] is None else check_id(pair[1]))

    def _build(self) -> None:
        pairs = list(self._pairs)
        self._table = _Table([(a, b) for a, b in pairs if isinstance(a, int) and isinstance(b, int)])
        self._any_from = any(a is None and b is None for a, b in pairs)
        self._from_table = _Table([(a, 0) for a, b in pairs if isinstance(a, int) and b is None])
        self._to_table = _Table([(0, b) for a, b in pairs if a is None and isinstance(b, int)])

    def _candidates(self, from_ids: Ids, to_ids: Ids) -> NDArray[np.intp]:
        """Return the rows that may be blocked: those in a table of hashes, and those whose ids are no int."""
        if self._any_from:
            return np.arange(len(from_ids))
        sender, receiver = from_ids.values.view(np.uint64) * _SPREAD_FROM, to_ids.values.view(np.uint64) * _SPREAD_TO
        maybe = self._table.holds(sender ^ receiver)
        maybe |= self._from_table.holds(sender)
        maybe |= self._to_table.holds(receiver)
        for ids in (from_ids, to_ids):
            if ids.kinds is not None:
                maybe |= ids.kinds != INT
        return np.flatnonzero(maybe)

    def _hit(self, from_id: AgentId | None, to_id: AgentId | None) -> Pair | None:
        """Return the entry that blocks a pair."""
        candidates: list[Pair] = []
        if from_id is not None and to_id is not None:
            candidates.append((from_id, to_id))
        if from_id is not None:
            candidates += [(from_id, None), (None, None)]
        if from_id is not None and to_id is not None:
            candidates.append((None, to_id))
        return next((pair for pair in candidates if pair in self._pairs), None)


class _Table:
    """Answer for hashes whether they may be there: a bitmap with 16 places for each entry."""

    def __init__(self, pairs: list[tuple[int, int]]) -> None:
        size = 1 << max(6, (len(pairs) * _SLOTS_PER_PAIR).bit_length())
        self._shift = np.uint64(64 - size.bit_length() + 1)
        self._places: NDArray[np.bool_] | None = None
        if pairs:
            columns = np.array(pairs, np.int64).view(np.uint64)
            self._places = np.zeros(size, np.bool_)
            self._places[self._slots((columns[:, 0] * _SPREAD_FROM) ^ (columns[:, 1] * _SPREAD_TO))] = True

    def _slots(self, hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
        # The high bits of a product are the well mixed ones.
        return hashes >> self._shift

    def holds(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        if self._places is None:
            return np.zeros(len(hashes), np.bool_)
        return self._places[self._slots(hashes)]


def _name(agent_id: AgentId | None) -> str:
    return "any agent" if agent_id is None else f"agent {agent_id!r}"


def _rebuilt(pairs: Iterable[Pair], name: str) -> BlackList:
    return BlackList(pairs, name=name)
