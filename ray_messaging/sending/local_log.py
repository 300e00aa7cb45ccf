"""The local log of a messager: the messages that it has sent most recently."""

from collections import deque
from itertools import islice
from typing import Any

import msgspec

from ray_messaging.addressing.channels import build_channel
from ray_messaging.model.batch import Batch
from ray_messaging.model.fates import UNKNOWN
from ray_messaging.receipt import Outcome

# How many bytes a batch and its outcome take without the payloads. A batch of one message takes little more.
_BATCH_BYTES = 900


class LocalLog:
    """The latest sent messages, up to `limit` messages and `limit_bytes`. Older ones are dropped, and counted."""

    def __init__(self, exp_id: str, limit: int, limit_bytes: int) -> None:
        self._exp_id = exp_id
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._size = 0
        self._nbytes = 0
        self._gone = 0
        # The batches, each with its outcome and its size in bytes.
        self._batches: deque[tuple[Batch, Outcome, int]] = deque()

    @property
    def dropped(self) -> int:
        """Return how many messages were dropped because of the limits."""
        return self._gone + self._excess

    @property
    def _excess(self) -> int:
        """Return how many rows of the oldest batch must be left out so that the log is within its limit of messages."""
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
        """Drop all messages that the log has."""
        self._gone = self.dropped
        self._batches.clear()
        self._size = self._nbytes = 0

    def rows(self) -> list[dict[str, Any]]:
        """Return a dict for each message that the log has, the oldest first.

        The keys are those of AgentSociety's log list (such as channel, payload, from_id, to_id, sent), and fate, rule,
        reason and message_id.
        """
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
