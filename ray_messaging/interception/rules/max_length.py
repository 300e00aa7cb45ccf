"""A rule that blocks long payloads."""

from collections.abc import Mapping
from typing import Any

from ray_messaging.errors import RuleError
from ray_messaging.interception.rules.rule import Rule, Verdict
from ray_messaging.interception.rules.support.pairs import blocks
from ray_messaging.model.batch import Batch


class MaxLength(Rule):
    """Block payloads whose JSON text is longer than `limit_bytes`, the user's too.

    Args:
        limit_bytes: the longest payload that passes, in bytes of JSON.
        name: the rule's name.

    Raises: RuleError.
    """

    needs_payload = True
    judges_broadcasts = "message"

    def __init__(self, limit_bytes: int, *, name: str = "max_length") -> None:
        if isinstance(limit_bytes, bool) or not isinstance(limit_bytes, int):
            raise RuleError(f"a limit of {limit_bytes!r} is no number of bytes: give an int", rule=name)
        if limit_bytes < 2:
            raise RuleError(f"a limit of {limit_bytes} bytes blocks every payload: even {{}} takes 2", rule=name)
        self.limit_bytes = limit_bytes
        self.name = name

    def check_batch(self, batch: Batch, exp_id: str) -> Mapping[int, Verdict]:  # noqa: ARG002 - a Rule's
        """Return blocks for rows with long payloads."""
        assert batch.lines is not None
        sizes = [len(line) for line in batch.lines.list]
        if max(sizes, default=0) <= self.limit_bytes:
            return {}
        index = range(len(sizes)) if batch.lines.index is None else batch.lines.index.tolist()
        over = {row: sizes[line] for row, line in enumerate(index) if sizes[line] > self.limit_bytes}
        return blocks(over, (f"payload of {size} bytes, the limit is {self.limit_bytes}" for size in over.values()))

    def describe(self) -> dict[str, Any]:
        """Return name, kind and the limit."""
        return {**super().describe(), "limit_bytes": self.limit_bytes}
