"""Counts and durations of one messager."""

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_messaging.model.fates import NAMES
from ray_messaging.observability.metrics.families import MESSAGES, SECONDS, Family, Histogram, counter, single
from ray_messaging.observability.observer import Observer

_COUNTS = {
    "fetched": "Messages that fetches returned",
    "frames": "Frames that the server has taken",
    "frame_bytes": "Bytes of the frames that the server has taken",
    "connections": "Connections to the server, including those that replaced broken ones",
    "retries": "Calls of the server that were made again",
}
_SECONDS = {
    "accept": "Time from a batch's first message until the batch is taken",
    "judge": "Time from a batch to its verdicts",
    "write": "Time of a call that writes frames",
    "send": "Time from a batch's first message to its last receipt",
    "delivery": "Age of the oldest message of a fetch",
    "step": "Time for which a driver had a step open",
}
_GAUGES = {
    "outbox": "Messages that were accepted and have no receipt yet",
    "inbox": "Messages that were read and not fetched",
    "deferred": "Messages that wait for a slow rule",
    "lent": "Messages that handles hold, fetched and not committed",
}


class MessagerMetrics(Observer):
    """Counts and durations of one messager since it was opened."""

    def __init__(self) -> None:
        self._fates = np.zeros(len(NAMES), np.int64)
        self._blocked: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._batches = Histogram(MESSAGES)
        self._seconds = {name: Histogram(SECONDS) for name in _SECONDS}

    def batch_taken(self, messages: int, seconds: float) -> None:  # noqa: ARG002 - an argument of Observer's method
        """Record for how many seconds a batch collected messages, before it was closed."""
        self._seconds["accept"].observe(seconds)

    def batch_judged(self, messages: int, seconds: float) -> None:
        """Record the number of messages of a judged batch, and the seconds until the interceptor's verdicts."""
        self._batches.observe(messages)
        self._seconds["judge"].observe(seconds)

    def batch_sent(self, fates: NDArray[np.uint8], seconds: float) -> None:
        """Count the messages of a batch by fate, and record the seconds until the batch's receipts."""
        self._fates += np.bincount(fates, minlength=len(self._fates))
        self._seconds["send"].observe(seconds)

    def messages_blocked(self, rule: str, messages: int) -> None:
        """Count messages that a rule has blocked."""
        self._blocked[rule] += messages

    def frame_written(self, mailbox: str, messages: int, nbytes: int) -> None:  # noqa: ARG002 - an argument of Observer's method
        """Count a frame that was written, and its bytes."""
        self._counts["frames"] += 1
        self._counts["frame_bytes"] += nbytes

    def call_made(self, frames: int, seconds: float) -> None:  # noqa: ARG002 - an argument of Observer's method
        """Record the duration, in seconds, of a call to the server that writes frames."""
        self._seconds["write"].observe(seconds)

    def messages_fetched(self, messages: int) -> None:
        """Count fetched messages."""
        self._counts["fetched"] += messages

    def fetch_delayed(self, seconds: float) -> None:
        """Record the age of the oldest message of a fetch."""
        self._seconds["delivery"].observe(seconds)

    def step_committed(self, step: int, seconds: float) -> None:  # noqa: ARG002 - an argument of Observer's method
        """Record for how many seconds a step was open."""
        self._seconds["step"].observe(seconds)

    def connected(self, server: str) -> None:  # noqa: ARG002 - an argument of Observer's method
        """Count a new connection to the server."""
        self._counts["connections"] += 1

    def retried(self, server: str, error: BaseException) -> None:  # noqa: ARG002 - an argument of Observer's method
        """Count a call to the server that failed and is repeated."""
        self._counts["retries"] += 1

    def families(self, stats: dict[str, Any]) -> list[Family]:
        """Return all metrics: the counts, the durations, and the gauges that are in the messager's `stats()`."""
        fates = dict(zip(NAMES, self._fates.tolist(), strict=True))
        durations = {name: found.distribution() for name, found in self._seconds.items()}
        return [
            counter("messages", "Messages that this messager has sent, by fate", fates, "fate"),
            counter("blocked", "Messages that a rule blocked", self._blocked, "rule"),
            *(single(name, "counter", about, self._counts[name]) for name, about in _COUNTS.items()),
            single("batch_messages", "histogram", "Messages of a batch that was judged", self._batches.distribution()),
            *(single(f"{name}_seconds", "histogram", about, durations[name]) for name, about in _SECONDS.items()),
            *(single(name, "gauge", about, stats[name]) for name, about in _GAUGES.items() if name in stats),
        ]
