"""Span contexts as bytes, as frames carry them."""

from struct import Struct

from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, TraceFlags, set_span_in_context

_PACKED = Struct(">QQQB")


def packed(span: Span) -> bytes:
    """Return the context of a span: its trace's id, its own, its flags."""
    context = span.get_span_context()
    trace_id = context.trace_id
    return _PACKED.pack(trace_id >> 64, trace_id & (2**64 - 1), context.span_id, context.trace_flags)


def unpacked(data: bytes) -> Context:
    """Return a context in which the span of some bytes is the parent; of invalid ones, there is no parent."""
    high, low, span_id, flags = _PACKED.unpack(data)
    found = SpanContext(high << 64 | low, span_id, is_remote=True, trace_flags=TraceFlags(flags))
    return set_span_in_context(NonRecordingSpan(found), Context())
