"""The spans of one batch that is sent."""

from time import time
from typing import Protocol

import numpy as np
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context

from ray_messaging.errors import MessagingError
from ray_messaging.model.batch import Batch
from ray_messaging.model.trace_point import TracePoint
from ray_messaging.observability.tracing.contexts import packed
from ray_messaging.receipt import FATES, Outcome


class Spans(Protocol):
    """The maker of spans."""

    def start(self, name: str, parent: Context, kind: SpanKind, since: float | None = None, messages: int = 0) -> Span:
        """Start a span."""


class SentBatch:
    """The spans of one batch: accept, until it is taken; judge, until its verdicts; write, until its receipts.

    The last two are children of the first. A batch that is judged once more has another judge span.
    """

    __slots__ = ("_accept", "_context", "_judge", "_spans", "_write")

    def __init__(self, spans: Spans, accept: Span) -> None:
        self._spans = spans
        self._accept = accept
        self._context = set_span_in_context(accept, Context())
        self._judge: Span | None = None
        self._write: Span | None = None

    def taken(self, batch: Batch) -> None:
        """Note that the batch collects no more messages."""
        self._accept.set_attribute("messaging.batch.message_count", batch.rows)
        self._accept.end()

    def asking(self, batch: Batch) -> None:
        """Note that the verdicts are asked for; the request carries the span."""
        self._judge = self._spans.start("judge", self._context, SpanKind.CLIENT, messages=batch.rows)
        batch.trace = TracePoint(packed(self._judge), time())

    def judged(self, blocked: int, deferred: int, route: str) -> None:
        """Note the verdicts, and the route by which they came."""
        assert self._judge is not None
        self._judge.set_attributes(
            {"ray_messaging.blocked": blocked, "ray_messaging.deferred": deferred, "ray_messaging.route": route}
        )
        self._judge.end()
        self._judge = None

    def writing(self, outgoing: Batch) -> None:
        """Note that frames of the batch are made; they carry the span."""
        if self._write is None:
            self._write = self._spans.start("write", self._context, SpanKind.PRODUCER, messages=outgoing.rows)
        outgoing.trace = TracePoint(packed(self._write), 0.0)

    def done(self, outcome: Outcome, error: MessagingError | None) -> None:
        """Note that all messages have a fate, or an error."""
        last = self._judge or self._write
        if last is None:
            return
        counts = zip([*FATES, "unknown"], np.bincount(outcome.fates, minlength=len(FATES) + 1).tolist(), strict=True)
        last.set_attributes({f"ray_messaging.{fate}": count for fate, count in counts if count})
        if error is not None:
            last.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
        last.end()
