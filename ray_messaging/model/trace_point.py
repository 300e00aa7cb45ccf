"""Place of a batch in a trace."""

from typing import NamedTuple

CONTEXT_BYTES = 25  # trace id 16, span id 8, flags 1: what W3C's traceparent says


class TracePoint(NamedTuple):
    """The span that sent a batch, the time since which this process has the batch, and the span that fetched it.

    Spans are `CONTEXT_BYTES` long each; `fetched` is empty before a fetch. `since` is in unix seconds.
    """

    sent: bytes
    since: float
    fetched: bytes = b""
