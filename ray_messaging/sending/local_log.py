"""The local log of a messager: its latest sends."""

from collections import deque
from itertools import islice
from typing import Any, Protocol

import msgspec

from ray_messaging.addressing.channels import build_channel
from ray_messaging.model.batch import Batch
from ray_messaging.model.fates import UNKNOWN
from ray_messaging.receipt import Outcome

# The size of a batch and its outcome without payloads, which is most of the size of a batch of one message.
_BATCH_BYTES = 900


class SendLog(Protocol):
    """The object to which each batch is added when all of its rows have their fates."""

    def add(self, batch: Batch, outcome: Outcome) -> None:
        """Add a batch whose rows all have their fates."""


class LocalLog:
    """The latest sends, up to `limit` messages and `limit_bytes`. Older sends are dropped, and counted."""

    def __init__(self, exp_id: str, limit: int, limit_bytes: int) -> None:
        self._exp_id = exp_id
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._size = 0
        self._nbytes = 0
        self._gone = 0
        self._batches: deque[tuple[Batch, Outcome, int]] = deque()  # the batches, with outcome and size in bytes

    @property
    def dropped(self) -> int:
        """Return how many sends were dropped because of the limit."""
        return self._gone + self._excess

    @property
    def _excess(self) -> int:
        """Return how many rows of the oldest batch must go so that the whole log is within its limit of rows."""
        return max(0, self._size - self._limit)

    def add(self, batch: Batch, outcome: Outcome) -> None:
        """Add a batch whose rows all have their fates."""
        nbytes = _BATCH_BYTES
        if batch.lines is not None:
            batch.lines.pack()
            nbytes += batch.lines.nbytes
        self._batches.append((batch, outcome, nbytes))
        self._size += batch.rows
        self._nbytes += nbytes
        while self._batches and (
            self._size - self._batches[0][0].rows >= self._limit or self._nbytes > self._limit_bytes
        ):
            oldest, _, freed = self._batches.popleft()
            self._size -= oldest.rows
            self._nbytes -= freed
            self._gone += oldest.rows

    def clear(self) -> None:
        """Drop all sends."""
        self._gone = self.dropped
        self._batches.clear()
        self._size = self._nbytes = 0

    def rows(self) -> list[dict[str, Any]]:
        """Return a dict for each send, the oldest first."""
        rows = ((batch, outcome, row) for batch, outcome, _ in self._batches for row in range(batch.rows))
        return [self._row(*found) for found in islice(rows, self._excess, None)]

    def _row(self, batch: Batch, outcome: Outcome, row: int) -> dict[str, Any]:
        lines, times = batch.lines, batch.sent_at
        to_id, fate = batch.to_ids[row], outcome.codes[row]
        receipt = outcome.receipt(row)
        return {
            "channel": build_channel(self._exp_id, to_id, batch.topic_of(row)),
            "payload": None if lines is None else msgspec.json.decode(lines.row(row)),
            "from_id": batch.from_ids[row],
            "to_id": to_id,
            "start_time": times if isinstance(times, float) else float(times[row]),
            "consumption": outcome.consumption(row),
            "sent": receipt.sent,
            "fate": None if fate == UNKNOWN else receipt.fate,
            "rule": receipt.rule,
            "reason": receipt.reason,
            "message_id": receipt.message_id,
        }
