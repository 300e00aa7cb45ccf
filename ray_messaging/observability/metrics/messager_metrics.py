"""Counts and durations of one messager."""

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_messaging.observability.metrics.families import MESSAGES, SECONDS, Family, Histogram, counter, single
from ray_messaging.observability.observer import Observer
from ray_messaging.receipt import FATES

_GAUGES = {
    "outbox": "Messages that were accepted and have no receipt yet",
    "inbox": "Messages that were read and not fetched",
    "deferred": "Messages that wait for a slow rule",
    "lent": "Messages that handles hold, fetched and not committed",
}


class MessagerMetrics(Observer):
    """Counts and durations of one messager since it was opened."""

    def __init__(self) -> None:
        self._fates = np.zeros(len(FATES) + 1, np.int64)
        self._blocked: Counter[str] = Counter()
        self._fetched = self._frames = self._bytes = self._retries = self._connections = 0
        self._batches = Histogram(MESSAGES)
        self._accept_s = Histogram(SECONDS)
        self._judge_s = Histogram(SECONDS)
        self._write_s = Histogram(SECONDS)
        self._send_s = Histogram(SECONDS)
        self._delivery_s = Histogram(SECONDS)
        self._step_s = Histogram(SECONDS)

    def batch_taken(self, messages: int, seconds: float) -> None:  # noqa: ARG002 - an Observer's
        """See `Observer`."""
        self._accept_s.observe(seconds)

    def batch_judged(self, messages: int, seconds: float) -> None:
        """See `Observer`."""
        self._batches.observe(messages)
        self._judge_s.observe(seconds)

    def batch_sent(self, fates: NDArray[np.uint8], seconds: float) -> None:
        """See `Observer`."""
        self._fates += np.bincount(fates, minlength=len(self._fates))
        self._send_s.observe(seconds)

    def messages_blocked(self, rule: str, messages: int) -> None:
        """See `Observer`."""
        self._blocked[rule] += messages

    def frame_written(self, mailbox: str, messages: int, nbytes: int) -> None:  # noqa: ARG002 - an Observer's
        """See `Observer`."""
        self._frames += 1
        self._bytes += nbytes

    def call_made(self, frames: int, seconds: float) -> None:  # noqa: ARG002 - an Observer's
        """See `Observer`."""
        self._write_s.observe(seconds)

    def messages_fetched(self, messages: int) -> None:
        """See `Observer`."""
        self._fetched += messages

    def fetch_delayed(self, seconds: float) -> None:
        """See `Observer`."""
        self._delivery_s.observe(seconds)

    def step_committed(self, step: int, seconds: float) -> None:  # noqa: ARG002 - an Observer's
        """See `Observer`."""
        self._step_s.observe(seconds)

    def connected(self, server: str) -> None:  # noqa: ARG002 - an Observer's
        """See `Observer`."""
        self._connections += 1

    def retried(self, server: str, error: BaseException) -> None:  # noqa: ARG002 - an Observer's
        """See `Observer`."""
        self._retries += 1

    def families(self, stats: dict[str, Any]) -> list[Family]:
        """Return all metrics: the counts, the durations, and the gauges that are in the messager's `stats()`."""
        fates = dict(zip([*FATES, "unknown"], self._fates.tolist(), strict=True))
        stages = (
            ("accept", "Time from a batch's first message until the batch is taken", self._accept_s),
            ("judge", "Time from a batch to its verdicts", self._judge_s),
            ("write", "Time of a call that writes frames", self._write_s),
            ("send", "Time from a batch's first message to its last receipt", self._send_s),
            ("delivery", "Age of the oldest message of a fetch", self._delivery_s),
            ("step", "Time for which a driver had a step open", self._step_s),
        )
        return [
            counter("messages", "Messages that this messager has sent, by fate", fates, "fate"),
            counter("blocked", "Messages that a rule blocked", self._blocked, "rule"),
            single("fetched", "counter", "Messages that fetches returned", self._fetched),
            single("frames", "counter", "Frames that the server has taken", self._frames),
            single("frame_bytes", "counter", "Bytes of these frames", self._bytes),
            single(
                "connections",
                "counter",
                "Connections to the server, also those in place of broken ones",
                self._connections,
            ),
            single("retries", "counter", "Calls of the server that were made again", self._retries),
            single("batch_messages", "histogram", "Messages of a batch that was judged", self._batches.distribution()),
            *(single(f"{name}_seconds", "histogram", about, found.distribution()) for name, about, found in stages),
            *(single(name, "gauge", about, stats[name]) for name, about in _GAUGES.items() if name in stats),
        ]
