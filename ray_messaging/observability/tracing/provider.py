"""The tracer provider of this process: the program's own, or one that the environment describes."""

import os
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from ray_messaging.errors import ConfigError

_GROUP = "opentelemetry_traces_exporter"  # the entry points of all exporters of spans


def tracer_provider() -> trace.TracerProvider:
    """Return the provider that this program, or Ray's tracing hook, has set; else one by the OTEL_* variables.

    Raises: ConfigError where these name an exporter that is not installed.
    """
    found = trace.get_tracer_provider()
    return _by_environment() if isinstance(found, trace.ProxyTracerProvider) else found


def flush() -> None:
    """Export all spans that have ended. Ray ends actors without the exit at which OpenTelemetry does it."""
    found = trace.get_tracer_provider()
    if isinstance(found, trace.ProxyTracerProvider) and _by_environment.cache_info().currsize:
        found = _by_environment()
    if isinstance(found, TracerProvider):
        found.force_flush()


@cache
def _by_environment() -> TracerProvider:
    """Build the provider as `opentelemetry-instrument` does. It is not global: the program may set its own later."""
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    facts = {} if named else {"service.name": "ray_messaging"}
    provider = TracerProvider(resource=Resource.create({**facts, "process.pid": os.getpid()}))
    for exporter in _exporters():
        provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _exporters() -> Iterator[SpanExporter]:
    for name in os.environ.get("OTEL_TRACES_EXPORTER", "otlp").split(","):
        wanted = name.strip()
        if wanted == "otlp":
            variable = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
            protocol = variable or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
            wanted = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
        if wanted in {"", "none"}:
            continue
        found = [*entry_points(group=_GROUP, name=wanted)]
        if not found:
            raise ConfigError(
                f"tracing exports spans by {wanted!r}, which is not installed: pip install "
                "opentelemetry-exporter-otlp-proto-http (or -grpc, with OTEL_EXPORTER_OTLP_PROTOCOL=grpc), or name "
                "another exporter in OTEL_TRACES_EXPORTER"
            )
        yield found[0].load()()
