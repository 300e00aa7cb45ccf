"""Block what is too long."""

from collections.abc import Mapping

from ray_messaging.errors import RuleError
from ray_messaging.frames import Batch
from ray_messaging.interception.rules.rule import Rule


class MaxLength(Rule):
    """Block payloads whose JSON text is longer than `limit_bytes`."""

    needs_payload = True

    def __init__(self, limit_bytes: int, *, name: str = "max_length") -> None:
        if limit_bytes < 2:
            raise RuleError(f"a limit of {limit_bytes} bytes blocks every payload: even {{}} takes 2", rule=name)
        self.limit_bytes = limit_bytes
        self.name = name

    def check_batch(self, batch: Batch, exp_id: str) -> Mapping[int, str]:  # noqa: ARG002 - a Rule's
        """Judge a batch; return the rows that are too long."""
        assert batch.lines is not None
        sizes = [len(line) for line in batch.lines.list]
        index = range(len(sizes)) if batch.lines.index is None else batch.lines.index.tolist()
        if max(sizes, default=0) <= self.limit_bytes:
            return {}
        return {
            row: f"payload of {sizes[line]} bytes, the limit is {self.limit_bytes}"
            for row, line in enumerate(index)
            if sizes[line] > self.limit_bytes
        }
