"""The trace context of a traced batch."""

from typing import NamedTuple

CONTEXT_BYTES = 25  # trace id 16, span id 8, flags 1: the contents of W3C's traceparent


class TracePoint(NamedTuple):
    """The span that sent a batch, the time when this process got the batch, and the span that fetched it.

    A span's context has `CONTEXT_BYTES` bytes; `fetched` is empty before a fetch. `since` is in unix seconds.
    """

    sent: bytes
    since: float
    fetched: bytes = b""
