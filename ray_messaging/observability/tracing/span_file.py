"""Spans as lines of JSON in a file, which the processes of a node share."""

from collections.abc import Sequence
from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from ray_messaging.errors import ConfigError


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
