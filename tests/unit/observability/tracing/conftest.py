"""Spans that a test can read: the program's own tracer provider, with an exporter to memory."""

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Spans:
    """The spans that have ended."""

    def __init__(self, provider: TracerProvider, exporter: InMemorySpanExporter):
        self.tracer = provider.get_tracer("the program")
        self._exporter = exporter

    def all(self):
        return list(self._exporter.get_finished_spans())

    def of(self, name):
        return [span for span in self.all() if span.name == name]

    def one(self, name):
        [found] = self.of(name)
        return found

    def parent(self, span):
        """Return the span that is the parent of another one; None: it has none, or it has not ended."""
        parent = None if span.parent is None else span.parent.span_id
        return next((each for each in self.all() if each.context.span_id == parent), None)


@pytest.fixture
def spans(monkeypatch):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    return Spans(provider, exporter)
