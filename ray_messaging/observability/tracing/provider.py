"""The tracer provider of this process: of a file, the program's own, or one that the environment describes."""

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from ray_messaging.errors import ConfigError

_GROUP = "opentelemetry_traces_exporter"  # the entry points of all exporters of spans


class SpanFile(SpanExporter):
    """Exporter of spans to the end of a file, each as OpenTelemetry's `to_json` has it."""

    def __init__(self, path: str | Path) -> None:
        """Open the file, and make its folder; raise ConfigError where that cannot be."""
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._file = Path(path).open("ab", buffering=0)  # noqa: SIM115 - open as long as the process runs
        except OSError as error:
            raise ConfigError(f"cannot write spans to {str(path)!r} ({error.strerror}): choose another file") from error

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Append spans in one write, which those of other processes do not cut in two."""
        lines = "".join(span.to_json(indent=None) + "\n" for span in spans).encode()
        if self._file.write(lines) != len(lines):
            raise OSError(f"the spans do not fit on the disk of {str(self._file.name)!r}")
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Close the file."""
        self._file.close()


def tracer_provider(file: str | Path | None = None) -> trace.TracerProvider:
    """Return the provider of a file; without one, the program's or that of Ray's tracing hook, or by OTEL_* variables.

    Raises: ConfigError where the file cannot be written, or the variables name an exporter that is not installed.
    """
    if file is not None:
        return _of_file(file)
    found = trace.get_tracer_provider()
    return _by_environment() if isinstance(found, trace.ProxyTracerProvider) else found


def flush(file: str | Path | None = None) -> None:
    """Export all spans that have ended. Ray ends actors without the exit at which OpenTelemetry does it."""
    found = trace.get_tracer_provider()
    if file is not None:
        found = _of_file(file)
    elif isinstance(found, trace.ProxyTracerProvider) and _by_environment.cache_info().currsize:
        found = _by_environment()
    if isinstance(found, TracerProvider):
        found.force_flush()


@cache
def _of_file(file: str | Path) -> TracerProvider:
    return _exported_by([SpanFile(file)])


@cache
def _by_environment() -> TracerProvider:
    """Build the provider as `opentelemetry-instrument` does. It is not global: the program may set its own later."""
    return _exported_by(_exporters())


def _exported_by(exporters: Iterable[SpanExporter]) -> TracerProvider:
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    facts = {} if named else {"service.name": "ray_messaging"}
    provider = TracerProvider(resource=Resource.create({**facts, "process.pid": os.getpid()}))
    for exporter in exporters:
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
                "opentelemetry-exporter-otlp-proto-http (or -grpc, with OTEL_EXPORTER_OTLP_PROTOCOL=grpc), name "
                "another exporter in OTEL_TRACES_EXPORTER, or write Tracing(file='spans.jsonl')"
            )
        yield found[0].load()()
